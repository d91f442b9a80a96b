"""How a run ended: by its looks, its own claims, the caller's verifiers, or a confidence model.

`read_verdict` reads what a function, an event, a file or another system states. See `gate.judge`
for what counts. A verifier may be a language model: it may be slow, fail, or send what it reads to
a third party. So it sees redacted text only, and has a time limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.errors import ConfigError, VerdictError
from kp_langchain.recording.answers import structured_response_in
from kp_langchain.recording.bounds import default_on_error, member
from kp_langchain.values import clean_text
from kp_langchain.verdict import Verdict, is_unit

if TYPE_CHECKING:
    from kp_langchain.schema import TraceStep


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What an `outcome` function or a verifier receives to judge a run.

    An `outcome` function sees unredacted text, except for the part before a pause, which is
    redacted. A verifier sees only redacted text, with `output` None and `metadata` empty.

    Attributes:
        run_id: LangChain's id of the root run.
        domain: The run's domain.
        objective: What was asked.
        steps: What happened.
        answer: The final answer as text; empty if there was none.
        output: What the root run returned, as it was; None if it failed.
        error: The error that ended the run; empty if none did.
        success: Whether the run would count as a success without a report.
        metadata: The root run's LangChain metadata.
    """

    run_id: UUID
    domain: str
    objective: str
    steps: tuple[TraceStep, ...]
    answer: str
    output: object
    error: str
    success: bool
    metadata: Mapping[str, Any]


OutcomeFunction = Callable[[FinishedRun], bool | float | Mapping[str, Any] | None]
Verifier = Callable[[FinishedRun], bool | float | Mapping[str, Any] | Awaitable[Any] | None]
"""Judges a finished run as an `outcome` function does; its mapping may also hold a `note`."""


@default_on_error(None)
def confidence_in(output: object) -> float | None:
    """Return the `confidence` field (0 to 1) of a run's structured output; None if it has none."""
    if (response := structured_response_in(output)) is not None:
        output = response
    confidence = plain_number(member(output, "confidence"))
    return float(confidence) if is_unit(confidence) else None  # type: ignore[arg-type]


inside_verifier: ContextVar[bool] = ContextVar("kp_langchain_inside_verifier", default=False)
"""Whether this code runs inside a verifier."""

# ------------------------------------------------------------------ what a value states

_KEYS = ("success", "confidence", "note")
_MAX_KEYS = 100

_WORDS = {
    **dict.fromkeys(("true", "yes", "1", "success", "correct", "pass"), True),
    **dict.fromkeys(("false", "no", "0", "failure", "incorrect", "fail"), False),
}


def read_verdict(value: object, source: str) -> Verdict | None:
    """Return the verdict that a value states; None if it states neither success nor confidence.

    Args:
        value: A bool, a number from 0 to 1, a mapping, or None.
        source: Who states it.

    Raises:
        VerdictError: It is something else, or the confidence lies outside 0 to 1.
    """
    try:
        return _read(value, source)
    except VerdictError:
        raise
    except ConfigError:  # its message may have the value
        raise VerdictError(
            "report success as True or False, confidence as a number from 0 to 1, note as a text"
        ) from None
    except Exception as error:  # somebody else's mapping, which may do anything
        raise VerdictError(f"it cannot be read ({type(error).__name__})") from error


def _read(value: object, source: str) -> Verdict | None:
    value = plain_number(value)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        value = {"success" if isinstance(value, bool) else "confidence": value}
    unknown = sum(key not in _KEYS for key in islice(value, _MAX_KEYS))
    if unknown:
        raise VerdictError(
            f"{unknown} keys besides 'success', 'confidence' and 'note'; report those three"
        )
    success, confidence, note = map(value.get, _KEYS)
    if success is None and confidence is None:
        return None
    words: Any = note and clean_text(note)  # type: ignore[arg-type]
    return Verdict(plain_number(success), plain_number(confidence), words, source)  # type: ignore[arg-type]


def read_success(value: object) -> bool:
    """Return the success that a file or another system states: a bool, 1 or 0, or a word for it.

    Raises:
        VerdictError: It is something else.
    """
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (word := value.strip().casefold()) in _WORDS:
        return _WORDS[word]
    raise VerdictError(
        "success is none of true, yes, 1, success, correct, pass, or their opposites false, no, 0, "
        "failure, incorrect, fail"
    )


def plain_number(value: object) -> object:
    """Return Python's own bool or number for one of NumPy's; anything else unchanged."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value
