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
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.recording.answer import structured_response_in
from kp_langchain.recording.safe_reads import default_on_error
from kp_langchain.recording.verdict_reader import plain_number
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE, estimated_success
from kp_langchain.verdict import Verdict, first_decisive, is_unit

if TYPE_CHECKING:
    from kp_langchain.schema import TraceStep

_MAX_TOKENS = 100_000
_IMPOSSIBLE = -1e3  # the logarithm of a probability that is 0.0 as a float

# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = (
    "Agent stopped due to iteration limit or time limit.",
    "Agent stopped due to max iterations.",
    "Sorry, need more steps to process this request.",
)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What an `outcome` function or a verifier receives to judge a run.

    An `outcome` function sees unredacted text, except for the part recorded in another process
    before a pause. A verifier sees only redacted text, with `output` None and `metadata` empty.

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


def looks_successful(
    answer: str,
    *,
    ended_well: bool,
    unresolved_error: bool,
    last_call_failed: bool = False,
    ends_on_action: bool = False,
) -> bool:
    """Return whether a run that nobody judged counts as a success.

    Args:
        answer: The final answer.
        ended_well: No error and no step limit ended the run, and its last answer was neither
            refused nor cut off.
        unresolved_error: The last thing that happened was an error, or a human's refusal.
        last_call_failed: The last tool call failed, and the answer is not a structure that was
            checked after it.
        ends_on_action: The last thing the run did was to use a tool. Then it needs no answer:
            an agent that buys, sends or submits something is done with that.
    """
    text = answer.strip()
    complete = (bool(text) or ends_on_action) and text not in _OUT_OF_STEPS
    return ended_well and not unresolved_error and not last_call_failed and complete


def choose_outcome(
    success: bool,
    *,
    verdicts: Iterable[Verdict] = (),
    structured: float | None = None,
    token_probability: float | None = None,
    model_verdict: Verdict | None = None,
    proves_failure: bool = False,
) -> Verdict:
    """Choose success and confidence, each from the first source that states it.

    Args:
        success: Whether the run looks successful by itself.
        verdicts: What is stated about the run, best first.
        structured: The `confidence` of the structured output, 0 to 1.
        token_probability: Mean probability of the tokens of the last model answer, 0 to 1.
        model_verdict: The confidence by the domain's model. Not used if success or failure is
            stated. A run that only looks like a failure counts as a success if the model finds one
            likelier.
        proves_failure: Whether the run itself proves that it failed; see `Draft.proves_failure`.

    Returns:
        A verdict that states both; its source is that of the confidence.
    """
    sources = list(verdicts)
    decisive = first_decisive(sources)
    success = success if decisive is None else bool(decisive.success)
    if structured is not None:
        sources.append(Verdict(confidence=structured, source="structured output"))
    if token_probability is not None:
        sources.append(Verdict(confidence=token_probability, source="token probabilities"))
    if model_verdict is not None and decisive is None:
        sources.append(model_verdict)
    sources.append(Verdict(confidence=DEFAULT_CONFIDENCE[success], source="default"))
    best = next(verdict for verdict in sources if verdict.confidence is not None)
    if best is model_verdict and best.confidence is not None:
        success = estimated_success(
            best.confidence, looked_successful=success, proves_failure=proves_failure
        )
    return Verdict(success, best.confidence, source=best.source)


@default_on_error(None)
def confidence_in(output: object) -> float | None:
    """Return the `confidence` field (0 to 1) of a run's structured output; None if it has none."""
    if (response := structured_response_in(output)) is not None:
        output = response
    confidence = plain_number(
        output.get("confidence")
        if isinstance(output, Mapping)
        else getattr(output, "confidence", None)
    )
    return float(confidence) if is_unit(confidence) else None  # type: ignore[arg-type]


@default_on_error(None)
def mean_probability(logprobs: object) -> float | None:
    """Return the mean of `exp(logprob)` over the tokens of an answer; None if there are none.

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
        for token in islice(logprobs, _MAX_TOKENS)
    )
    chances = [
        math.exp(max(_IMPOSSIBLE, min(0.0, value)))
        for value in values
        if isinstance(value, (int, float)) and value == value
    ]
    return sum(chances) / len(chances) if chances else None
