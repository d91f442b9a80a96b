"""The recorder: events of LangChain runs in, one `RunRecord` per root run out.

A state machine on top of the tree of runs, under the same rule: it runs inside the user's agent, in
whatever thread the event comes from, and takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid4

from kp_langchain.recording import paused_in_memory
from kp_langchain.recording.control_flow import Meaning, meaning_of
from kp_langchain.recording.decisions import decision_in
from kp_langchain.recording.message_parts import parts_of
from kp_langchain.recording.messages import (
    MAPPING,
    MAX_ITEMS,
    answer_in,
    as_input,
    as_text,
    attribute,
    clip,
    contained,
    error_text,
    gist,
    has_structure,
    is_command,
    message_text,
    messages_in,
    objective_in,
    text_size,
)
from kp_langchain.recording.outcome import confidence_in
from kp_langchain.recording.provider_calls import mark_parts
from kp_langchain.recording.requested_calls import RequestedCall, UnnamedCall, requests_in
from kp_langchain.recording.run_record import (
    MARGIN_CHARS,
    NAME_CHARS,
    Bounds,
    Call,
    Ending,
    Kind,
    RunRecord,
    Start,
    short_name,
    text_in,
    thread_id_in,
)
from kp_langchain.recording.run_tree import OpenRun, RunTree
from kp_langchain.recording.stop_reasons import refusal_in, was_stopped

# Middleware of langchain that ends an agent at a limit without an error.
_LIMIT_NODES = ("ModelCallLimitMiddleware", "ToolCallLimitMiddleware")
# How LangGraph names what is no run: somebody changed the state of a thread.
_STATE_UPDATE = "UpdateState"
# The tool that the classic AgentExecutor runs in place of one that it does not know.
_UNKNOWN_TOOL = "invalid_tool"
_UNPARSED = "the arguments of the call cannot be parsed"
_CAUSES_READ = 8
Text = TypeVar("Text")


class Recorder(RunTree):
    """Follows the runs that one handler sees.

    Args:
        bounds: What is kept at most.
        deliver: Called with each root run that ended, in the thread of its last event.
        ambient: Returns the id of the run that LangChain's context says we are in, if any.
        scope: Recorders of equal scope may continue each other's paused runs.
        keep_output: Whether a record holds on to the run's raw output.
        objective_of: Tells the task from a root run's inputs before the usual places are searched;
            "" where it cannot. Must not raise.
        shelve: Keeps a run that paused besides in this process, if anywhere.
        forget: Gives up what it keeps of a thread from before a time.
    """

    def __init__(
        self,
        bounds: Bounds,
        deliver: Callable[[RunRecord], None],
        ambient: Callable[[], UUID | None] = lambda: None,
        scope: object = None,
        keep_output: bool = False,
        objective_of: Callable[[Any], str] | None = None,
        shelve: Callable[[RunRecord], None] | None = None,
        forget: Callable[[str, datetime], None] | None = None,
    ) -> None:
        super().__init__(bounds, lambda start: RunRecord(self, start), ambient)
        self.scope = scope
        self._text_chars = bounds.text_chars + 2 * MARGIN_CHARS
        self._keep_output = keep_output
        self._told_objective = objective_of
        self._deliver = deliver
        self._shelve = shelve
        self._forget_paused = forget

    # ---------------------------------------------------------------- ends of roots

    def _end_root(self, root: RunRecord, ending: Ending) -> None:
        if not self._take(root):
            return
        try:
            self._forget(root)
            self._settle(root, ending)
        except BaseException:  # a signal handler's; the run ended all the same
            if not root.settled:
                self._settle(root, ending)
            raise

    def _settle(self, root: RunRecord, ending: Ending) -> None:
        root.ending = ending
        if root.name.endswith(_STATE_UPDATE):
            if not root.head:
                root.settled = True
                self.counters.add("runs", -1)
                return
        elif root.langgraph:
            for thread_id in root.asked_in:
                self._give_up_paused(thread_id, root.started_at)
        if ending == "paused":
            if root.thread_id is None:  # without a checkpointer nothing can resume it
                root.settled = True
                self.counters.add("abandoned")
            else:
                root.paused_at, root.half_id = datetime.now(UTC), uuid4().hex
                paused_in_memory.add(root)
                root.settled = True
                if self._shelve is not None:
                    self._shelve(root)
        elif ending == "cancelled":
            root.settled = True
            self.counters.add("cancelled")
        elif not root.head and root.resumed is None:
            root.settled = True
            self.counters.add("empty")
        else:
            self._deliver(root)

    def _give_up_paused(self, thread_id: str, until: datetime) -> None:
        """Forget what waits in a thread, because something new was asked at `until`."""
        if (
            paused_in_memory.any()
            and (earlier := paused_in_memory.take(thread_id, self, until)) is not None
        ):
            earlier.recorder.counters.add("abandoned")
        if self._forget_paused is not None:
            self._forget_paused(thread_id, until)

    def _objective_of(self, inputs: object) -> str:
        bound = self._text_chars
        told = self._told_objective(inputs) if self._told_objective is not None else ""
        return clip(told, bound) if told else objective_in(inputs, bound)

    def _keep(self, root: RunRecord, read: Callable[[Any, int], Text], value: object) -> Text:
        """Read a step's text or input out of `value`, within what the run has room for.

        Where there is no room any more, all that is kept is how much was left out.
        """
        if root.room_chars > 0:
            kept = read(value, self._text_chars)
        else:
            kept = read(value, 0)
            root.dropped_texts += bool(kept)
        root.room_chars -= min(text_size(kept), self._text_chars - 2 * MARGIN_CHARS)
        return kept

    def _finish_root(self, root: RunRecord, output: object) -> None:
        try:
            root.answer = root.agent_answer or answer_in(output, self._text_chars)
            root.claimed_confidence = confidence_in(output)
            call = root.last_call
            if call is not None and call.kind == "model" and has_structure(output):
                call.text = call.text or root.answer or ""  # it answered by filling in a form
            if call is not None and call.refusal and root.answer == "":
                root.answer = call.refusal  # a parser hands on only what a model says besides
            if self._keep_output:
                root.output = output
        finally:  # an output that cannot be read ends the run all the same
            self._end_root(root, "finished")

    # ---------------------------------------------------------------- chains and graphs

    def chain_started(self, start: Start, inputs: object) -> None:
        """A chain, graph or node began."""
        entry = self._begin(start)
        if entry is None:
            return
        run_id, _, name, metadata, _ = start
        root = entry.root
        entry.name = short_name(name)
        entry.limit_node = entry.name.startswith(_LIMIT_NODES)
        entry.task = text_in(metadata, "langgraph_checkpoint_ns")
        if root.last_failure is not None:
            root.mark("start", root.last_failure)  # the run went on after it
            root.last_failure = None
        if "langgraph_node" not in metadata:  # a whole graph or chain, not a node of one
            self._resume(root, inputs, metadata)
        if not root.objective and run_id == root.run_id and not _is_resumed_here(root):
            root.objective = self._objective_of(inputs)

    def _resume(self, root: RunRecord, inputs: object, metadata: Mapping[str, Any]) -> None:
        """Continue the run that waits in this thread, unless a new question is asked."""
        thread_id = thread_id_in(metadata)
        if inputs is not None and not is_command(inputs):
            if thread_id is not None and len(root.asked_in) < MAX_ITEMS:
                root.asked_in.add(thread_id)
            return
        if inputs is not None:
            root.decision = decision_in(inputs)
        paused_inside = root.interrupted
        if paused_inside:
            root.requested.wait()
        root.interrupted = False
        if thread_id is None:
            return
        if paused_inside and thread_id in root.asked_in:  # it is this run itself that goes on
            self._give_up_paused(thread_id, root.started_at)
            return
        root.asked_in.discard(thread_id)
        earlier = paused_in_memory.take(thread_id, self) if paused_in_memory.any() else None
        if earlier is None:
            if self._shelve is not None and not paused_inside:
                root.resumes(thread_id, None)
            return
        if self._shelve is None:  # nothing in a store is to be waited for
            earlier.requested.wait()
            root.continues(earlier)
        else:
            root.resumes(thread_id, earlier)
        if earlier.recorder is self:
            self.counters.add("runs", -1)  # the two halves are one run
        else:
            earlier.recorder.counters.add("handed_over")

    def close(self) -> None:
        """Abandon whatever is still under way or waits; what waits in the store, stays there."""
        super().close()
        paused_in_memory.give_up(self)

    def chain_ended(self, run_id: UUID, outputs: object, inputs: object = None) -> None:
        """A chain returned; a streamed one tells its `inputs` only now."""
        entry = self._finish(run_id)
        if entry is None:
            return
        root = entry.root
        root.last_seen_s = time.monotonic()
        if run_id != root.run_id:
            self._inner_ended(entry, outputs)
            return
        if not root.objective and inputs is not None and not _is_resumed_here(root):
            root.objective = self._objective_of(inputs)
        call = root.last_call
        open_model = call is not None and call.kind == "model" and not call.answered
        if entry.interrupted or root.interrupted:
            _note_pause(entry)
            self._end_root(root, "paused")
        elif open_model and inputs is not None and not root.langgraph:
            # A chain that streams tells its inputs at the end. Closed half-way it ends normally,
            # but before its model does.
            self._end_root(root, "cancelled")
        else:
            if root.requested:
                self._record_unanswered(root, outputs)
            self._finish_root(root, outputs)

    def _inner_ended(self, entry: OpenRun, outputs: object) -> None:
        root = entry.root
        if entry.interrupted:  # a graph inside this run paused; what starts next says it went on
            root.interrupted = True
            _note_pause(entry)
        if entry.limit_node and _jumps_to_end(outputs):
            root.limit_reached = True
        if root.requested or root.is_awaiting_half:
            self._answer_requested(entry, outputs)

    def _answer_requested(self, entry: OpenRun, outputs: object) -> None:
        """Record the tool calls that a chain answered without a tool."""
        root = entry.root
        asked: set[str] = set()  # in the same output
        for message in messages_in(outputs):
            if message.type == "ai":
                asked.update(one.call_id for one in requests_in(message, "tool_calls", None))
            if message.type != "tool":
                continue
            form = _form_in(outputs) if attribute(message, "tool_call_id") in asked else None
            if form == "accepted":  # the run's answer, which is recorded as such
                root.requested.take(attribute(message, "tool_call_id"))
            else:
                self._answer(root, message, form == "refused", by_human=_is_doubtful(root))

    def _answer(
        self, root: RunRecord, message: object, is_refused: bool = False, *, by_human: bool
    ) -> None:
        """Record what answers a call that no tool ended.

        Args:
            root: The run.
            message: The answer.
            is_refused: Whether it says that a structured answer is wrong.
            by_human: Whether it is a human's refusal if it says that a call failed that waited.
        """
        call_id = attribute(message, "tool_call_id")
        request, call = root.requested.take(call_id), root.requested.answer(call_id)
        failed = is_refused or attribute(message, "status") == "error"
        if request is not None:
            call = self._begin_requested(root, request)
            call.rejected = failed and by_human and root.requested.has_waited(call_id)
        elif call is None and root.is_awaiting_half and root.requested.is_unknown(call_id):
            # What is answered is known when the first half is here; see `name_answers`.
            call = Call("tool", "", UnnamedCall(call_id, by_human))
            root.mark("start", call)
        if call is None:
            return
        call.answered, call.cancelled = True, False
        call.failed = failed and not call.rejected
        text = self._keep(root, message_text, message)
        if call.failed:
            call.error = text
            root.mark("error", call)
        else:
            call.text = text
            root.mark("end", call)

    def _record_unanswered(self, root: RunRecord, outputs: object) -> None:
        """Record the tool calls that the last message of a run asks for: nobody did them."""
        messages = outputs.get("messages") if isinstance(outputs, MAPPING) else None
        if not isinstance(messages, list) or not messages or has_structure(outputs):
            return
        for asked in requests_in(messages[-1], "tool_calls", None):
            if (request := root.requested.take(asked.call_id)) is not None:
                call = self._begin_requested(root, request)
                call.rejected = _is_doubtful(root) and root.requested.has_waited(request.call_id)

    def _begin_requested(self, root: RunRecord, request: RequestedCall) -> Call:
        """Record a tool call that no tool begins."""
        call = Call("tool", request.name, ("tool", request.call_id))
        call.input = self._keep(root, as_input, request.arguments)
        root.mark("start", call)
        return call

    def chain_failed(self, run_id: UUID, error: BaseException, inputs: object = None) -> None:
        """A chain raised."""
        entry = self._finish(run_id)
        if entry is None:
            return
        root = entry.root
        root.last_seen_s = time.monotonic()
        meaning = meaning_of(error)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry)
        if run_id == root.run_id and not root.objective and inputs is not None:
            root.objective = self._objective_of(inputs)
        if meaning == "error" and not _is_recorded(error, entry):
            self._record_failure(entry, error, is_root=run_id == root.run_id)
        if run_id == root.run_id:
            self._fail_root(root, error, meaning)

    def _record_failure(self, entry: OpenRun, error: BaseException, *, is_root: bool) -> None:
        """Record that a chain raised, and not because of a call below it."""
        root = entry.root
        # What the model asked for at last was not done then.
        for request in root.requested.asked_by(root.last_call):
            root.requested.take(request.call_id)
            self._begin_requested(root, request)
        # Attempts of one node have one task in LangGraph, those of other chains one parent.
        call = Call("chain", "", ("chain", entry.task or (entry.parent_id, entry.name)))
        call.failed = True
        # Of the error that ends the run there is always room for the text: it is its result.
        call.error = (
            error_text(error, self._text_chars) if is_root else self._keep(root, error_text, error)
        )
        root.mark("error", call)
        root.last_failure = call
        _remember(root, error)

    def _pass_on_interrupt(self, entry: OpenRun) -> None:
        parent = self._open.get(entry.parent_id) if entry.parent_id is not None else None
        if parent is not None:
            parent.interrupted = True

    def _fail_root(self, root: RunRecord, error: BaseException, meaning: Meaning) -> None:
        match meaning:
            case "interrupt":
                self._end_root(root, "paused")
            case "cancelled":
                self._end_root(root, "cancelled")
            case "handoff":
                self._finish_root(root, None)
            case _:
                root.error = error_text(error, self._text_chars)
                self._end_root(root, "failed")

    def interrupted(self, run_id: UUID | None, checkpoint_id: object = None) -> None:
        """LangGraph says that a graph paused; also at a breakpoint, which raises nothing."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.interrupted = True
            entry.checkpoint_id = _checkpoint(checkpoint_id)

    def resumed(self, run_id: UUID | None, checkpoint_id: object = None) -> None:
        """LangGraph says that a graph goes on."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            root = entry.root
            root.interrupted = False
            # Of the graphs inside it that go on, too, the outermost says so first.
            if root.resumed is not None and root.resumed.checkpoint_id is None:
                root.resumed.checkpoint_id = _checkpoint(checkpoint_id)

    # ---------------------------------------------------------------- calls

    def _call(self, kind: Kind, start: Start) -> tuple[RunRecord, Call] | None:
        entry = self._begin(start)
        if entry is None:
            return None
        name = short_name(start.name)
        call = entry.call = Call(kind, name, (entry.parent_id, name))
        root = entry.root
        root.last_call = call
        root.interrupted = False
        root.mark("start", call)
        return root, call

    def _answered(self, run_id: UUID) -> tuple[OpenRun, Call] | None:
        entry = self._finish(run_id)
        if entry is None or entry.call is None:
            return None
        entry.call.close()
        entry.root.last_seen_s = time.monotonic()
        return entry, entry.call

    def _answer_from_state(self, start: Start, messages: object) -> None:
        """Record the answers that a model is shown and that no chain has returned.

        A loop within one function keeps them to itself; others come from `update_state`.
        """
        parent = self._open.get(start.parent_id) if start.parent_id is not None else None
        if parent is None or not (parent.root.requested or parent.root.is_awaiting_half):
            return
        for message in _last_answers(messages):
            self._answer(parent.root, message, by_human=parent.root.decision != "approved")

    def model_started(self, start: Start, messages: object) -> None:
        """A model was asked, with chat messages or prompts."""
        self._answer_from_state(start, messages)
        made = self._call("model", start)
        if made is None:
            return
        root, call = made
        # Attempts of one call stand under one parent, or one LangGraph task, with one input.
        place = text_in(start.metadata, "langgraph_checkpoint_ns") or call.key[0]  # type: ignore[index]
        call.key = ("model", place, _shape(messages))
        if not root.fallback_objective:
            root.fallback_objective = objective_in(messages, self._text_chars)
        if not root.objective and root.run_id == start.run_id:
            root.objective = self._objective_of(messages)

    def model_answered(
        self,
        run_id: UUID,
        message: object,
        text: str,
        logprobs: object,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """A model answered with a message, or with plain text; `info` is LangChain's beside it."""
        done = self._answered(run_id)
        if done is None:
            return
        entry, call = done
        root = entry.root
        try:
            last = call
            refusal = clip(refusal_in(message), self._text_chars)
            metadata = attribute(message, "response_metadata")
            call.stopped = bool(refusal) or was_stopped(metadata) or was_stopped(info)
            if message is None:
                call.text = self._keep(root, clip, text)
            elif parts := parts_of(message, self._text_chars):
                last = mark_parts(root, call, parts, partial(self._keep, root))
            else:
                call.text = self._keep(root, message_text, message)
            last.refusal = refusal
            self._note_requests(root, last, message)
            root.logprobs = logprobs
        finally:
            if run_id == root.run_id:
                self._finish_root(root, message if message is not None else text)

    def _note_requests(self, root: RunRecord, call: Call, message: object) -> None:
        for request in requests_in(message, "tool_calls", call):
            root.requested.add(request)
        for request in requests_in(message, "invalid_tool_calls", call):
            unparsed = self._begin_requested(root, request)
            unparsed.answered = unparsed.failed = True
            unparsed.error = self._keep(root, as_text, request.error) or _UNPARSED
            root.mark("error", unparsed)
            root.requested.add_unparsed(request.call_id, unparsed)

    def tool_started(self, start: Start, inputs: object, tool_call_id: object = None) -> None:
        """A tool began."""
        made = self._call("tool", start)
        if made is None:
            return
        root, call = made
        if call.name == _UNKNOWN_TOOL and root.last_action[0]:
            call.name, inputs = root.last_action
            call.failed = True  # whatever it answers
        call.input = self._keep(root, as_input, inputs)
        call.mcp_server = as_text(start.metadata.get("mcp_server"), 200) or None
        if isinstance(tool_call_id, str) and tool_call_id:
            call.tool_call_id = tool_call_id
            call.key = ("tool", tool_call_id)
        else:
            call.key = ("tool", call.key, str(call.input))
        root.requested.begin(call, inputs)
        if not root.objective and root.run_id == start.run_id:
            root.objective = self._objective_of(inputs) or as_text(inputs, self._text_chars)

    def tool_answered(self, run_id: UUID, output: object) -> None:
        """A tool or retriever returned."""
        done = self._answered(run_id)
        if done is None:
            return
        entry, call = done
        root = entry.root
        try:
            root.requested.take(attribute(output, "tool_call_id"))
            root.requested.answer(call.tool_call_id)
            kept = self._keep(root, gist, output)
            call.failed = call.failed or _says_error(output)
            _note_end(root, call, kept)
        finally:
            if run_id == root.run_id:
                self._finish_root(root, output)

    def retriever_started(self, start: Start, query: object) -> None:
        """A retriever began."""
        made = self._call("retriever", start)
        if made is None:
            return
        root, call = made
        text = self._keep(root, as_text, query)
        call.input = {"query": text}
        call.key = ("retriever", call.key, text)
        if not root.objective and root.run_id == start.run_id:
            root.objective = text

    def call_failed(self, run_id: UUID, error: BaseException, partial: object = None) -> None:
        """A model, tool or retriever raised; a model may have said something before, `partial`."""
        done = self._answered(run_id)
        if done is None:
            return
        entry, call = done
        root, meaning = entry.root, meaning_of(error)
        call.cancelled = meaning == "cancelled"
        call.void = meaning == "interrupt"
        if call.void:
            root.requested.pause(call)
        if call.kind == "model" and call.cancelled:
            # The agent read as much of the answer as it wanted.
            call.text = self._keep(root, message_text, partial)
        elif meaning == "error":
            call.failed = True
            text = self._keep(root, error_text, error)
            if root.last_failure is not None and _is_recorded(error, entry):
                root.last_failure.void = True  # of a chain inside this call: the same failure
                root.last_failure = None
            _remember(root, error)
            root.requested.answer(call.tool_call_id)
            if call.kind == "model":  # a model's failure stands where the model was asked
                call.error = text
            else:
                _note_end(root, call, text)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry)
        if run_id == root.run_id:
            self._fail_root(root, error, meaning)

    def retried(self, run_id: UUID, attempt: int, error: BaseException | None) -> None:
        """The model or tool itself tries again inside one run."""
        entry = self._open.get(run_id)
        if entry is None or entry.call is None:
            return
        entry.call.retries = max(entry.call.retries, attempt)
        if error is not None:
            entry.root.room_chars += text_size(entry.call.error)  # it takes the last one's place
            entry.call.error = self._keep(entry.root, error_text, error)

    def agent_acted(self, run_id: UUID, tool: object, tool_input: object) -> None:
        """A classic agent chose a tool, which it may not know."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.last_action = (short_name(tool), tool_input)

    def agent_finished(self, run_id: UUID, values: object) -> None:
        """A classic agent gave its final values, which a streamed one does not return."""
        entry = self._open.get(run_id)
        if entry is not None and run_id == entry.root.run_id:
            entry.root.agent_answer = answer_in(values, self._text_chars) or ""

    def reported(self, run_id: UUID | None, outcome: object) -> bool:
        """Somebody gave a verdict on a run; tell whether that is under way."""
        entry = None if run_id is None else self._open.get(run_id)
        if entry is None:
            return False
        entry.root.reported = outcome
        # Else it ended meanwhile, and may have been scored without this.
        return entry.root.run_id in self._open


def _note_end(root: RunRecord, call: Call, text: Any) -> None:
    """Record how a tool or retriever ended, with what it said."""
    call.after_no = root.decision == "rejected"
    if call.failed:
        call.error = text
    else:
        call.text = text
    root.mark("error" if call.failed else "end", call)


def _is_doubtful(root: RunRecord) -> bool:
    """Whether a human decided, and perhaps against a call."""
    return root.decision in ("rejected", "unclear")


def _is_resumed_here(root: RunRecord) -> bool:
    return root.resumed is not None and root.resumed.earlier is not None


def _note_pause(entry: OpenRun) -> None:
    root = entry.root
    root.thread_id = entry.thread_id or root.thread_id
    root.checkpoint_id = entry.checkpoint_id or root.checkpoint_id


def _checkpoint(found: object) -> str | None:
    return found[:NAME_CHARS] if type(found) is str else None


@contained(())
def _last_answers(messages: object) -> Sequence[Any]:
    """The tool messages at the end of a model's input."""
    if not isinstance(messages, (list, tuple)):
        return ()
    shown = messages[-MAX_ITEMS:]
    answers = list(takewhile(lambda one: getattr(one, "type", None) == "tool", reversed(shown)))
    return answers[::-1]


