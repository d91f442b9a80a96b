"""Replaying a recorded run to a recorder, as the events of a live run, at the recorded times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.errors import Exceptions
from kp_langchain.importing.recorded_run import ModelAnswer, RecordedCall, RecordedRun
from kp_langchain.recording.bounds import clip
from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.from_messages import replay_messages
from kp_langchain.recording.langchain_context import Start
from kp_langchain.recording.open_runs import OpenRun
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_record import Ending, RunRecord

_NS_PER_S = 1_000_000_000


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
        return clip(self.objective, self._raw_text_chars) or super()._objective_of(inputs)

    def _begin(self, start: Start) -> OpenRun | None:
        entry = super()._begin(start)
        if entry is not None and entry.parent is None:
            entry.root.started_at = self._now() or entry.root.started_at
        return entry

    def _begin_call(self, entry: OpenRun, kind: CallKind, start: Start) -> Call:
        call = super()._begin_call(entry, kind, start)
        if self.now_ns is not None:
            call.started_s = self.now_ns / _NS_PER_S
        return call

    def _end_call(self, run_id: UUID) -> tuple[OpenRun, Call] | None:
        ended_call = super()._end_call(run_id)
        if ended_call is not None:
            call = ended_call[1]
            call.latency_ms = (
                None
                if self.now_ns is None
                else max(0.0, self.now_ns / _NS_PER_S - call.started_s) * 1000
            )
        return ended_call

    def _hand_over(self, root: RunRecord, ending: Ending) -> None:
        super()._hand_over(root, ending)
        if ending in ("paused", "cancelled"):
            self.fate = ending
        else:
            self.fate = "delivered" if root.timeline or root.resumed_thread else "empty"

    def abandon_open(self) -> None:
        """Abandon the run that has not ended."""
        self.close()

    def note_external_traces(self, run_id: UUID, traces: Mapping[str, ExternalTrace]) -> None:
        """Note where other tools recorded a run that is under way."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.external_traces.update(traces)

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
    for call, is_start in _events(run.calls):
        recorder.now_ns = call.started_ns if is_start else call.ended_ns
        if is_start:
            _start(call, recorder, run)
            if call is root:
                recorder.note_external_traces(call.id, run.external_traces)
            continue
        if call.error is None:
            _end(call, recorder)
        else:
            _fail(call, exceptions.of(call.error), recorder)


def _replay_messages(run: RecordedRun, recorder: ReplayRecorder) -> None:
    def report_verdict() -> None:
        if run.verdict is not None:
            recorder.report_outcome(run.run_id, run.verdict)

    recorder.now_ns = run.started_ns
    metadata = {**run.metadata, "kp_domain": run.domain} if run.domain else run.metadata
    start = Start(run.run_id, None, run.name, metadata, run.tags)
    replay_messages(list(run.messages), recorder, start, report_verdict)


def _events(calls: Sequence[RecordedCall]) -> Iterator[tuple[RecordedCall, bool]]:
    """Yield each call's start, and its end unless it has none, in the order of time.

    At one time, the calls' own order counts: what is inside begins later and ends earlier.
    """
    by_id = {call.id: at for at, call in enumerate(calls)}
    starts_ns: list[int] = []
    for call in calls:
        parent = by_id.get(call.parent_id) if call.parent_id is not None else None
        # Clocks of several machines differ; nothing can begin before what it is part of.
        earliest_ns = call.started_ns if parent is None else starts_ns[parent]
        starts_ns.append(max(call.started_ns, earliest_ns))
    last_inside = list(range(len(calls)))  # the last call that is part of each
    for at in reversed(range(1, len(calls))):
        parent = by_id.get(calls[at].parent_id)  # type: ignore[arg-type]
        if parent is not None:
            last_inside[parent] = max(last_inside[parent], last_inside[at])
    events: list[tuple[int, tuple[int, ...], RecordedCall, bool]] = []
    for at, call in enumerate(calls):
        # Where a walk through the tree comes by: an end stands behind all that is inside.
        events.append((starts_ns[at], (at, 0, 0), call, True))
        if call.ended_ns is not None:
            end_ns = max(call.ended_ns, starts_ns[at])
            events.append((end_ns, (last_inside[at], 1, -at), call, False))
    events.sort(key=lambda event: event[:2])
    return ((call, is_start) for _, _, call, is_start in events)


def _start(call: RecordedCall, recorder: ReplayRecorder, run: RecordedRun) -> None:
    metadata = call.metadata
    if call is run.calls[0] and run.domain:
        metadata = {**metadata, "kp_domain": run.domain}
    start = Start(call.id, call.parent_id, call.name, metadata, call.tags)
    match call.kind:
        case "chain":
            recorder.chain_started(start, call.inputs)
        case "model":
            recorder.model_started(start, call.inputs)
        case "tool":
            recorder.tool_started(start, call.inputs, call.tool_call_id)
        case "retriever":
            recorder.retriever_started(start, call.inputs)


def _end(call: RecordedCall, recorder: ReplayRecorder) -> None:
    if call.kind == "chain":
        recorder.chain_ended(call.id, call.output, call.inputs)
    elif call.kind == "model":
        _end_model(call, recorder)
    else:
        recorder.tool_answered(call.id, call.output)


def _end_model(call: RecordedCall, recorder: ReplayRecorder) -> None:
    answer = call.output if isinstance(call.output, ModelAnswer) else ModelAnswer(None)
    recorder.model_answered(call.id, answer.message, answer.text, answer.info)


def _fail(call: RecordedCall, exception: BaseException, recorder: ReplayRecorder) -> None:
    if call.kind == "chain":
        recorder.chain_failed(call.id, exception, call.inputs)
        return
    partial = call.output.message if isinstance(call.output, ModelAnswer) else None
    recorder.call_failed(call.id, exception, partial)
