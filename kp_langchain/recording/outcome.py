"""How a run ended, as far as the run itself tells: see `gate.judge` for what counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.recording.answers import structured_response_in
from kp_langchain.recording.safe_reads import MAPPING, default_on_error, member
from kp_langchain.recording.verdict_reader import plain_number
from kp_langchain.verdict import is_unit

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


@default_on_error(None)
def confidence_in(output: object) -> float | None:
    """Return the `confidence` field (0 to 1) of a run's structured output; None if it has none."""
    if (response := structured_response_in(output)) is not None:
        output = response
    confidence = plain_number(member(output, "confidence"))
    return float(confidence) if is_unit(confidence) else None  # type: ignore[arg-type]


@default_on_error(None)
def mean_probability(logprobs: object) -> float | None:
    """Return the mean of `exp(logprob)` over the tokens of an answer; None if there are none.

    Args:
        logprobs: `{"content": [{"logprob": x}, ...]}`, `{"token_logprobs": [x, ...]}`, or one of
            those lists.
    """
    if isinstance(logprobs, MAPPING):
        logprobs = logprobs.get("content") or logprobs.get("token_logprobs")
    if not isinstance(logprobs, (list, tuple)):
        return None
    values = (
        token.get("logprob") if isinstance(token, MAPPING) else token
        for token in islice(logprobs, _MAX_TOKENS)
    )
    chances = [
        math.exp(max(_IMPOSSIBLE, min(0.0, value)))
        for value in values
        if isinstance(value, (int, float)) and value == value
    ]
    return sum(chances) / len(chances) if chances else None
