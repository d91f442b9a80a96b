"""Feedback that people and models gave in other tools, as verdicts on the runs of a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from kp_langchain.errors import ConfigError, KPError, VerdictError, status_of
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.run_scores import PREFIX
from kp_langchain.recording.outcome import read_success
from kp_langchain.recording.score_receivers import new_receiver
from kp_langchain.verdict import RunVerdict, Verdict, is_unit

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

__all__ = ["FeedbackTool", "ToolFeedback", "feedback_tool", "verdicts_from"]

FEEDBACK_TOOLS = ("langsmith", "langfuse", "phoenix", "opik", "mlflow")
"""The names of the tools that feedback is read from."""

VERDICT_WANTED = "kp_verdict_wanted"
"""What marks a trace that is to get a verdict, in tools without annotation queues."""

_RUNS_AT_ONCE = 500
_REQUESTS_AT_ONCE = 8

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ToolFeedback:
    """One feedback, score, annotation or assessment of a tool.

    Attributes:
        trace_id: The tool's id of the trace.
        span_id: The tool's id of the span that it is about; None if it is about the whole trace.
        key: The name that it has in the tool.
        value: What it says: a number, a truth value, or a word.
        comment: The reason, in words.
        at: When it was given or last changed, in UTC.
        by_model: Whether a language model gave it.
    """

    trace_id: str
    span_id: str | None
    key: str
    value: object
    comment: str | None
    at: datetime
    by_model: bool


class FeedbackTool(Protocol):
    """A tool in which people and models give feedback on traces.

    Attributes:
        name: Its name in settings and in the store.
        title: Its name as people write it.
        has_run_ids: Whether its id of a trace is LangChain's id of the root run.
        asks_by: What is done with a run that is to get a verdict, in words.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    has_run_ids: ClassVar[bool]
    asks_by: ClassVar[str]

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterable[ToolFeedback]:
        """Return the feedback on some traces. Sends their ids and the key, and nothing else.

        Args:
            traces: Some hundreds.
            key: Only feedback of this name; None for all.

        Raises:
            KPError: The tool cannot be reached, refuses the key, or cannot be understood.
        """

    def ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int:
        """Put traces where people give verdicts; one that is there already stays there once.

        Args:
            traces: At least one.
            queue: The name of the annotation queue, where the tool has such queues.

        Returns:
            How many were not there yet, as far as the tool tells.

        Raises:
            KPError: The tool cannot be reached, refuses the key, or has no such queue.
        """


def verdicts_from(
    tool: FeedbackTool,
    store: TraceStore,
    *,
    key: str | None = None,
    since: datetime | None = None,
    pass_at: float = 0.5,
) -> Iterator[RunVerdict]:
    """Read a tool's feedback on the runs of a store; skip what is only a comment.

    A score of 1 or 0, a boolean, or a word such as "correct" or "no" means success or failure. Any
    other score from 0 to 1 is the confidence, and the run succeeded if it is at least `pass_at`.
    The scores that this package sends are never read back.

    Args:
        tool: The tool.
        store: The store. Except for LangSmith, only runs are asked about whose handler sent their
            scores to the tool.
        key: Only feedback of this name; None for all.
        since: Only feedback that was given or changed at this time or later.
        pass_at: The lowest score of a run that succeeded, 0 to 1.

    Yields:
        Verdicts, or why one cannot be read. `run_id` is the id of the run's trace.

    Raises:
        ConfigError: `pass_at` is outside 0 to 1.
        KPError: The store cannot be read; or the tool cannot be reached, or refuses the key.
    """
    check_pass_at(pass_at)
    traces = traces_in(store, tool)
    while page := dict(islice(traces, _RUNS_AT_ONCE)):
        runs_in_trace = _runs_by_trace(page, store, tool)
        for one in tool.read_feedback(list(page.values()), key):
            if one.key.startswith(PREFIX) or (key is not None and one.key != key):
                continue
            if since is None or one.at >= since:
                runs = _runs_meant(one, runs_in_trace(one.trace_id))
                is_clear = len({external.span_id for external in runs.values()}) <= 1
                for trace_id in runs if is_clear else list(runs)[:1]:
                    if trace_id not in page:  # it is yielded with the runs of its own page
                        continue
                    yield (
                        run_verdict(one, tool, trace_id, pass_at)
                        if is_clear
                        else _unclear_verdict(one, tool, trace_id, len(runs))
                    )


def _runs_by_trace(
    page: Mapping[str, ExternalTrace], store: TraceStore, tool: FeedbackTool
) -> Callable[[str], Mapping[str, ExternalTrace]]:
    """Return what returns all runs that a tool has in a trace, also those of other pages."""
    if not tool.has_run_ids:
        return cache(lambda id_: dict(store.external_traces.in_trace(tool.name, id_)))
    runs: dict[str, dict[str, ExternalTrace]] = {}
    for trace_id, external in page.items():
        runs.setdefault(external.trace_id, {})[trace_id] = external
    return lambda id_: runs.get(id_, {})


