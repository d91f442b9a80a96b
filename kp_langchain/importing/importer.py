"""Recorded runs on the way that a live run takes, into the store.

`FileReader` makes `RecordedRun`s of what files hold, in whatever format. `replay` sends one to a
recorder as the events of a live run, at the recorded times. `Importer` does that for many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from kp_langchain.errors import StoreError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.conventions import GENAI, LANGSMITH, OPENINFERENCE
from kp_langchain.importing.json_runs import (
    calls_of_run,
    is_conversation,
    run_of_conversation,
    runs_of_value,
)
from kp_langchain.importing.recorded_run import (
    Exceptions,
    ModelAnswer,
    RecordedCall,
    RecordedRun,
    Unusable,
    runs_of_calls,
)
from kp_langchain.importing.spans import SpanRuns, is_otlp
from kp_langchain.recording.assembly import assemble
from kp_langchain.recording.from_messages import replay_messages
from kp_langchain.recording.langchain_context import Start
from kp_langchain.recording.open_runs import OpenRun
from kp_langchain.recording.options import HandlerOptions
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_record import Ending, RunRecord
from kp_langchain.values import clip

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.embedding.embedder import Embedder, EmbedderIdentity
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore

_CONVENTIONS: Final = (OPENINFERENCE, LANGSMITH, GENAI)

Fate = Literal[
    "imported", "known", "paused", "cancelled", "unfinished", "incomplete", "empty", "failed"
]
_NS_PER_S = 1_000_000_000


class FileReader:
    """Reads the runs of some files, given the JSON values in them.

    Conversations are yielded as they come. The parts of other runs may be in any order, so all of
    them are collected, and `conclude` yields the runs.
    """

    def __init__(self) -> None:
        self._langsmith_calls: list[RecordedCall] = []
        self._spans = SpanRuns(_CONVENTIONS)

    def add(self, value: Any, place: str) -> Iterator[RecordedRun | Unusable]:
        """Add one value; yield the runs that are complete with it, and what cannot be used.

        Args:
            value: What a line holds, or a whole document.
            place: Where it stands.
        """
        if is_otlp(value):
            yield from self._spans.add(value, place)
        elif (runs := runs_of_value(value)) is not None:
            for part in (part for run in runs for part in calls_of_run(run, place)):
                if isinstance(part, Unusable):
                    yield part
                else:
                    self._langsmith_calls.append(part)
        elif is_conversation(value):
            try:
                yield run_of_conversation(value, place)
            except ValueError as error:
                yield Unusable(place, str(error))
        elif isinstance(value, list) and value and all(map(_may_hold_runs, value)):
            for item in value:
                yield from self.add(item, place)
        else:
            yield Unusable(place, "neither spans in OTLP JSON, LangSmith runs, nor messages")

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the runs whose parts were collected."""
        yield from runs_of_calls(self._langsmith_calls)
        yield from self._spans.conclude()


def _may_hold_runs(value: object) -> bool:
    return is_otlp(value) or (isinstance(value, dict) and is_conversation(value))


# ------------------------------------------------------------------ replay


class ReplayRecorder(Recorder):
    """A recorder whose clock shows the time at which the replayed event was recorded.

    Attributes:
        now_ns: That time, in nanoseconds since 1970; None if it is not known.
        objective: The task that the file states; "" to read it from the run's inputs.
        fate: What became of the run that ended last; "" if none did.
    """

    now_ns: int | None = None
    objective: str = ""
    fate: Literal["", "delivered", "paused", "cancelled", "empty"] = ""

    def _objective_of(self, inputs: object) -> str:
        return clip(self.objective, self.raw_text_chars) or super()._objective_of(inputs)

    def _begin(self, start: Start) -> OpenRun | None:
        run = super()._begin(start)
        if run is not None and run.parent is None:
            run.root.started_at = self._now() or run.root.started_at
        return run

    def now_s(self) -> float | None:
        """Return the recorded time of the present event."""
        return None if self.now_ns is None else self.now_ns / _NS_PER_S

    def _hand_over(self, root: RunRecord, ending: Ending) -> None:
        super()._hand_over(root, ending)
        if ending in ("paused", "cancelled"):
            self.fate = ending
        else:
            self.fate = "delivered" if root.timeline or root.resumed_thread else "empty"

    def note_external_traces(self, run_id: UUID, traces: Mapping[str, ExternalTrace]) -> None:
        """Note where other tools recorded a run that is under way."""
        run = self._open.get(run_id)
        if run is not None:
            run.root.external_traces.update(traces)

    def note_tools(self, run_id: UUID, tools: Sequence[Any]) -> None:
        """Note which tools an agent under way has, where its models do not say it."""
        run = self._open.get(run_id)
        if run is not None and tools:
            run.root.note_tools(list(tools), "")

    def _now(self) -> datetime | None:
        return None if self.now_ns is None else utc_time(self.now_ns)


