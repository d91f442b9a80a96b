"""Root runs: how they end, pause and resume.

A graph that pauses ends its root run. The run that resumes it is a new root run, which takes over
what the paused one had recorded, unless new input in the same thread has abandoned it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from kp_langchain.recording import paused_in_memory
from kp_langchain.recording.answer import answer_in, parsing_error_in, structured_response_in
from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.clipping import NAME_CHARS, clip
from kp_langchain.recording.counters import Counters
from kp_langchain.recording.exception_kinds import Meaning
from kp_langchain.recording.exchanges import answers_in, question_in
from kp_langchain.recording.human_decisions import decision_in
from kp_langchain.recording.messages import is_command
from kp_langchain.recording.objective import objective_in
from kp_langchain.recording.outcome import confidence_in
from kp_langchain.recording.plain_values import error_text
from kp_langchain.recording.record_owner import RecordOwner
from kp_langchain.recording.run_record import Ending, RunRecord
from kp_langchain.recording.run_start import thread_id_in
from kp_langchain.recording.run_tree import OpenRun, RunTree
from kp_langchain.recording.safe_reads import MAX_ITEMS
from kp_langchain.recording.score_receivers import ScoreReceiver, TraceFinder

# LangGraph's name for an update of a thread's state, which is not a run.
_STATE_UPDATE = "UpdateState"


class RootRuns(RunTree):
    """The root runs that one handler sees, and their fates.

    Args:
        bounds: How much is recorded at most.
        deliver: Called with each root run that ended, in the thread of its last event.
        ambient: Returns the id of the run that LangChain's context names as the current one.
        scope: Recorders of equal scope may resume each other's paused runs.
        keep_output: Whether a record holds on to what the root run returned.
        objective_of: Reads the objective from a root run's inputs, before the usual places are
            searched; returns "" if it finds none. Must not raise.
        store_paused: Called with each root run that paused, to store what it recorded.
        forget: Called with a thread and a time, in UTC, to delete from the store what had paused
            in that thread by then.
        receivers: Tools that are sent the scores of runs, and whose ids of a run are looked up
            while it is under way.
        namespace_keys: The names in the metadata under which a namespace is.
    """

    def __init__(
        self,
        bounds: Bounds,
        deliver: Callable[[RunRecord], None],
        ambient: Callable[[], UUID | None] = lambda: None,
        scope: object = None,
        keep_output: bool = False,
        objective_of: Callable[[Any], str] | None = None,
        store_paused: Callable[[RunRecord], None] | None = None,
        forget: Callable[[str, datetime], None] | None = None,
        receivers: Sequence[ScoreReceiver] = (),
        namespace_keys: tuple[str, ...] = (),
    ) -> None:
        counters = Counters()
        find_traces = TraceFinder(receivers, counters) if receivers else None
        super().__init__(RecordOwner(bounds, counters, scope, namespace_keys), ambient, find_traces)
        self._raw_text_chars = bounds.raw_text_chars
        self._keep_output = keep_output
        self._user_objective_of = objective_of
        self._deliver = deliver
        self._store_paused = store_paused
        self._forget_paused = forget

    def close(self) -> None:
        """Abandon all runs that are open or paused, except for those in the store."""
        super().close()
        paused_in_memory.give_up(self.owner)

    # ---------------------------------------------------------------- how they end

    def _objective_of(self, inputs: object) -> str:
        user_objective_of, limit = self._user_objective_of, self._raw_text_chars
        objective = user_objective_of(inputs) if user_objective_of is not None else ""
        return clip(objective, limit) if objective else objective_in(inputs, limit)

    def _finish_root(self, root: RunRecord, output: object, inputs: object = None) -> None:
        """End a root run that returned, with what it was given if that is known."""
        if (error := parsing_error_in(output)) is not None:
            self._end_with_error(root, error)
            return
        try:
            call = root.last_call
            root.answer = root.agent_answer or answer_in(output, self._raw_text_chars, inputs)
            root.claimed_confidence = confidence_in(output)
            root.has_structured_answer = structured_response_in(output) is not None
            if call is not None and call.refusal and root.answer == "":
                root.answer = call.refusal  # a parser leaves out a refusal
            if self._keep_output:
                root.output = output
        finally:  # an output that cannot be read ends the run all the same
            self._end_root(root, "finished")

    def _fail_root(self, entry: OpenRun, error: BaseException, meaning: Meaning) -> None:
        """End a root run that raised, or whose caller left its stream."""
        root = entry.root
        match meaning:
            case "interrupt":
                self._pause_root(entry)
            case "cancelled" if has_paused(entry):
                self._pause_root(entry)
            case "cancelled" if root.has_answered:
                self._finish_root(root, root.final_message)
            case "cancelled":
                self._end_root(root, "cancelled")
            case "handoff":
                self._finish_root(root, None)
            case _:
                self._end_with_error(root, error)

    def _end_with_error(self, root: RunRecord, error: BaseException) -> None:
        root.error = error_text(error, self._raw_text_chars)
        self._end_root(root, "failed")

    def _end_root(self, root: RunRecord, ending: Ending) -> None:
        if not self._take(root):
            return
        try:
            self._forget(root)
            self._settle(root, ending)
        except BaseException:  # a signal handler's; the run ended all the same
            if not root.is_settled:
                self._settle(root, ending)
            raise

    def _settle(self, root: RunRecord, ending: Ending) -> None:
        root.ending = ending
        if root.name.endswith(_STATE_UPDATE):
            if not root.timeline:
                root.is_settled = True
                self.counters.add("runs", -1)
                return
        elif root.is_langgraph:
            for thread_id in root.new_input_threads:
                self._abandon_paused(thread_id, root.started_at)
        if ending == "paused":
            self._pause(root)
        elif ending == "cancelled":
            root.is_settled = True
            self.counters.add("cancelled")
        elif not root.timeline and root.resumption is None:
            root.is_settled = True
            self.counters.add("empty")
        else:
            self._deliver(root)

    # ---------------------------------------------------------------- how they pause and resume

    def pause_left(self) -> None:
        """End the roots whose callers left their streams at a pause and still hold them."""
        for root in list(self._roots):
            self._pause_if_left(root)

    def _abandon(self, root: RunRecord | None) -> bool:
        return self._pause_if_left(root) or super()._abandon(root)

    def _pause_if_left(self, root: RunRecord | None) -> bool:
        """End a root whose caller left its stream at a pause and still holds it."""
        entry = None if root is None else self._open.get(root.run_id)
        if entry is None or not has_paused(entry):
            return False
        self._pause_root(entry)
        return True

    def _pause_root(self, entry: OpenRun) -> None:
        note_pause(entry)
        self._end_root(entry.root, "paused")

    def _pause(self, root: RunRecord) -> None:
        if root.thread_id is None:  # without a checkpointer nothing can resume it
            root.is_settled = True
            self.counters.add("abandoned")
            return
        root.paused_at, root.first_half_id = datetime.now(UTC), uuid4().hex
        paused_in_memory.add(root)
        root.is_settled = True
        if self._store_paused is not None:
            self._store_paused(root)

    def _abandon_paused(self, thread_id: str, until: datetime) -> None:
        """Abandon the run paused in a thread by `until`, when something new was asked there."""
        if (
            paused_in_memory.has_any()
            and (earlier := paused_in_memory.take(thread_id, self.owner, until)) is not None
        ):
            earlier.owner.counters.add("abandoned")
        if self._forget_paused is not None:
            self._forget_paused(thread_id, until)

    def _resume(self, root: RunRecord, inputs: object, metadata: Mapping[str, Any]) -> None:
        """Resume the run paused in this thread; new input abandons it when the root ends."""
        thread_id = thread_id_in(metadata)
        if inputs is not None and not is_command(inputs):
            if thread_id is not None and len(root.new_input_threads) < MAX_ITEMS:
                root.new_input_threads.add(thread_id)
            return
        if inputs is not None:
            root.human_decision = decision_in(inputs)
            root.resumed_with = answers_in(inputs)
        has_paused_inside = root.is_interrupted
        if has_paused_inside:
            root.requested_calls.wait()
            root.note_resumed(root)
        root.is_interrupted, root.waiting_model = False, None
        if thread_id is None:
            return
        if has_paused_inside and thread_id in root.new_input_threads:  # its own graph continues
            self._abandon_paused(thread_id, root.started_at)
            return
        root.new_input_threads.discard(thread_id)
        for other in list(self._roots):
            if other is not root and other.thread_id == thread_id:
                self._pause_if_left(other)
        earlier = (
            paused_in_memory.take(thread_id, self.owner) if paused_in_memory.has_any() else None
        )
        if earlier is None:
            if self._store_paused is not None and not has_paused_inside:
                root.resume(thread_id, None)
            return
        if self._store_paused is None:  # no store may have another first half
            earlier.requested_calls.wait()
            root.prepend(earlier)
        else:
            root.resume(thread_id, earlier)
        if earlier.owner is self.owner:
            self.counters.add("runs", -1)  # the two halves are one run
        else:
            earlier.owner.counters.add("handed_over")

    def graph_paused(self, run_id: UUID | None, checkpoint_id: object = None) -> None:
        """Note that a graph paused; at a breakpoint, nothing else shows it."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.is_interrupted = True
            entry.checkpoint_id = _checkpoint_text(checkpoint_id)

    def graph_resumed(self, run_id: UUID | None, checkpoint_id: object = None) -> None:
        """Note that a graph continues from a pause."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            root = entry.root
            root.is_interrupted = False
            # Graphs inside it also continue; the event of the outermost one comes first.
            if root.resumption is not None and root.resumption.checkpoint_id is None:
                root.resumption.checkpoint_id = _checkpoint_text(checkpoint_id)

    def _pass_on_interrupt(self, entry: OpenRun, error: BaseException) -> None:
        entry.root.question = question_in(error) or entry.root.question
        parent = self._open.get(entry.parent_id) if entry.parent_id is not None else None
        if parent is not None:
            parent.is_interrupted = True


def continues_in_process(root: RunRecord) -> bool:
    """Return whether a run continues one that paused in this process."""
    return root.resumption is not None and root.resumption.earlier is not None


def has_paused(entry: OpenRun) -> bool:
    """Return whether a root run has paused, although it has not ended."""
    return entry.is_interrupted or entry.root.is_interrupted


def note_pause(entry: OpenRun) -> None:
    """Note where a run paused, for the record of its root."""
    root = entry.root
    root.thread_id = entry.thread_id or root.thread_id
    root.checkpoint_id = entry.checkpoint_id or root.checkpoint_id


def _checkpoint_text(checkpoint_id: object) -> str | None:
    return checkpoint_id[:NAME_CHARS] if type(checkpoint_id) is str else None
