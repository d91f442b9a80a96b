"""What all tracing tools share: the scores that they are sent, and feedback there as verdicts.

A tool's own file says how to find its trace of a run, how to send scores, and how to read feedback.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import UUID, uuid5

from kp_langchain.errors import ConfigError, KPError, MissingExtraError, VerdictError, status_of
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.recording.outcome import read_success
from kp_langchain.recording.score_receivers import new_receiver
from kp_langchain.redaction import redact
from kp_langchain.verdict import RunVerdict, Verdict, is_unit

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store import TraceStore

__all__ = ["RunVerdict", "ToolFeedback", "TracingTool", "feedback_tool", "verdicts_from"]

FEEDBACK_TOOLS = ("langsmith", "langfuse", "phoenix", "opik", "mlflow")
"""The names of the tools that feedback is read from."""

VERDICT_WANTED = "kp_verdict_wanted"
"""What marks a trace that is to get a verdict, in tools without annotation queues."""

_PREFIX = "kp_"  # of the names of all scores of this package
_NAMESPACE = UUID("3f2c1c7e-0d0b-5d3a-9a52-6b1f8f0f5a0e")
_RUNS_AT_ONCE = 500
_REQUESTS_AT_ONCE = 8

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


# ------------------------------------------------------------------ scores


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """One number about a run.

    Attributes:
        id: The same whenever this number of this run is sent, so that a later one replaces it.
        name: `kp_quality_score`, `kp_worth`, or `kp_` and the name of a dimension.
        value: 0 to 1.
        label: What the gate decided: `kept`, `below_threshold` or `twin`; None for a dimension.
        comment: How the number came about. It has numbers and the names of rules, no text of the
            run.
    """

    id: UUID
    name: str
    value: float
    label: str | None
    comment: str


def run_scores(scored: ScoredTrace) -> list[RunScore]:
    """Return the score of a run, each of its dimensions, and its worth if there is one."""
    breakdown, decision = scored.breakdown, scored.decision
    trace_id = scored.stored_id or scored.trace.id
    scores: list[RunScore] = []

    def add(name: str, value: float, label: str | None, comment: str) -> None:
        name = f"{_PREFIX}{name}"
        id_ = uuid5(_NAMESPACE, f"{trace_id} {name}")
        scores.append(RunScore(id=id_, name=name, value=value, label=label, comment=comment))

    decision_text = f"{decision} (threshold {scored.threshold:.2f} of {scored.gate})"
    add("quality_score", breakdown.total, decision, f"{decision_text}; {breakdown.line()}")
    if scored.worth is not None:
        add("worth", scored.worth, decision, decision_text)
    for name, part in breakdown.dimensions.items():
        # Redacted, because where a verdict came from is a text that a program chose.
        add(name, part.value, None, f"{redact(part.why).value}; weight {part.weight:.2f}")
    return scores


# ------------------------------------------------------------------ one tool


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


class TracingTool(ABC):
    """A tool that records runs itself, shows their scores, and in which people give feedback.

    Args:
        client: The tool's client; by default the one that its tracer uses, or one that the
            environment configures.

    Attributes:
        name: Its name in settings and in the store, and that of the extra.
        title: Its name as people write it.
        package: The module that is imported when a receiver is made.
        address: The environment variable that says where the tool is.
        credentials: The environment variables that hold the key.
        has_run_ids: Whether its id of a trace is LangChain's id of the root run.
        asks_by: What is done with a run that is to get a verdict, in words.

    Raises:
        MissingExtraError: The tool's package is not installed.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str]
    address: ClassVar[str]
    credentials: ClassVar[str]
    has_run_ids: ClassVar[bool] = False
    asks_by: ClassVar[str] = "put into the annotation queue {queue!r}"

    def __init__(self, client: Any = None) -> None:
        try:
            self._package: Any = import_module(self.package)
        except Exception as error:  # a package that does not fit the others raises anything
            raise MissingExtraError(
                f"{self.package} cannot be imported ({type(error).__name__}: {error}); install it: "
                f"pip install 'kp-langchain[{self.name}]'"
            ) from error
        self._client = client
        self._clients: dict[tuple[object, ...], Any] = {}

    @abstractmethod
    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace that the tool's tracer has of a run; see `ScoreReceiver`."""

    @abstractmethod
    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores of a run, or replace those that were sent before.

        Raises:
            KPError: The tool does not take them, and would not take them a second time either.
            Exception: It cannot be reached or refuses them, with its client's error.
        """

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the feedback on some traces. Send their ids and the key, and nothing else.

        Args:
            traces: Some hundreds.
            key: Only feedback of this name, as far as the tool can choose; None for all.

        Raises:
            KPError: The tool cannot be reached, refuses the key, or cannot be understood.
        """
        with self._clear_errors():
            yield from self._read_feedback(traces, key)

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
        with self._clear_errors():
            return self._ask_for_verdicts(traces, queue)

    @abstractmethod
    def _read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]: ...

    @abstractmethod
    def _ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int: ...

    def _own_client(self, make: Callable[..., Any], *place: object) -> Any:
        """Return a client that is made once, for a place in this process.

        A forked child must not use its parent's connections.
        """
        key = (os.getpid(), *place)
        if key not in self._clients:
            self._clients[key] = make()
        return self._clients[key]

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Raise what the tool's client raises as one `KPError` without key or payload."""
        try:
            yield
        except KPError:
            raise
        except Exception as error:  # the clients raise many types
            status = status_of(error)
            if status in (401, 403):
                message = f"{self.title} refuses the key; check {self.credentials}"
            elif status is not None:
                message = (
                    f"{self.title} answered with status {status}; check {self.address}, or try "
                    "again later"
                )
            else:
                message = (
                    f"{self.title} cannot be reached, or its answer cannot be read "
                    f"({type(error).__name__}); check {self.address}"
                )
            raise KPError(message) from error


