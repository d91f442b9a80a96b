"""What a run took, read on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kp_langchain.recording.bounds import default_on_error
from kp_langchain.usage import (
    TOKEN_FIELDS,
    ModelCall,
    ModelUsage,
    Tokens,
    Usage,
    merge,
    read_tokens,
)

if TYPE_CHECKING:
    from kp_langchain.recording.calls import Call
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.steps import StepList

_MOST_MODEL_CALLS = 500  # that are stored one by one

Name = Callable[[str], str]
"""Redacts the name of a model."""


def usage_of(record: RunRecord, name: Name) -> Usage:
    """Return what a run, and the part of it before a pause, took.

    Args:
        record: The run.
        name: Redacts the name of a model.
    """
    calls = record.calls
    models = [call for call in calls if call.kind == "model"]
    for call in models:
        call.tokens = tokens_of(call)  # read once
    tools = [call for call in calls if call.kind != "model"]
    duration_s = None
    if record.started_s is not None and record.ended_s is not None:
        duration_s = max(0.0, record.ended_s - record.started_s)
    usage = Usage(
        models=merge(_model_usage(call, name) for call in models),
        duration_ms=None if duration_s is None else _milliseconds(duration_s),
        model_ms=_busy_ms(models),
        tool_ms=_busy_ms(tools),
        model_calls=len(models),
        tool_calls=len(tools),
        retries=_count_retries(calls),
    )
    return usage if record.earlier_usage is None else record.earlier_usage + usage


def model_calls_of(step_list: StepList, name: Name) -> tuple[ModelCall, ...]:
    """Return the answers of a run's models, each with the number of steps before it.

    Args:
        step_list: The steps of the run.
        name: Redacts the name of a model.
    """
    calls = []
    for step, call in step_list.model_calls[:_MOST_MODEL_CALLS]:
        tokens = tokens_of(call)
        calls.append(
            ModelCall(
                step=step,
                model=name(call.model),
                provider=name(call.provider),
                latency_ms=None if call.latency_ms is None else round(call.latency_ms, 3),
                is_reported=tokens is not None,
                **_fields(tokens),
            )
        )
    return tuple(calls)


def _model_usage(call: Call, name: Name) -> ModelUsage:
    tokens = tokens_of(call)
    return ModelUsage(
        model=name(call.model),
        provider=name(call.provider),
        is_inner=call.is_inner,
        calls=1,
        reported_calls=int(tokens is not None),
        **_fields(tokens),
    )


@default_on_error(None)
def tokens_of(call: Call) -> Tokens | None:
    """Return the tokens that a model's call reported; None if it reported none."""
    return read_tokens(call.tokens)


def _fields(tokens: Tokens | None) -> dict[str, int]:
    return {} if tokens is None else {name: getattr(tokens, name) for name in TOKEN_FIELDS}


def _busy_ms(calls: Iterable[Call]) -> float | None:
    """Return in how many milliseconds at least one of some calls was under way.

    None if the time of one is not known; 0 without calls.
    """
    extents = list(_extents(calls))
    if any(extent is None for extent in extents):
        return None
    busy_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(filter(None, extents)):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return _milliseconds(busy_s)


def _extents(calls: Iterable[Call]) -> Iterator[tuple[float, float] | None]:
    for call in calls:
        if call.started_s is None:
            yield None
        elif call.latency_ms is not None:
            yield call.started_s, call.started_s + call.latency_ms / 1000


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _count_retries(calls: Iterable[Call]) -> int:
    """Return how many calls repeat one of the same key that failed."""
    failed: set[object] = set()
    retries = 0
    for call in calls:
        retries += call.key in failed
        failed.discard(call.key)
        if call.has_failed:
            failed.add(call.key)
    return retries
