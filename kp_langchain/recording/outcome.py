"""How a run ended: success and confidence, and where they come from.

In order: what the caller reported, a `confidence` in structured output, the mean token
probability of the last model answer, the domain's calibrated model, and the defaults 0.8 for a
success and 0.2 for a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kp_langchain._host_exceptions import came_from_outside
from kp_langchain.errors import KPError
from kp_langchain.recording.texts import clean, clip
from kp_langchain.recording.user_values import default_on_error
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE

if TYPE_CHECKING:
    from kp_langchain.schema import TraceStep

NOTE_CHARS = 8000
_MOST_KEYS = 100
_MOST_TOKENS = 100_000
_IMPOSSIBLE = -1e3  # a logarithm of a probability that no float tells from 0

# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = (
    "Agent stopped due to iteration limit or time limit.",
    "Agent stopped due to max iterations.",
    "Sorry, need more steps to process this request.",
)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What an `outcome` function or a verifier is given to judge a run by.

    For an `outcome` function nothing in it is redacted yet, but for what the run recorded in
    another process before it paused. For a verifier, which may send it out, all texts are; `output`
    is None and `metadata` empty.

    Args:
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


class ReportError(KPError, ValueError):
    """A reported outcome cannot be used; the message names types, never values."""


class Report(NamedTuple):
    """What somebody who should know says of a run; None where they say nothing."""

    success: bool | None = None
    confidence: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Success and confidence of a run, and the source of the confidence."""

    success: bool
    confidence: float
    source: str


def looks_successful(
    answer: str, *, ended_well: bool, unresolved_error: bool, ends_on_action: bool = False
) -> bool:
    """Whether a run that nobody judged counts as a success.

    Args:
        answer: The final answer.
        ended_well: No error and no step limit ended the run, and its last answer was neither
            refused nor cut off.
        unresolved_error: The last thing that happened was an error, or a human's refusal.
        ends_on_action: The last thing the run did was to use a tool. Then it needs no answer:
            an agent that buys, sends or submits something is done with that.
    """
    text = answer.strip()
    complete = (bool(text) or ends_on_action) and text not in _OUT_OF_STEPS
    return ended_well and not unresolved_error and complete


def judge(
    success: bool,
    *,
    reports: Iterable[tuple[str, Report]] = (),
    structured: float | None = None,
    token_probability: float | None = None,
    calibrated: tuple[str, float] | None = None,
) -> Judgement:
    """Settle success and confidence, each from the first source that says something of it.

    Args:
        success: Whether the run looks successful by itself.
        reports: What the caller reported, by the name of the source, best first.
        structured: The `confidence` of the structured output, 0 to 1.
        token_probability: Mean probability of the tokens of the last model answer, 0 to 1.
        calibrated: How likely the domain's model finds a success, 0 to 1, under the source to
            name. Of no use where a success or failure was reported.
    """
    told = list(reports)
    reported = next((one.success for _, one in told if one.success is not None), None)
    success = success if reported is None else reported
    sources = [
        *((name, one.confidence) for name, one in told),
        ("structured output", structured),
        ("token probabilities", token_probability),
        *([calibrated] if calibrated is not None and reported is None else []),
        ("default", DEFAULT_CONFIDENCE[success]),
    ]
    return next(
        Judgement(success, confidence, name)
        for name, confidence in sources
        if confidence is not None
    )


def read_report(report: object) -> Report:
    """Read a report: a bool is the success, a number the confidence, a mapping may hold both.

    A mapping may hold a `note`, too: a text that says why.

    Raises:
        ReportError: It is something else, or the confidence lies outside 0 to 1.
    """
    try:
        return _read_report(report)
    except ReportError:
        raise
    except BaseException as error:  # somebody else's mapping, which may do anything
        if came_from_outside(error):
            raise
        raise ReportError(f"it cannot be read ({type(error).__name__})") from error


def _read_report(report: object) -> Report:
    report = plain_number(report)
    if report is None:
        return Report()
    if isinstance(report, bool):
        return Report(success=report)
    if not isinstance(report, Mapping):
        return Report(confidence=_read_confidence(report))
    unknown = sum(key not in Report._fields for key in islice(report, _MOST_KEYS))
    if unknown:
        raise ReportError(
            f"{unknown} keys besides 'success', 'confidence' and 'note'; report those three"
        )
    note = report.get("note")
    if note is not None and not isinstance(note, str):
        raise ReportError(f"note is a {type(note).__name__}; give a text or leave it out")
    success = plain_number(report.get("success"))
    if success is not None and not isinstance(success, bool):
        raise ReportError(f"success is a {type(success).__name__}; report True or False")
    confidence = report.get("confidence")
    return Report(
        success,
        None if confidence is None else _read_confidence(confidence),
        note and clean(clip(note, NOTE_CHARS)),
    )


_WORDS = {
    **dict.fromkeys(("true", "yes", "1", "success", "correct", "pass"), True),
    **dict.fromkeys(("false", "no", "0", "failure", "incorrect", "fail"), False),
}


def read_success(value: object) -> bool:
    """Read a success that a file or another system tells: a bool, 1 or 0, or a word for it.

    Raises:
        ReportError: It is something else.
    """
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (word := value.strip().casefold()) in _WORDS:
        return _WORDS[word]
    raise ReportError(
        "success is none of true, yes, 1, success, correct, pass, or their opposites false, no, 0, "
        "failure, incorrect, fail"
    )


def plain_number(value: object) -> object:
    """Python's own bool or float for a number of NumPy's."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _read_confidence(value: object) -> float:
    value = plain_number(value)
    if _is_unit(value):
        return float(value)  # type: ignore[arg-type]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = "number outside 0 to 1" if number else type(value).__name__
    raise ReportError(f"confidence is a {kind}; report a number from 0 to 1")


def _is_unit(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


@default_on_error(None)
def confidence_in(output: object) -> float | None:
    """The `confidence` field (0 to 1) of a run's structured output, if it has one."""
    if isinstance(output, Mapping) and output.get("structured_response") is not None:
        output = output["structured_response"]
    found = plain_number(
        output.get("confidence")
        if isinstance(output, Mapping)
        else getattr(output, "confidence", None)
    )
    return float(found) if _is_unit(found) else None  # type: ignore[arg-type]


@default_on_error(None)
def mean_probability(logprobs: object) -> float | None:
    """Mean of `exp(logprob)` over the tokens of an answer; None where there are none.

    Args:
        logprobs: `{"content": [{"logprob": x}, ...]}`, `{"token_logprobs": [x, ...]}`, or one of
            those lists.
    """
    if isinstance(logprobs, Mapping):
        logprobs = logprobs.get("content") or logprobs.get("token_logprobs")
    if not isinstance(logprobs, (list, tuple)):
        return None
    values = (
        token.get("logprob") if isinstance(token, Mapping) else token
        for token in islice(logprobs, _MOST_TOKENS)
    )
    chances = [
        math.exp(max(_IMPOSSIBLE, min(0.0, value)))
        for value in values
        if isinstance(value, (int, float)) and value == value
    ]
    return sum(chances) / len(chances) if chances else None
