"""What all tracing tools share: the scores that they are sent, and feedback there as verdicts.

A tool's own file says how to find its trace of a run, how to write scores onto it, and how to read
feedback on it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import UUID, uuid5

from kp_langchain.errors import (
    NOT_FOUND,
    ConfigError,
    KPError,
    MissingExtraError,
    VerdictError,
    status_of,
)
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.recording.langchain_context import current_handlers
from kp_langchain.recording.outcome import read_success
from kp_langchain.recording.score_receivers import new_receiver
from kp_langchain.redaction import redact
from kp_langchain.verdict import RunVerdict, Verdict, is_unit

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store import TraceStore

__all__ = ["RunVerdict", "ToolFeedback", "TracingTool", "feedback_tool", "verdicts_from"]

_PREFIX = "kp_"  # of the names of all scores of this package
_NAMESPACE = UUID("3f2c1c7e-0d0b-5d3a-9a52-6b1f8f0f5a0e")
_REQUESTS_AT_ONCE = 8

_Item = TypeVar("_Item")


# ------------------------------------------------------------------ scores


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """One number about a run.

    Attributes:
        id: The same whenever this number of this run is sent, so that a later one replaces it.
        name: `kp_quality_score`, `kp_worth`, or `kp_` and the name of a
            dimension.
        value: 0 to 1.
        label: What the gate decided: `kept`, `below_threshold` or `twin`; None for a dimension.
        comment: How the number came about. It has numbers and the names of rules, no text of the
            run.
        at: When the run began.
    """

    id: UUID
    name: str
    value: float
    label: str | None
    comment: str
    at: datetime


def run_scores(scored: ScoredTrace) -> list[RunScore]:
    """Return the score of a run, each of its dimensions, and its worth if there is one."""
    breakdown, decision = scored.breakdown, scored.decision
    decision_text = f"{decision} (threshold {scored.threshold:.2f} of {scored.gate})"
    comment = f"{decision_text}; {breakdown.line()}"
    scores = [_score(scored, "quality_score", breakdown.total, comment, decision)]
    if scored.worth is not None:
        scores.append(_score(scored, "worth", scored.worth, decision_text, decision))
    for name, part in breakdown.dimensions.items():
        # Redacted, because where a verdict came from is a text that a program chose.
        comment = f"{redact(part.why).value}; weight {part.weight:.2f}"
        scores.append(_score(scored, name, part.value, comment))
    return scores


def _score(
    scored: ScoredTrace, name: str, value: float, comment: str, label: str | None = None
) -> RunScore:
    name = f"{_PREFIX}{name}"
    return RunScore(
        id=uuid5(_NAMESPACE, f"{scored.stored_id or scored.trace.id} {name}"),
        name=name,
        value=value,
        label=label,
        comment=comment,
        at=scored.trace.metadata.created_at,
    )


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
        tracer: Module and class of the callback handler by which it records runs.

    Raises:
        MissingExtraError: The tool's package is not installed.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str]
    address: ClassVar[str]
    credentials: ClassVar[str]
    tracer: ClassVar[tuple[str, str]]

    def __init__(self, client: Any = None) -> None:
        try:
            self._package: Any = import_module(self.package)
        except Exception as error:  # a package that does not fit the others raises anything
            raise MissingExtraError(
                f"{self.package} cannot be imported ({type(error).__name__}: {error}); install it: "
                f"pip install 'kp-langchain[{self.name}]'"
            ) from error
        self._client = client

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace that the tool's tracer has of a run; see `ScoreReceiver`."""
        for tracer in self._tracers(root_id):
            if (external := self._trace_of(tracer, root_id, parent_id)) is not None:
                return external
        return None

    def _tracers(self, root_id: UUID) -> Iterable[Any]:  # noqa: ARG002
        """Return what may have recorded a run: the tool's callback handlers on it."""
        return current_handlers(*self.tracer)

    @abstractmethod
    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace that one of `_tracers` has of the run; None if it exports none."""

    @abstractmethod
    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write scores onto a trace, or replace those that were written before.

        Raises:
            KPError: The tool refuses them for good; trying again cannot help.
            Exception: It cannot be reached or refuses them, with its client's error.
        """

    @abstractmethod
    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the feedback on traces; raise what the client raises.

        Args:
            traces: The traces.
            key: Only feedback of this name, as far as the tool can choose; None for all.
        """

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores of a run, or replace those that were sent before.

        Raises:
            KPError, Exception: As for `write_scores`.
        """
        self.write_scores(run_scores(scored), external)

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None = None
    ) -> Iterator[ToolFeedback]:
        """Yield the feedback on some traces. Send their ids and the key, and nothing else.

        Args:
            traces: The traces.
            key: Only feedback of this name, as far as the tool can choose; None for all.

        Raises:
            KPError: The tool cannot be reached, refuses the key, or cannot be understood.
        """
        with self._clear_errors():
            yield from self._feedback_on(traces, key)

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
                message = f"refuses the key; check {self.credentials}"
            elif status is not None:
                message = f"answered with status {status}; check {self.address}, or try later"
            else:
                message = (
                    f"cannot be reached, or its answer cannot be read ({type(error).__name__}); "
                    f"check {self.address}"
                )
            raise KPError(f"{self.title} {message}") from error


