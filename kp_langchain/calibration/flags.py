"""Finds the veto flags of a run: signs that it went wrong, which need no verdict.

Two of them read words, which are in `wording.toml`; the others hold in every language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.calibration.wording import UNABLE, Text
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.values import LEFT_OUT

if TYPE_CHECKING:
    from kp_langchain.calibration.tool_calls import TracedCall
    from kp_langchain.schema import ReasoningTrace

ANSWER_CHARS = 1000
"""So many characters at the beginning of an answer are read."""
MOST_EQUAL_CALLS = 2
"""A tool is called more often than this with equal arguments only by mistake."""
# Shorter results, such as "done", are what different calls often return.
_RESULT_CHARS = 20


def flags_of(trace: ReasoningTrace) -> tuple[str, ...]:
    """Return the flags of a redacted trace, by the names in `scoring.evidence.VETO_FLAGS`."""
    return tuple(_flags(trace, calls_of(trace.steps)))


def _flags(trace: ReasoningTrace, calls: Sequence[TracedCall]) -> Iterator[str]:
    if calls and all(one.has_failed for one in last_at_once(calls)):
        yield "last_call_failed"
    if any(one.output is None for one in calls):
        yield "unanswered_call"
    if UNABLE.count(Text(trace.outcome.result_summary, ANSWER_CHARS)):
        yield "answer_unable"
    made = [signature_of(one) for one in calls]
    results = [_result(one) for one in calls]
    neighbours = range(len(calls) - 1)
    # To make a call again that ended in an error is a retry.
    if any(
        made[at] is not None and made[at] == made[at + 1] and not calls[at].is_error
        for at in neighbours
    ):
        yield "same_call_twice"
    pairs = zip(made, calls, strict=True)
    counts = Counter(one for one, call in pairs if one is not None and not call.is_error)
    if max(counts.values(), default=0) > MOST_EQUAL_CALLS:
        yield "repeated_calls"
    if any(
        results[at] is not None and results[at] == results[at + 1] and made[at] != made[at + 1]
        for at in neighbours
    ):
        yield "same_result_twice"


def last_at_once(calls: Sequence[TracedCall]) -> list[TracedCall]:
    """Return the last call, and those that ran beside it: which of them ended last is chance."""
    last = calls[-1].call
    beside = [
        one
        for one in calls[:-1]
        if last is not None and one.output is not None and one.output.step_id > last.step_id
    ]
    return [*beside, calls[-1]]


def signature_of(one: TracedCall) -> tuple[str, str] | None:
    """Return what is equal for equal calls; None if not all of the call is known."""
    call = one.call
    if call is None:
        return None
    arguments = repr(call.input)
    return None if _is_partial(arguments) else (call.tool.name if call.tool else "", arguments)


def _result(one: TracedCall) -> str | None:
    """Return the output of a call; None if it is short, or not all of it is known."""
    text = "" if one.output is None else one.output.content or ""
    return None if len(text) < _RESULT_CHARS or _is_partial(text) else text


def _is_partial(text: str) -> bool:
    """Return whether something in a text was redacted or left out: what differs may be there."""
    return bool(PLACEHOLDER.search(text)) or LEFT_OUT in text or "'...'" in text
