"""The open runs that one handler sees: which root each belongs to, and how root runs end.

They live inside the user's agent, in whatever thread an event comes from, so there is no lock. The
state is a few dicts and sets that are only ever changed by single operations which CPython makes
atomic (`setdefault`, `pop`, `add`). So it is also safe when the garbage collector closes a stream,
and thereby sends an event, in the middle of another event, and when the process forks.

A run is claimed by `setdefault` at its start and by `pop` at its end. Whoever loses the claim, such
as a handler that was passed twice, has nothing left to do. An event of a run that is not open is
ignored: it ended, its root did, or it was open when the process forked and belongs to the parent.

A graph that pauses ends its root run. The run that resumes it is a root run of its own, which is
joined to what the paused one recorded when it has ended; see `pauses`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain._forksafe import leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.answers import (
    answer_in,
    objective_in,
    parsing_error_in,
    structured_response_in,
)
from kp_langchain.recording.bounds import raw_text_chars
from kp_langchain.recording.calls import Call, error_text
from kp_langchain.recording.langchain_context import (
    Start,
    ambient_run_id,
    thread_id_in,
)
from kp_langchain.recording.outcome import confidence_in
from kp_langchain.recording.run_record import Ending, RunRecord
from kp_langchain.recording.values import is_command
from kp_langchain.values import MAX_ITEMS, clip

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.score_receivers import ScoreReceiver

_MAX_OVER = 2000
# Chains between a tool and what it calls, such as those of `chain.as_tool()`.
_MAX_CHAINS = 8
# LangGraph's name for an update of a thread's state, which resumes nothing.
_STATE_UPDATE = "UpdateState"
# A run that searches for examples in a loop: only the texts of the first are recognised.
_MOST_EXAMPLES = 20


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run that has not ended.

    Attributes:
        run_id: LangChain's id of it.
        root: The record of the root run that it belongs to.
        parent: The run that it is part of; None for a root run.
        metadata: Its metadata.
        errors_before: Exceptions that were recorded when it began.
        call: The call that it is, of a model, tool or retriever; None for a chain.
        name: The name of a chain.
        inner: Up to two of the calls that a tool or retriever makes itself, not through a graph.
        inputs: What a root chain was given, in the form of `last_items`.
        task: LangGraph's name for one execution of a node, the same for all its attempts.
        is_interrupted: Whether it has paused, or something directly below it.
    """

    run_id: UUID
    root: RunRecord
    parent: OpenRun | None
    metadata: Mapping[str, Any]
    errors_before: int
    call: Call | None = None
    name: str = ""
    inner: tuple[Call, ...] = ()
    inputs: object = None
    task: str = ""
    is_interrupted: bool = False

    @property
    def parent_key(self) -> object:
        """What all attempts at one call have in common: what they are part of."""
        return None if self.parent is None else self.parent.run_id

    @property
    def has_paused(self) -> bool:
        """Whether a root run has paused, although it has not ended."""
        return self.is_interrupted or self.root.is_interrupted

    def note_pause(self) -> None:
        """Note where a run paused, for the record of its root."""
        self.root.thread_id = thread_id_in(self.metadata) or self.root.thread_id

    def outer_call(self) -> OpenRun | None:
        """Return the tool or retriever that makes a call; None if a graph inside it does."""
        outer = self.parent
        for _ in range(_MAX_CHAINS):
            if outer is None or outer.task != self.task:
                return None
            if outer.call is not None:
                return outer if outer.call.kind != "model" else None
            outer = outer.parent
        return None


