"""`Verdict`: a statement about how a run ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from kp_langchain.errors import ConfigError

CERTAINTY = MappingProxyType({True: 1.0, False: 0.0})
"""The default confidence of a person's verdict, keyed by success."""

LONGEST_NOTE_CHARS = 4000
_LONGEST_SOURCE_CHARS = 100
# Cut to the above only after redaction, so that a secret that crosses the cut is seen whole.
NOTE_READ_CHARS = 2 * LONGEST_NOTE_CHARS


@dataclass(frozen=True, slots=True)
class Verdict:
    """A statement about how a run ended.

    One type for all of them: an outcome function, a verifier, an event of the run, a person, a
    file, another system, a confidence model, and the default.

    Attributes:
        success: Whether the run reached its goal; None if that is not stated.
        confidence: How sure one can be of its result, 0 to 1; None if that is not stated.
        note: The reason, in words.
        source: Who states it: `reported`, `label`, `langsmith`, `outcome function`, ...
        at: When it was stated, in UTC; now by default.
        by_model: Whether a language model gave it. A verdict that none gave counts more, whenever
            it was given.

    Raises:
        ConfigError: Neither success nor confidence is stated, or a value is of the wrong kind; the
            message says which.
    """

    success: bool | None = None
    confidence: float | None = None
    note: str | None = None
    source: str = "reported"
    at: datetime | None = None
    by_model: bool = False

    def __post_init__(self) -> None:
        if self.success is None and self.confidence is None:
            raise ConfigError("a verdict says nothing; give success=True or False, or a confidence")
        if not isinstance(self.success, bool | None):
            raise ConfigError(f"success is {_shown(self.success)}; give True or False")
        if self.confidence is not None and not is_unit(self.confidence):
            raise ConfigError(f"confidence is {_shown(self.confidence)}; give a number from 0 to 1")
        for name, longest in (("note", NOTE_READ_CHARS), ("source", _LONGEST_SOURCE_CHARS)):
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

    def with_certainty(self) -> Verdict:
        """Return it with a confidence: 1.0 for a success and 0.0 for a failure if none is stated.

        For verdicts of people, who have looked at the run.
        """
        if self.confidence is not None or self.success is None:
            return self
        return replace(self, confidence=CERTAINTY[self.success])

    @property
    def weight(self) -> tuple[bool, datetime | None]:
        """What orders the verdicts on a run: the one with the greatest weight counts."""
        return not self.by_model, self.at

    @property
    def source_text(self) -> str:
        """The source as people read it: it says whether a model gave the verdict."""
        return f"{self.source} (model)" if self.by_model else self.source

    def to_list(self) -> list[Any]:
        """Return source, success, confidence and note, ready for JSON."""
        return [self.source, self.success, self.confidence, self.note]

    @classmethod
    def from_list(cls, values: list[Any]) -> Verdict | None:
        """Return the verdict that `to_list` wrote; None if it states nothing.

        Raises:
            ValueError, TypeError: The values are not those of a verdict.
        """
        source, success, confidence, note = values
        if success is None and confidence is None:
            return None
        return cls(success, confidence, note, source)


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """A verdict on a run as a file or another system holds it, or why it cannot be read.

    Attributes:
        run_id: LangChain's id of the root run, the trace's id, or the beginning of either; empty if
            that cannot be read.
        verdict: The verdict; None if it cannot be read.
        why: Why it cannot be read; empty if it can.
        place: Where it is: `FILE:LINE`, or whatever tells a person where to look.
        key: What it is about, as the other system calls it; empty if it has no such thing.
        at: When it was given or last changed, in UTC, if the other system states that.
    """

    run_id: str = ""
    verdict: Verdict | None = None
    why: str = ""
    place: str = ""
    key: str = ""
    at: datetime | None = None


def first_decisive(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the first verdict that states success or failure."""
    return next((verdict for verdict in verdicts if verdict.success is not None), None)


def counting(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the verdict on a run that counts: the newest that no model gave, or the newest."""
    return max(reversed(list(verdicts)), key=attrgetter("weight"), default=None)


def is_unit(value: object) -> bool:
    """Return whether a value is a number from 0 to 1, but not a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1  # type: ignore[operator]


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float) else f"a {type(value).__name__}"
