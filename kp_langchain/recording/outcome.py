"""How a run ended: success and confidence, and where they come from.

In order: what the caller reported, a `confidence` in structured output, the mean token
probability of the last model answer, and the defaults 0.8 for a success and 0.2 for a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from kp_langchain.schema import TraceStep

DEFAULT_CONFIDENCE = {True: 0.8, False: 0.2}

# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = (
    "Agent stopped due to iteration limit or time limit.",
    "Agent stopped due to max iterations.",
    "Sorry, need more steps to process this request.",
)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What an `outcome` function is given to judge a run by. Nothing in it is redacted yet.

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


Reported = bool | float | Mapping[str, Any] | None
OutcomeFunction = Callable[[FinishedRun], Reported]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Success and confidence of a run, and the source of the confidence."""

    success: bool
    confidence: float
    source: str


def looks_successful(answer: str, *, ended_well: bool, unresolved_error: bool) -> bool:
    """Whether a run that nobody judged counts as a success.

    Args:
        answer: The final answer.
        ended_well: No error and no step limit ended the run.
        unresolved_error: The last thing that happened was an error.
    """
    text = answer.strip()
    return ended_well and not unresolved_error and bool(text) and text not in _OUT_OF_STEPS


def judge(
    success: bool,
    *,
    by_function: Reported = None,
    by_event: Reported = None,
    structured: float | None = None,
    logprobs: object = None,
) -> Judgement:
    """Settle success and confidence from the best source that says something.

    Args:
        success: Whether the run looks successful by itself.
        by_function: What the handler's `outcome` function returned: a bool is the success, a
            number the confidence, a mapping may hold both as `success` and `confidence`.
        by_event: The same, from a `kp.outcome` event.
        structured: The `confidence` of the structured output, 0 to 1.
        logprobs: Log-probabilities of the last model answer, in the model's own form.

    Raises:
        ValueError: A report holds something else, or a confidence outside 0 to 1.
    """
    confidence: float | None = None
    source = ""
    for name, report in (("outcome function", by_function), ("kp.outcome event", by_event)):
        reported_success, reported_confidence = _read(report)
        if reported_success is not None or reported_confidence is not None:
            success = success if reported_success is None else reported_success
            confidence, source = reported_confidence, name
            break
    if confidence is None and structured is not None:
        confidence, source = structured, "structured output"
    if confidence is None and (mean := mean_probability(logprobs)) is not None:
        confidence, source = mean, "token probabilities"
    if confidence is None:
        confidence = DEFAULT_CONFIDENCE[success]
        source = f"default after {source}" if source else "default"
    return Judgement(success, confidence, source)


def _read(report: Reported) -> tuple[bool | None, float | None]:
    if report is None or isinstance(report, bool):
        return report, None
    if isinstance(report, Mapping):
        success, confidence = report.get("success"), report.get("confidence")
        if success is not None and not isinstance(success, bool):
            raise ValueError(f"success is {success!r}; report True or False")
        if confidence is None:
            return success, None
    else:
        success, confidence = None, report
    if _is_unit(confidence):
        return success, float(confidence)
    raise ValueError(f"confidence is {confidence!r}; report a number from 0 to 1")


def _is_unit(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value <= 1
    )


def confidence_in(output: object) -> float | None:
    """The `confidence` field (0 to 1) of a run's structured output, if it has one."""
    if isinstance(output, Mapping) and output.get("structured_response") is not None:
        output = output["structured_response"]
    found = (
        output.get("confidence")
        if isinstance(output, Mapping)
        else getattr(output, "confidence", None)
    )
    return float(found) if _is_unit(found) else None  # type: ignore[arg-type]


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
    values = [token.get("logprob") if isinstance(token, Mapping) else token for token in logprobs]
    chances = [
        math.exp(min(0.0, value))
        for value in values
        if isinstance(value, (int, float)) and not math.isnan(value)
    ]
    return sum(chances) / len(chances) if chances else None
