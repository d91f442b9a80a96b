"""`Verdict`: what somebody, or something, states about how a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kp_langchain.errors import ConfigError

CERTAIN = {True: 1.0, False: 0.0}
"""The confidence of a verdict that tells none: whoever gives one has looked."""

LONGEST_NOTE_CHARS = 4000
_LONGEST_SOURCE_CHARS = 100
# Cut to the above only once it is redacted, so that a secret which crosses the cut is seen whole.
_NOTE_READ_CHARS = 2 * LONGEST_NOTE_CHARS


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody said of a run.

    Args:
        success: Whether the run reached its goal; None if that was not said.
        confidence: How sure one can be of its result, 0 to 1; None if that was not said.
        note: Why, in words.
        source: Who said it: `reported`, `label`, `langsmith`, `outcome function`, ...
        at: When it was said, in UTC.

    Raises:
        ConfigError: Nothing is said, or a value is of the wrong kind; the message says which.
    """

    success: bool | None = None
    confidence: float | None = None
    note: str | None = None
    source: str = "reported"
    at: datetime | None = None

    def __post_init__(self) -> None:
        if self.success is None and self.confidence is None:
            raise ConfigError("a verdict says nothing; give success=True or False, or a confidence")
        if not isinstance(self.success, bool | None):
            raise ConfigError(f"success is {_shown(self.success)}; give True or False")
        if self.confidence is not None and not _is_unit(self.confidence):
            raise ConfigError(f"confidence is {_shown(self.confidence)}; give a number from 0 to 1")
        for name, longest in (("note", _NOTE_READ_CHARS), ("source", _LONGEST_SOURCE_CHARS)):
            text = getattr(self, name)
            if name == "note" and text is None:
                continue
            if not isinstance(text, str):
                raise ConfigError(f"{name} is a {type(text).__name__}; give text")
            object.__setattr__(self, name, text[:longest])
        if not isinstance(self.at, datetime | None):
            raise ConfigError(f"at is a {type(self.at).__name__}; give a datetime")
        at = self.at or datetime.now(UTC)
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        object.__setattr__(self, "at", at)

    def as_report(self) -> dict[str, Any]:
        """Return what it says in the form of a `kp.outcome` event."""
        confidence = self.confidence
        if confidence is None and self.success is not None:
            confidence = CERTAIN[self.success]
        return {"success": self.success, "confidence": confidence, "note": self.note}


def _is_unit(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1  # type: ignore[operator]


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float) else f"a {type(value).__name__}"