def several_at_once(call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> Iterator[_Answer]:
    """Yield what a call returns for each item: the first one alone, then several at a time.

    Where nothing answers, one request is enough to learn it.

    Raises:
        Exception: What the first call that fails raises.
    """
    if not items:
        return
    yield call(items[0])
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "kp_langchain tools") as pool:
        try:
            answers = pool.map(call, items[1:])
        except RuntimeError:  # the interpreter is ending, and starts no threads
            answers = map(call, items[1:])
        yield from answers


def score_or_label(score: object, label: object) -> object:
    """Return a score from 0 to 1, or else the word that stands beside it, or else the score."""
    return score if is_unit(score) or label is None else label


# ------------------------------------------------------------------ verdicts


def feedback_tool(name: str) -> TracingTool:
    """Return the tool of a name, as the environment configures it.

    Raises:
        MissingExtraError: Its package is not installed.
    """
    tool: TracingTool = new_receiver(name)  # type: ignore[assignment]
    return tool


def verdicts_from(
    tool: TracingTool,
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
            if one.key.startswith(_PREFIX) or (key is not None and one.key != key):
                continue
            if since is not None and one.at < since:
                continue
            runs = _runs_meant(one, runs_in_trace(one.trace_id))
            is_clear = len({external.span_id for external in runs.values()}) <= 1
            for trace_id in runs if is_clear else list(runs)[:1]:
                if trace_id in page:  # the others are yielded with the runs of their own page
                    yield _run_verdict(one, tool, trace_id, pass_at, 1 if is_clear else len(runs))


def traces_in(store: TraceStore, tool: TracingTool) -> Iterator[tuple[str, ExternalTrace]]:
    """Yield the trace id of each run of a store that a tool has, and where the tool has it.

    Raises:
        StoreError: The store cannot be read.
    """
    if not tool.has_run_ids:
        return iter(store.external_traces.of_tool(tool.name))
    run_ids = store.external_traces.run_ids()
    return ((trace_id, ExternalTrace(run_id, run_id)) for trace_id, run_id in run_ids)


def trace_of(store: TraceStore, tool: TracingTool, trace_id: str) -> ExternalTrace | None:
    """Return where a tool has a run; None if it has none of it, or the run is gone.

    Raises:
        StoreError: The store cannot be read.
    """
    if not tool.has_run_ids:
        return store.external_traces.of_run(trace_id).get(tool.name)
    run = store.get(trace_id)
    return None if run is None else ExternalTrace(run.run_id, run.run_id)


def check_pass_at(pass_at: object) -> None:
    """Raise ConfigError unless `pass_at` is a number from 0 to 1."""
    if not is_unit(pass_at):
        raise ConfigError(f"pass_at is {pass_at!r}; give a number from 0 to 1")


def _runs_by_trace(
    page: Mapping[str, ExternalTrace], store: TraceStore, tool: TracingTool
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


def _run_verdict(
    feedback: ToolFeedback, tool: TracingTool, run_id: str, pass_at: float, runs: int
) -> RunVerdict:
    """Return what a feedback says of a run, or why that cannot be read."""
    key, at = feedback.key, feedback.at
    place = f"{tool.title}, trace {feedback.trace_id}"
    if runs > 1:
        why = f"feedback {key!r} is on a trace with {runs} runs; give it on the span of one"
        return RunVerdict(run_id, why=why, place=place, key=key, at=at)
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