def _runs_meant(
    feedback: ToolFeedback, runs: Mapping[str, ExternalTrace]
) -> dict[str, ExternalTrace]:
    """Return which runs of a trace a feedback is about; those of several spans if unclear."""
    if feedback.span_id is not None:
        return {id_: one for id_, one in runs.items() if one.span_id == feedback.span_id}
    return {id_: one for id_, one in runs.items() if not one.is_part} or dict(runs)


def _unclear_verdict(
    feedback: ToolFeedback, tool: FeedbackTool, run_id: str, runs: int
) -> RunVerdict:
    why = f"feedback {feedback.key!r} is on a trace with {runs} runs; give it on the span of one"
    place = f"{tool.title}, trace {feedback.trace_id}"
    return RunVerdict(run_id, why=why, place=place, key=feedback.key, at=feedback.at)


def traces_in(store: TraceStore, tool: FeedbackTool) -> Iterator[tuple[str, ExternalTrace]]:
    """Yield the trace id of each run of a store that a tool has, and where the tool has it.

    Raises:
        StoreError: The store cannot be read.
    """
    if not tool.has_run_ids:
        return iter(store.external_traces.of_tool(tool.name))
    run_ids = store.external_traces.run_ids()
    return ((trace_id, ExternalTrace(run_id, run_id)) for trace_id, run_id in run_ids)


def trace_of(store: TraceStore, tool: FeedbackTool, trace_id: str) -> ExternalTrace | None:
    """Return where a tool has a run; None if it has none of it, or the run is gone.

    Raises:
        StoreError: The store cannot be read.
    """
    if not tool.has_run_ids:
        return store.external_traces.of_run(trace_id).get(tool.name)
    run = store.get(trace_id)
    return None if run is None else ExternalTrace(run.run_id, run.run_id)


def feedback_tool(name: str) -> FeedbackTool:
    """Return the tool of a name, as the environment configures it.

    Raises:
        MissingExtraError: Its package is not installed.
    """
    tool: FeedbackTool = new_receiver(name)  # type: ignore[assignment]
    return tool


def check_pass_at(pass_at: float) -> None:
    """Raise ConfigError unless `pass_at` is from 0 to 1."""
    if not 0 <= pass_at <= 1:
        raise ConfigError(f"pass_at is {pass_at!r}; give a number from 0 to 1")


def run_verdict(
    feedback: ToolFeedback, tool: FeedbackTool | type[FeedbackTool], run_id: str, pass_at: float
) -> RunVerdict:
    """Return what a feedback says of a run, or why that cannot be read."""
    key, at = feedback.key, feedback.at
    place = f"{tool.title}, run {feedback.trace_id}"
    try:
        success, confidence = _read_value(feedback.value, pass_at)
    except VerdictError as error:
        return RunVerdict(run_id, why=f"feedback {key!r}: {error}", place=place, key=key, at=at)
    comment = feedback.comment or None
    verdict = Verdict(success, confidence, comment, tool.name, at, by_model=feedback.by_model)
    return RunVerdict(run_id, verdict, place=place, key=key, at=at)


def _read_value(value: object, pass_at: float) -> tuple[bool, float | None]:
    """Return success and, if a score states it, confidence."""
    if isinstance(value, bool | str) or value in (0, 1):
        return read_success(value), None
    if isinstance(value, int | float):
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise VerdictError(f"its score is {value:g}; only scores from 0 to 1 can be read")
        return value >= pass_at, float(value)
    raise VerdictError(f"its value is a {type(value).__name__}; only scores and words can be read")


def score_or_label(score: object, label: object) -> object:
    """Return a score from 0 to 1, or else the word that stands beside it, or else the score."""
    return score if is_unit(score) or label is None else label


@contextmanager
def tool_errors(title: str, *, address: str, credentials: str) -> Iterator[None]:
    """Raise what a tool's client raises as one clear error.

    Args:
        title: The name of the tool.
        address: The environment variable that says where the tool is.
        credentials: The environment variables that hold the key.

    Raises:
        KPError: Anything went wrong; the message has no key and no payload.
    """
    try:
        yield
    except KPError:
        raise
    except Exception as error:  # the clients raise many types
        status = status_of(error)
        if status in (401, 403):
            message = f"{title} refuses the key; check {credentials}"
        elif status is not None:
            message = f"{title} answered with status {status}; check {address}, or try again later"
        else:
            message = (
                f"{title} cannot be reached, or its answer cannot be read "
                f"({type(error).__name__}); check {address}"
            )
        raise KPError(message) from error


def one_by_one(
    read: Callable[[_Item], _Answer | None], items: Sequence[_Item]
) -> Iterator[_Answer]:
    """Yield what is read of each item, several at a time; leave out None.

    Raises:
        Exception: What the first read that fails raises.
    """
    if not items:
        return
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "kp_langchain feedback") as pool:
        # The first one alone: where nothing answers, one request is enough to learn it.
        first = read(items[0])
        for answer in (first, *pool.map(read, items[1:])):
            if answer is not None:
                yield answer
