"""Finds the veto flags of a run: signs that it went wrong, which need no verdict.

Two of them read words, which are in `wording.toml`; the others hold in every language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.calibration.wording import UNABLE, Text

if TYPE_CHECKING:
    from kp_langchain.calibration.tool_calls import TracedCall
    from kp_langchain.schema import ReasoningTrace, TraceStep

_ANSWER_CHARS = 1000
_MOST_EQUAL_CALLS = 2
# Shorter results, such as "done", are what different calls often return.
_RESULT_CHARS = 20


def flags_of(trace: ReasoningTrace) -> tuple[str, ...]:
    """Return the flags of a redacted trace, by the names in `scoring.evidence.VETO_FLAGS`."""
    return tuple(_flags(trace, calls_of(trace.steps)))


def _flags(trace: ReasoningTrace, calls: Sequence[TracedCall]) -> Iterator[str]:
    if calls and calls[-1].has_failed:
        yield "last_call_failed"
    if any(one.output is None for one in calls):
        yield "unanswered_call"
    if UNABLE.count(Text(trace.outcome.result_summary, _ANSWER_CHARS)):
        yield "answer_unable"
    made = [(one, _signature(one.call)) for one in calls if one.call is not None]
    if any(first == second and not _is_error(one) for (one, first), (_, second) in pairwise(made)):
        yield "same_call_twice"
    if max(Counter(signature for _, signature in made).values(), default=0) > _MOST_EQUAL_CALLS:
        yield "repeated_calls"
    results = [(one, one.output.content or "") for one in calls if one.output is not None]
    if any(
        first == second and len(first) >= _RESULT_CHARS and not _is_same_call(one, other)
        for (one, first), (other, second) in pairwise(results)
    ):
        yield "same_result_twice"


def _signature(call: TraceStep) -> tuple[str, str]:
    return (call.tool.name if call.tool else "", repr(call.input))


def _is_same_call(one: TracedCall, other: TracedCall) -> bool:
    calls = (one.call, other.call)
    return None not in calls and len({_signature(call) for call in calls if call}) == 1


def _is_error(call: TracedCall) -> bool:
    """Return whether a call ended in an error, so that to make it again is a retry."""
    return call.output is not None and call.output.type == "error_recovery"