def read_each(read: Callable[[_Item], Any], items: Iterable[_Item]) -> Iterator[tuple[_Item, Any]]:
    """Yield each item with what a client returns for it; skip those the tool lacks.

    Args:
        read: Returns what the client has of an item; several calls are made at a time.
        items: Ids of what is read, in order.

    Raises:
        Exception: What the first call that fails otherwise raises.
    """

    def read_if_there(item: _Item) -> Any:
        try:
            return read(item)
        except Exception as error:
            if status_of(error) == NOT_FOUND:  # it was deleted there, or never arrived
                return None
            raise

    items = list(items)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "kp_langchain tools") as pool:
        for item, answer in zip(items, pool.map(read_if_there, items), strict=True):
            if answer is not None:
                yield item, answer


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
        store: The store. Only runs are asked about of which it knows the tool's trace: their scores
            were sent to the tool, or they were imported from it.
        key: Only feedback of this name; None for all.
        since: Only feedback that was given or changed at this time or later.
        pass_at: The lowest score of a run that succeeded, 0 to 1.

    Yields:
        Verdicts, or why one cannot be read. `run_id` is the id of the run's trace.

    Raises:
        ConfigError: `pass_at` is outside 0 to 1.
        KPError: The store cannot be read; or the tool cannot be reached, or refuses the key.
    """
    if not is_unit(pass_at):
        raise ConfigError(f"pass_at is {pass_at!r}; give a number from 0 to 1")
    known_runs = store.external_traces.of_tool(tool.name)
    by_trace: dict[str, dict[str, ExternalTrace]] = {}
    for trace_id, external in known_runs:
        by_trace.setdefault(external.trace_id, {})[trace_id] = external
    for feedback in tool.read_feedback([external for _, external in known_runs], key):
        is_other_key = key is not None and feedback.key != key
        if is_other_key or feedback.key.startswith(_PREFIX):
            continue
        if since is None or feedback.at >= since:
            yield from _run_verdicts(feedback, tool, by_trace.get(feedback.trace_id, {}), pass_at)


def _run_verdicts(
    feedback: ToolFeedback, tool: TracingTool, runs: Mapping[str, ExternalTrace], pass_at: float
) -> Iterator[RunVerdict]:
    """Yield what a feedback says of the runs of its trace, or why that cannot be read."""
    key, at = feedback.key, feedback.at
    place = f"{tool.title}, trace {feedback.trace_id}"
    if feedback.span_id is not None:
        runs = {id_: one for id_, one in runs.items() if one.span_id == feedback.span_id}
    else:
        runs = {id_: one for id_, one in runs.items() if not one.is_part} or runs
    if len({external.span_id for external in runs.values()}) > 1:
        why = f"feedback {key!r} is on a trace with {len(runs)} runs; give it on the span of one"
        yield RunVerdict(next(iter(runs)), why=why, place=place, key=key, at=at)
        return
    for run_id in runs:  # several if several handlers recorded the run
        try:
            success, confidence = _read_value(feedback.value, pass_at)
        except VerdictError as error:
            yield RunVerdict(run_id, why=f"feedback {key!r}: {error}", place=place, key=key, at=at)
            continue
        comment = feedback.comment or None
        verdict = Verdict(success, confidence, comment, tool.name, at, by_model=feedback.by_model)
        yield RunVerdict(run_id, verdict, place=place, key=key, at=at)


def _read_value(value: object, pass_at: float) -> tuple[bool, float | None]:
    """Return success and, if a score states it, confidence."""
    if isinstance(value, bool | str) or value in (0, 1):
        return read_success(value), None
    if isinstance(value, int | float):
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise VerdictError(f"its score is {value:g}; only scores from 0 to 1 can be read")
        return value >= pass_at, float(value)
    raise VerdictError(f"its value is a {type(value).__name__}; only scores and words can be read")
