"""Root runs: how they end, pause and resume.

A graph that pauses ends its root run. The run that resumes it is a new root run, which takes over
what the paused one had recorded, unless new input in the same thread has abandoned it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.recording import pauses
from kp_langchain.recording.answers import (
    answer_in,
    objective_in,
    parsing_error_in,
    structured_response_in,
)
from kp_langchain.recording.failures import Meaning, error_text
from kp_langchain.recording.human import question_in
from kp_langchain.recording.langchain_context import thread_id_in
from kp_langchain.recording.messages import is_command
from kp_langchain.recording.outcome import confidence_in
from kp_langchain.recording.run_record import Ending, RunRecord
from kp_langchain.recording.run_tree import OpenRun, RunTree
from kp_langchain.recording.safe_reads import MAX_ITEMS, clip

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace

# LangGraph's name for an update of a thread's state, which is not a run.
_STATE_UPDATE = "UpdateState"
# A run that searches for examples in a loop: only the texts of the first are recognised.
_MOST_EXAMPLES = 20


class RootRuns(RunTree):
    """The root runs that one handler sees, and their fates. Takes the arguments of `RunTree`."""

    def close(self) -> None:
        """Abandon all runs that are open or paused, except for those in the store."""
        super().close()
        pauses.give_up(self.owner)

    # ---------------------------------------------------------------- how they end

    def _objective_of(self, inputs: object) -> str:
        user_objective_of, limit = self.owner.objective_of, self._raw_text_chars
        objective = user_objective_of(inputs) if user_objective_of is not None else ""
        return clip(objective, limit) if objective else objective_in(inputs, limit)

    def _finish_root(self, root: RunRecord, output: object, inputs: object = None) -> None:
        """End a root run that returned, with what it was given if that is known."""
        if (error := parsing_error_in(output)) is not None:
            self._end_with_error(root, error)
            return
        try:
            call = root.state.last_call
            root.answer = root.state.agent_answer or answer_in(output, self._raw_text_chars, inputs)
            root.claims.confidence = confidence_in(output)
            root.claims.has_structured_answer = structured_response_in(output) is not None
            if call is not None and call.refusal and root.answer == "":
                root.answer = call.refusal  # a parser leaves out a refusal
            if self.owner.keeps_output:
                root.claims.output = output
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
                self._finish_root(root, root.state.final_message)
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
        self._forget(root)
        self._hand_over(root, ending)

    def _hand_over(self, root: RunRecord, ending: Ending) -> None:
        root.ending = ending
        if root.name.endswith(_STATE_UPDATE):
            if not root.timeline:
                self.counters.add("runs", -1)
                return
        elif root.is_langgraph:
            for thread_id in root.state.new_input_threads:
                self._abandon_paused(thread_id, root.started_at)
        if ending == "paused":
            self._pause(root)
        elif ending == "cancelled":
            self.counters.add("cancelled")
        elif not root.timeline and root.resumption is None:
            self.counters.add("empty")
        else:
            self._receiver.add(root)

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
            self.counters.add("abandoned")
            return
        root.paused_at = datetime.now(UTC)
        pauses.add(root)
        if self.owner.keeps_paused:
            self._receiver.add_paused(root)

    def _abandon_paused(self, thread_id: str, until: datetime) -> None:
        """Abandon the run paused in a thread by `until`, when something new was asked there."""
        if pauses.has_any() and (earlier := pauses.take(thread_id, self.owner, until)) is not None:
            earlier.owner.counters.add("abandoned")
        if self.owner.keeps_paused:
            self._receiver.forget_paused(thread_id, until)

    def _resume(self, root: RunRecord, inputs: object, metadata: Mapping[str, Any]) -> None:
        """Resume the run paused in this thread; new input abandons it when the root ends."""
        thread_id, state = thread_id_in(metadata), root.state
        if inputs is not None and not is_command(inputs):
            if thread_id is not None and len(state.new_input_threads) < MAX_ITEMS:
                state.new_input_threads.add(thread_id)
            return
        if inputs is not None:
            root.human.resume(inputs)
        has_paused_inside = state.is_interrupted
        if has_paused_inside:
            root.requested_calls.wait()
            root.human.note_answered(root.human)
        state.is_interrupted, state.waiting_model = False, None
        if thread_id is None:
            return
        if has_paused_inside and thread_id in state.new_input_threads:  # its own graph continues
            self._abandon_paused(thread_id, root.started_at)
            return
        state.new_input_threads.discard(thread_id)
        for other in list(self._roots):
            if other is not root and other.thread_id == thread_id:
                self._pause_if_left(other)
        earlier = pauses.take(thread_id, self.owner) if pauses.has_any() else None
        if earlier is None:
            if self.owner.keeps_paused and not has_paused_inside:
                root.resume(thread_id, None)
            return
        root.resume(thread_id, earlier)
        if earlier.owner is self.owner:
            self.counters.add("runs", -1)  # the two halves are one run
        else:
            earlier.owner.counters.add("handed_over")

    def graph_paused(self, run_id: UUID | None) -> None:
        """Note that a graph paused; at a breakpoint, nothing else shows it."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.is_interrupted = True

    def graph_resumed(self, run_id: UUID | None) -> None:
        """Note that a graph continues from a pause."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.root.state.is_interrupted = False

    def _pass_on_interrupt(self, entry: OpenRun, error: BaseException) -> None:
        human = entry.root.human
        human.question = question_in(error) or human.question
        if entry.parent is not None:
            entry.parent.is_interrupted = True

    # ---------------------------------------------------------------- what is said of them

    def report_outcome(self, run_id: UUID | None, verdict: object) -> bool:
        """Note a verdict on a run; return False if the run has ended.

        Args:
            run_id: The id of the run, or of one inside it.
            verdict: A `Verdict`, or the data of a `kp.outcome` event.
        """
        entry = None if run_id is None else self._open.get(run_id)
        if entry is None:
            return False
        entry.root.verdict = verdict
        # If it ended meanwhile, it may have been scored without the verdict.
        return entry.root.run_id in self._open

    def root_of(self, run_id: UUID) -> UUID | None:
        """Return the id of the root run that an open run belongs to."""
        entry = self._open.get(run_id)
        return None if entry is None else entry.root.run_id

    def note_shown(self, run_id: UUID, shown: Iterable[ShownTrace], examples: str) -> bool:
        """Note which kept traces a run is shown; return False if the run has ended.

        Args:
            run_id: The id of the run, or of one inside it.
            shown: The traces.
            examples: The text by which it is shown them; "" if it is held out.
        """
        entry = self._open.get(run_id)
        if entry is None:
            return False
        root = entry.root
        for one in islice(shown, MAX_ITEMS):
            known = root.shown.get(one.trace_id)
            if known is None and len(root.shown) >= MAX_ITEMS:
                continue
            if known is None or known.held_out:  # of an agent inside it that was shown it as well
                root.shown[one.trace_id] = one
        if examples and len(root.examples) < _MOST_EXAMPLES and examples not in root.examples:
            root.examples.append(examples)
        inner: OpenRun | None = entry
        while inner is not None:
            if inner.call is not None:
                inner.call.returns_examples = True
            inner = inner.parent
        return True


def continues_in_process(root: RunRecord) -> bool:
    """Return whether a run continues one that paused in this process."""
    return root.resumption is not None and root.resumption.earlier is not None


def has_paused(entry: OpenRun) -> bool:
    """Return whether a root run has paused, although it has not ended."""
    return entry.is_interrupted or entry.root.state.is_interrupted


def note_pause(entry: OpenRun) -> None:
    """Note where a run paused, for the record of its root."""
    entry.root.thread_id = thread_id_in(entry.metadata) or entry.root.thread_id