def utc_time(time_ns: int) -> datetime | None:
    """Return a time in nanoseconds since 1970; None if no calendar has it."""
    try:
        return datetime.fromtimestamp(time_ns / _NS_PER_S, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def replay(run: RecordedRun, recorder: ReplayRecorder) -> None:
    """Send a recorded run to a recorder.

    Args:
        run: The run.
        recorder: Where its events go, at their times.
    """
    recorder.objective, recorder.fate = run.objective, ""
    if not run.calls:
        _replay_messages(run, recorder)
        return
    exceptions = Exceptions()
    root = run.calls[0]
    if run.domain:
        root.metadata = {**root.metadata, "kp_domain": run.domain}
    for call, is_start in _events(run.calls):
        recorder.now_ns = call.started_ns if is_start else call.ended_ns
        if is_start:
            _start(call, recorder)
            if call is root:
                recorder.note_external_traces(call.id, run.external_traces)
        elif call.error is None:
            _end(call, recorder)
        else:
            _fail(call, exceptions[call.error], recorder)


def _replay_messages(run: RecordedRun, recorder: ReplayRecorder) -> None:
    def report_verdict() -> None:
        if run.verdict is not None:
            recorder.report_outcome(run.run_id, run.verdict)

    recorder.now_ns = None
    metadata = {**run.metadata, "kp_domain": run.domain} if run.domain else run.metadata
    start = Start(run.run_id, None, run.name, metadata, run.tags)
    replay_messages(list(run.messages), recorder, start, report_verdict)


def _events(calls: Sequence[RecordedCall]) -> list[tuple[RecordedCall, bool]]:
    """Return each call's start, and its end unless it has none, in the order of time.

    At one time, the order of a walk through the tree counts: what is inside begins later and ends
    earlier.
    """
    walk: list[tuple[RecordedCall, bool]] = []
    around: list[RecordedCall] = []
    for call in calls:
        while around and around[-1].id != call.parent_id:
            walk.append((around.pop(), False))
        walk.append((call, True))
        around.append(call)
    walk += [(call, False) for call in reversed(around)]
    starts_ns: dict[UUID | None, int] = {}
    events: list[tuple[int, RecordedCall, bool]] = []
    for call, is_start in walk:
        if is_start:
            # Clocks of several machines differ; nothing can begin before what it is part of.
            starts_ns[call.id] = max(call.started_ns, starts_ns.get(call.parent_id, 0))
            events.append((starts_ns[call.id], call, True))
        elif call.ended_ns is not None:
            events.append((max(call.ended_ns, starts_ns[call.id]), call, False))
    events.sort(key=lambda event: event[0])
    return [(call, is_start) for _, call, is_start in events]


def _start(call: RecordedCall, recorder: ReplayRecorder) -> None:
    start = Start(call.id, call.parent_id, call.name, call.metadata, call.tags)
    match call.kind:
        case "chain":
            recorder.chain_started(start, call.inputs)
            recorder.note_tools(call.id, call.tools)
        case "model":
            recorder.model_started(start, call.inputs, list(call.tools))
        case "tool":
            recorder.tool_started(start, call.inputs, call.tool_call_id)
        case "retriever":
            recorder.retriever_started(start, call.inputs)


def _end(call: RecordedCall, recorder: ReplayRecorder) -> None:
    if call.kind == "chain":
        recorder.chain_ended(call.id, call.output, call.inputs)
    elif isinstance(call.output, ModelAnswer):
        answer = call.output
        recorder.model_answered(
            call.id, answer.message, answer.text, answer.info, dict(answer.details)
        )
    else:
        recorder.tool_answered(call.id, call.output)


def _fail(call: RecordedCall, exception: BaseException, recorder: ReplayRecorder) -> None:
    if call.kind == "chain":
        recorder.chain_failed(call.id, exception, call.inputs)
        return
    partial = call.output.message if isinstance(call.output, ModelAnswer) else None
    recorder.call_failed(call.id, exception, partial)


# ------------------------------------------------------------------ import


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a recorded run.

    Attributes:
        run: The run.
        fate: `imported`: it is in the store now. `known`: it was there before. `paused`: the file
            does not show how it went on, or shows that in another run, to which it belongs.
            `cancelled`, `unfinished`: it did not come to an end. `incomplete`: it is a part of a
            run whose root is not in the files. `empty`: neither a model nor a tool was called.
            `failed`: it cannot be recorded or scored; a warning says why.
        scored: The scored run, if it was imported.
    """

    run: RecordedRun
    fate: Fate
    scored: ScoredTrace | None = None


class Importer:
    """Records, redacts, scores, gates and stores runs as a handler would have.

    Args:
        store: The store.
        settings: The settings.
        domain: The domain of runs that name none.
        agent_id: The agent that ran; by default that of the settings.
        scorer: The scorer; by default that of the store.

    Raises:
        ConfigError: An argument or setting cannot be used.
    """

    def __init__(
        self,
        store: TraceStore,
        settings: Settings,
        *,
        domain: str = "default",
        agent_id: str | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        options = HandlerOptions(
            domain=domain,
            scorer=scorer,
            store=store,
            agent_id=agent_id,
            on_scored=self._receive,
            send_scores_to=(),
        )
        # What a paused run recorded stays in memory: its resumption is in the same file, or nowhere
        # that a later import would find again.
        memory_only = settings.model_copy(update={"paused_days": 0.0})
        self._recorder, self._engine, self._context = assemble(options, memory_only, ReplayRecorder)
        self._store = store
        self._scored: dict[UUID, ScoredTrace] = {}
        self._is_ready = False

    def run(self, runs: Iterable[RecordedRun]) -> Iterator[Imported]:
        """Import runs, and yield what became of each when it is stored, before the next is read.

        Each is judged beside all runs before it, however fast they come.

        Args:
            runs: The runs, in the order in which they began.

        Raises:
            StoreError: The store cannot be read or written.
        """
        if not self._is_ready:
            self._is_ready = True
            self._wait()  # what an interrupted import left unscored is scored now, and known then
        run_ids: set[UUID] = set()
        for run in runs:
            if run.run_id in run_ids or self.is_known(run):
                yield Imported(run, "known")
            else:
                run_ids.add(run.run_id)
                yield self._import(run)

    def close(self) -> None:
        """Forget the runs that paused."""
        self._recorder.close()

    def use_embedder(self, embedder: Embedder) -> EmbedderIdentity:
        """Have the scorer of the store embed with another embedder, and return its identity.

        Raises:
            MissingExtraError: No package that runs its model is installed.
            EmbedderError: Its model cannot be found, downloaded or loaded.
        """
        self._context.scorer = self._engine.windows.scorer(embedder=embedder)
        return self._context.scorer.identity()

    def is_known(self, run: RecordedRun) -> bool:
        """Return whether a run is in the store."""
        return self._store.journal.has_run(run.run_id) or any(
            external.span_id is not None and self._store.external_traces.has(tool, external)
            for tool, external in run.external_traces.items()
        )

    def _import(self, run: RecordedRun) -> Imported:
        failed_before = self._failed
        fate = self._record(run)
        self._wait()
        scored = self._scored.pop(run.run_id, None)
        if fate == "imported" and scored is None:
            fate = "failed" if self._failed > failed_before else "empty"
        return Imported(run, fate, scored)

    @property
    def _failed(self) -> int:
        return self._recorder.counters.counts().get("failed", 0)

    def _record(self, run: RecordedRun) -> Fate:
        if run.is_incomplete:
            return "incomplete"
        self._engine.prepare(self._context)
        replay(run, self._recorder)
        if self._recorder.open_count:
            self._recorder.close()
            return "unfinished"
        fate = self._recorder.fate
        return "imported" if fate == "delivered" else fate or "empty"

    def _wait(self) -> None:
        if not self._engine.wait(None, self._context):
            raise StoreError(f"the runs cannot be written into {self._store.location}")

    def _receive(self, scored: ScoredTrace) -> None:
        self._scored[scored.run_id] = scored