@contained(False)
def _says_error(output: object) -> bool:
    status = getattr(output, "status", None)
    if status is not None:  # a tool message has one
        return bool(status == "error")
    return is_command(output) and any(
        getattr(message, "status", None) == "error" for message in messages_in(output)
    )


def _remember(root: RunRecord, error: BaseException) -> None:
    if len(root.raised) < root.recorder.bounds.steps:
        root.raised.append(id(error))


@contained(None)
def _form_in(outputs: object) -> Literal["accepted", "refused"] | None:
    """What langchain's agent says of a structured answer, in the output of the node that asked.

    It says no more than that a form is there. Older releases leave it out where it was refused,
    and then tell it by the message alone.
    """
    for output in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
        update = attribute(output, "update") if is_command(output) else output
        if not isinstance(update, MAPPING):
            continue
        if "structured_response" in update:
            return "refused" if update["structured_response"] is None else "accepted"
        last = messages_in(update)[-1:]
        if last and attribute(last[0], "status") != "error":
            text = attribute(last[0], "content")
            if isinstance(text, str) and text.startswith("Error: "):
                return "refused"
    return None


@contained(False)
def _is_recorded(error: BaseException, entry: OpenRun) -> bool:
    """Whether what a run raised, or a cause of it, is recorded as a failure below it."""
    # Only those since it began: another exception may have the id of one that is gone.
    raised = entry.root.raised[entry.failures_before :]
    cause: BaseException | None = error if raised else None
    for _ in range(_CAUSES_READ):
        if cause is None:
            return False
        if id(cause) in raised:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@contained(False)
def _jumps_to_end(outputs: object) -> bool:
    return isinstance(outputs, Mapping) and bool(outputs.get("jump_to") == "end")


@contained((0, 0, ""))
def _shape(messages: object) -> tuple[int, int, str]:
    """Enough of a model's input to tell two calls apart, at no cost worth counting."""
    if not isinstance(messages, (list, tuple)) or not messages:
        return (0, 0, "")
    content = getattr(messages[-1], "content", messages[-1])
    if not isinstance(content, (str, list)):
        return (len(messages), 0, "")
    return (len(messages), len(content), content[:80] if isinstance(content, str) else "")
