"""Reads a verdict from what a function, an event, a file or another system states.

A bool is the success, a number the confidence; a mapping may hold `success`, `confidence` and
`note`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from kp_langchain.errors import VerdictError
from kp_langchain.recording.bounds import clean, clip
from kp_langchain.verdict import NOTE_READ_CHARS, Verdict, is_unit

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
    except Exception as error:  # somebody else's mapping, which may do anything
        raise VerdictError(f"it cannot be read ({type(error).__name__})") from error


def _read(value: object, source: str) -> Verdict | None:
    value = plain_number(value)
    if value is None:
        return None
    if isinstance(value, bool):
        return Verdict(success=value, source=source)
    if not isinstance(value, Mapping):
        return Verdict(confidence=_read_confidence(value), source=source)
    unknown = sum(key not in _KEYS for key in islice(value, _MAX_KEYS))
    if unknown:
        raise VerdictError(
            f"{unknown} keys besides 'success', 'confidence' and 'note'; report those three"
        )
    note = value.get("note")
    if note is not None and not isinstance(note, str):
        raise VerdictError(f"note is a {type(note).__name__}; give a text or leave it out")
    success = plain_number(value.get("success"))
    if success is not None and not isinstance(success, bool):
        raise VerdictError(f"success is a {type(success).__name__}; report True or False")
    confidence = value.get("confidence")
    if confidence is not None:
        confidence = _read_confidence(confidence)
    if success is None and confidence is None:
        return None
    return Verdict(success, confidence, note and clean(clip(note, NOTE_READ_CHARS)), source)


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


def _read_confidence(value: object) -> float:
    value = plain_number(value)
    if is_unit(value):
        return float(value)  # type: ignore[arg-type]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = "number outside 0 to 1" if is_number else type(value).__name__
    raise VerdictError(f"confidence is a {kind}; report a number from 0 to 1")