class OpenRuns:
    """The runs that one handler sees, as long as they are open, and the fates of root runs.

    Args:
        settings: Bounds how much is recorded.
        counters: Counts the fates of runs.
        receive: Takes each root run that ends or pauses, in the thread of its last event: it must
            not wait.
        prepare: Called when a root run begins.
        keeps_output: Whether a record holds on to what the root run returned.
        objective_of: The user's function that reads the objective from a root run's inputs, before
            the usual places are searched.
        receivers: Tools that are sent scores; where they record a root run is looked up.

    Attributes:
        raw_text_chars: Characters kept of one text or input until it is redacted: a margin more on
            both sides of a cut.
    """

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        receive: Callable[[RunRecord], object],
        *,
        prepare: Callable[[], object] = lambda: None,
        keeps_output: bool = False,
        objective_of: Callable[[Any], str | None] | None = None,
        receivers: Sequence[ScoreReceiver] = (),
    ) -> None:
        self.settings = settings
        self.counters = counters
        self.raw_text_chars = raw_text_chars(settings)
        self._receive, self._prepare = receive, prepare
        self._keeps_output = keeps_output
        self._given_objective = objective_of
        self._receivers = receivers
        self._open: dict[UUID, OpenRun] = {}
        self._roots: dict[RunRecord, bool] = {}  # in the order in which they began
        # The roots that ended last, and (True) the runs inside them that may go on.
        self._over: dict[UUID, bool] = {}
        self._next_sweep_s = 0.0
        leave_in_child(self)

    # ---------------------------------------------------------------- how runs begin and end

    def now_s(self) -> float | None:
        """Return the time of the present event in seconds; None if that is not known."""
        return time.perf_counter()

    def _begin(self, start: Start) -> OpenRun | None:
        """Claim a run; return None if it is open already or belongs to a root that is over.

        A run whose parent is unknown is a root: the handler is attached to that run only.
        """
        run_id, parent_id, metadata = start.run_id, start.parent_id, start.metadata
        parent = self._open.get(parent_id)  # type: ignore[arg-type]
        if parent is None:
            # LangChain drops the parent when it tries a fallback, but its context still names it.
            outer_id = ambient_run_id()
            if parent_id in self._over or self._over.get(outer_id):  # type: ignore[arg-type]
                self._note_ended(run_id)
                return None
            if outer_id != run_id:
                parent = self._open.get(outer_id)  # type: ignore[arg-type]
        root = RunRecord(self.settings, self.counters, start) if parent is None else parent.root
        run = OpenRun(run_id, root, parent, metadata, len(root.error_ids))
        if self._open.setdefault(run_id, run) is not run:
            return None
        root.open_runs.add(run)
        if parent is None:
            root.started_s = self.now_s()
            self._roots[root] = True
            self.counters.add("runs")
            self._prepare()
            self._make_room()
        else:
            root.last_seen_s = time.monotonic()
            if self._receivers:
                root.find_traces(self._receivers, parent.run_id)
        if root.is_over:  # it ended in another thread just now
            self._open.pop(run_id, None)
            self._note_ended(run_id)
            return None
        if not root.is_langgraph and "langgraph_step" in metadata:
            root.is_langgraph = True
        return run

    def _finish(self, run_id: UUID) -> OpenRun | None:
        """Claim the end of a run; return None if it is not open."""
        run = self._open.pop(run_id, None)
        if run is not None:
            root = run.root
            root.open_runs.discard(run)
            root.last_seen_s = time.monotonic()
            if self._receivers:
                root.find_traces(self._receivers, run_id)  # inside a model, nothing begins
        return run

    def _claim_end(self, root: RunRecord) -> bool:
        """Claim the end of a root and forget its runs; return False if somebody else has."""
        if not self._roots.pop(root, False):
            return False
        root.is_over = True
        self._note_ended(root.run_id, is_inside=False)
        for run in list(root.open_runs):
            self._open.pop(run.run_id, None)
            self._note_ended(run.run_id)
        root.open_runs.clear()
        return True

    def _note_ended(self, run_id: UUID, *, is_inside: bool = True) -> None:
        self._over.setdefault(run_id, is_inside)
        if len(self._over) > _MAX_OVER:
            for oldest in list(self._over)[: _MAX_OVER // 2]:
                self._over.pop(oldest, None)

    # ---------------------------------------------------------------- how roots end

    def _objective_of(self, inputs: object) -> str:
        objective, limit = None, self.raw_text_chars
        if self._given_objective is not None:
            try:
                objective = self._given_objective(inputs)
            except Exception as error:  # noqa: BLE001 - the user's function
                warn_once(
                    f"objective:{type(error).__name__}",
                    "the objective function raised %s; the usual places are searched instead",
                    describe_error(error),
                )
        text = str.strip(objective) if isinstance(objective, str) else ""
        return clip(text, limit) if text else objective_in(inputs, limit)

    def _note_objective(self, run: OpenRun, inputs: object) -> None:
        """Note the task that the inputs of a root run state, unless it is known."""
        if run.parent is None and not run.root.objective:
            run.root.objective = self._objective_of(inputs)

    def _finish_root(self, root: RunRecord, output: object, inputs: object = None) -> None:
        """End a root run that returned, with what it was given if that is known."""
        if (error := parsing_error_in(output)) is not None:
            self._end_with_error(root, error)
            return
        try:
            call = root.last_call
            root.answer = answer_in(output, self.raw_text_chars, inputs)
            root.confidence = confidence_in(output)
            root.has_structured_answer = structured_response_in(output) is not None
            if call is not None and call.refusal and root.answer == "":
                root.answer = call.refusal  # a parser leaves out a refusal
            if self._keeps_output:
                root.output = output
        finally:  # an output that cannot be read ends the run all the same
            self._end_root(root, "finished")

    def _has_answered(self, root: RunRecord) -> bool:
        """Return whether the model has answered and nothing is under way."""
        is_busy = root.requested_calls or root.open_runs
        return not is_busy and bool(answer_in(root.final_message, self.raw_text_chars))

    def _end_with_error(self, root: RunRecord, error: BaseException) -> None:
        root.error = error_text(error, self.raw_text_chars)
        self._end_root(root, "failed")

    def _end_root(self, root: RunRecord, ending: Ending) -> None:
        if self._claim_end(root):
            self._hand_over(root, ending)

    def _hand_over(self, root: RunRecord, ending: Ending) -> None:
        root.ending, root.ended_s = ending, self.now_s()
        if ending == "cancelled":
            self.counters.add("cancelled")
        elif ending == "paused" and root.thread_id is None:
            self.counters.add("abandoned")  # without a checkpointer nothing can resume it
        elif ending != "paused" and not root.timeline and not root.resumed_thread:
            self.counters.add("empty")
        else:
            self._receive(root)

    # ---------------------------------------------------------------- roots that never end

    def _make_room(self) -> None:
        """Abandon the roots silent for longest if there are too many, and sweep now and then."""
        while len(self._roots) > self.settings.max_open_runs and self._abandon(self._most_silent()):
            warn_once(
                "max_open_runs",
                "more than max_open_runs (%d) runs are under way; those that have been silent for "
                "longest are abandoned and not scored. If they are alive, raise max_open_runs: an "
                "open run takes about 25 KB. If not, close the streams that are not read to their "
                "end",
                self.settings.max_open_runs,
            )
        if time.monotonic() >= self._next_sweep_s:
            self.sweep()

    def sweep(self) -> None:
        """Abandon the roots that have had no event for `run_timeout_s` seconds."""
        now = time.monotonic()
        self._next_sweep_s = now + self.settings.run_timeout_s / 10
        for root in list(self._roots):
            if root.last_seen_s < now - self.settings.run_timeout_s:
                self._abandon(root)

    def _most_silent(self) -> RunRecord | None:
        return min(list(self._roots), key=lambda root: root.last_seen_s, default=None)

    def _abandon(self, root: RunRecord | None) -> bool:
        if root is None or self._pause_if_left(root):
            return root is not None
        is_taken = self._claim_end(root)
        self.counters.add("abandoned", int(is_taken))
        return is_taken

    def close(self) -> None:
        """Abandon all roots that are open, except for those that paused."""
        while self._abandon(self._most_silent()):
            pass

    @property
    def open_count(self) -> int:
        """The number of open root runs."""
        return len(self._roots)

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the runs that are open or wait to be scored.

        Runs that the child starts inside the innermost open run are its own. Runs that it starts
        directly below another open run belong to the parent's run, which both processes continue.
        """
        runs, self._open = self._open, {}
        roots, self._roots = self._roots, {}
        for run in runs.values():
            run.root.is_over = True
            if run.parent is not None:
                self._note_ended(run.parent.run_id)
        counts = self.counters.counts()
        for name in ("queued", "queued_verdicts"):
            self.counters.add(name, -counts.get(name, 0))
        self.counters.add("handed_over", len(roots) + counts.get("queued", 0))

    # ---------------------------------------------------------------- how roots pause and resume

    def _pause_if_left(self, root: RunRecord) -> bool:
        """End a root whose caller left its stream at a pause and still holds it."""
        run = self._open.get(root.run_id)
        if run is None or not run.has_paused:
            return False
        self._pause_root(run)
        return True

    def _pause_root(self, run: OpenRun) -> None:
        run.note_pause()
        self._end_root(run.root, "paused")

    def _resume(self, root: RunRecord, inputs: object, metadata: Mapping[str, Any]) -> None:
        """Note that a graph begins which resumes the run paused in its thread, unless it is new."""
        if (inputs is not None and not is_command(inputs)) or root.name.endswith(_STATE_UPDATE):
            return
        if inputs is not None:
            root.human.resume(inputs)
        thread_id = thread_id_in(metadata)
        has_paused_inside, root.is_interrupted = root.is_interrupted, False
        root.waiting_model = None
        if thread_id is None or has_paused_inside:
            return
        for other in list(self._roots):
            if other is not root and other.thread_id == thread_id:
                self._pause_if_left(other)
        root.resumed_thread = root.resumed_thread or thread_id
        root.requested_calls.is_resumed = True

    def graph_paused(self, run_id: UUID | None) -> None:
        """Note that a graph paused; at a breakpoint, nothing else shows it."""
        if run_id is not None and (run := self._open.get(run_id)) is not None:
            run.is_interrupted = True

    def graph_resumed(self, run_id: UUID | None) -> None:
        """Note that a graph continues from a pause."""
        if run_id is not None and (run := self._open.get(run_id)) is not None:
            run.root.is_interrupted = False

    # ---------------------------------------------------------------- what is said of them

    def report_outcome(self, run_id: UUID | None, verdict: object) -> bool:
        """Note a verdict on a run; return False if the run has ended.

        Args:
            run_id: The id of the run, or of one inside it.
            verdict: A `Verdict`, or the data of a `kp.outcome` event.
        """
        run = None if run_id is None else self._open.get(run_id)
        if run is None:
            return False
        run.root.verdict = verdict
        # If it ended meanwhile, it may have been scored without the verdict.
        return run.root.run_id in self._open

    def runs_around(self, run_id: UUID) -> tuple[UUID, ...]:
        """Return the ids of an open run and of those that it is part of, the root last."""
        ids: list[UUID] = []
        run = self._open.get(run_id)
        while run is not None:
            ids.append(run.run_id)
            run = run.parent
        return tuple(ids)

    def note_shown(self, run_id: UUID, shown: Iterable[ShownTrace], examples: str) -> bool:
        """Note which kept traces a run is shown; return False if the run has ended.

        Args:
            run_id: The id of the run, or of one inside it.
            shown: The traces.
            examples: The text by which it is shown them; "" if it is held out.
        """
        run = self._open.get(run_id)
        if run is None:
            return False
        root = run.root
        for one in islice(shown, MAX_ITEMS):
            known = root.shown.get(one.trace_id)
            if known is None and len(root.shown) >= MAX_ITEMS:
                continue
            # An agent inside it may be shown it as well; but a lot decides for the whole run.
            if known is None or (known.held_out and not known.is_drawn):
                root.shown[one.trace_id] = one
        if examples and len(root.examples) < _MOST_EXAMPLES and examples not in root.examples:
            root.examples.append(examples)
        inner: OpenRun | None = run
        while inner is not None:
            if inner.call is not None:
                inner.call.returns_examples = True
            inner = inner.parent
        return True
