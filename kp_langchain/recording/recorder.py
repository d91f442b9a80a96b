"""The recorder: events of LangChain runs in, one `RunRecord` per root run out.

A state machine on top of the tree of runs, under the same rule: it runs inside the user's agent, in
whatever thread the event comes from, and takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from kp_langchain.recording import paused
from kp_langchain.recording.meaning import Meaning, meaning_of
from kp_langchain.recording.messages import (
    MAPPING,
    MAX_ITEMS,
    answer_in,
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
    plain,
    text_size,
)
from kp_langchain.recording.outcome import confidence_in
from kp_langchain.recording.record import (
    MARGIN_CHARS,
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

# Middleware of langchain that ends an agent at a limit without an error.
_LIMIT_NODES = ("ModelCallLimitMiddleware", "ToolCallLimitMiddleware")
_MOST_PENDING = 1000
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
    """

    def __init__(
        self,
        bounds: Bounds,
        deliver: Callable[[RunRecord], None],
        ambient: Callable[[], UUID | None] = lambda: None,
        scope: object = None,
        keep_output: bool = False,
        objective_of: Callable[[Any], str] | None = None,
    ) -> None:
        super().__init__(bounds, lambda start: RunRecord(self, start), ambient)
        self.scope = scope
        self._text_chars = bounds.text_chars + 2 * MARGIN_CHARS
        self._keep_output = keep_output
        self._told_objective = objective_of
        self._deliver = deliver

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
        if ending == "paused":
            if root.thread_id is None:  # without a checkpointer nothing can resume it
                root.settled = True
                self.tally.add("abandoned")
            else:
                paused.add(root)
        elif ending == "cancelled":
            root.settled = True
            self.tally.add("cancelled")
        elif not root.head:
            root.settled = True
            self.tally.add("empty")
        else:
            self._deliver(root)

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
        run_id, _, name, metadata = start
        root = entry.root
        entry.limit_node = short_name(name).startswith(_LIMIT_NODES)
        if "langgraph_node" not in metadata:  # a whole graph or chain, not a node of one
            self._resume(root, run_id == root.run_id, inputs, metadata)
        if not root.objective and run_id == root.run_id:
            root.objective = self._objective_of(inputs)

    def _resume(
        self, root: RunRecord, is_root: bool, inputs: object, metadata: Mapping[str, Any]
    ) -> None:
        """Continue the run that waits in this thread; a new question gives it up."""
        resuming = inputs is None or is_command(inputs)
        if resuming:
            root.interrupted = False
        if not paused.any() or (thread_id := thread_id_in(metadata)) is None:
            return
        if not resuming and not (is_root and root.langgraph):
            return
        earlier = paused.take(thread_id, self)
        if earlier is None:
            return
        if not resuming:
            earlier.recorder.tally.add("abandoned")
            return
        root.continues(earlier)
        if earlier.recorder is self:
            self.tally.add("runs", -1)  # the two halves are one run
        else:
            earlier.recorder.tally.add("handed_over")

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
        if not root.objective and inputs is not None:
            root.objective = self._objective_of(inputs)
        call = root.last_call
        open_model = call is not None and call.kind == "model" and not call.answered
        if entry.interrupted or root.interrupted:
            root.thread_id = entry.thread_id or root.thread_id
            self._end_root(root, "paused")
        elif open_model and inputs is not None and not root.langgraph:
            # A chain that streams tells its inputs at the end. Closed half-way it ends normally,
            # but before its model does.
            self._end_root(root, "cancelled")
        else:
            self._finish_root(root, outputs)

    def _inner_ended(self, entry: OpenRun, outputs: object) -> None:
        root = entry.root
        if entry.interrupted:  # a graph inside this run paused; what starts next says it went on
            root.interrupted = True
            root.thread_id = entry.thread_id or root.thread_id
        if entry.limit_node and _jumps_to_end(outputs):
            root.limit_reached = True
        if root.pending:
            self._note_unstarted(root, outputs)

    def _note_unstarted(self, root: RunRecord, outputs: object) -> None:
        """Record the tool calls that failed before any tool started: unknown tools, rejections."""
        for message in messages_in(outputs):
            if message.type != "tool":
                continue
            call_id = getattr(message, "tool_call_id", None)
            name = root.pending.pop(call_id, None) if isinstance(call_id, str) else None
            if name is not None and getattr(message, "status", None) == "error":
                call = Call("tool", "", ("unstarted", call_id))
                call.failed = True
                call.error = self._keep(root, message_text, message)
                root.mark("error", call)

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
        if run_id != root.run_id:
            return
        if not root.objective and inputs is not None:
            root.objective = self._objective_of(inputs)
        self._fail_root(root, error, meaning)

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

    def interrupted(self, run_id: UUID | None) -> None:
        """LangGraph says that a graph paused; also at a breakpoint, which raises nothing."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.interrupted = True

    def resumed(self, run_id: UUID | None) -> None:
        """LangGraph says that a graph goes on."""
        if run_id is not None and (entry := self._open.get(run_id)) is not None:
            entry.root.interrupted = False

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

    def model_started(self, start: Start, messages: object) -> None:
        """A model was asked, with chat messages or prompts."""
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

    def model_answered(self, run_id: UUID, message: object, text: str, logprobs: object) -> None:
        """A model answered with a message, or with plain text."""
        done = self._answered(run_id)
        if done is None:
            return
        entry, call = done
        root = entry.root
        try:
            if message is not None:
                call.text = self._keep(root, message_text, message)
            else:
                call.text = self._keep(root, clip, text)
            self._note_pending(root, attribute(message, "tool_calls"))
            root.logprobs = logprobs
        finally:
            if run_id == root.run_id:
                self._finish_root(root, message if message is not None else text)

    def _note_pending(self, root: RunRecord, tool_calls: Any) -> None:
        for asked in tool_calls[:MAX_ITEMS] if isinstance(tool_calls, (list, tuple)) else ():
            call_id = asked.get("id") if isinstance(asked, MAPPING) else None
            if isinstance(call_id, str) and len(root.pending) < _MOST_PENDING:
                root.pending[call_id] = short_name(asked.get("name"))

    def tool_started(self, start: Start, inputs: object, tool_call_id: object = None) -> None:
        """A tool began."""
        made = self._call("tool", start)
        if made is None:
            return
        root, call = made
        call.input = self._keep(root, _as_input, inputs)
        call.mcp_server = as_text(start.metadata.get("mcp_server"), 200) or None
        if isinstance(tool_call_id, str) and tool_call_id:
            call.tool_call_id = tool_call_id
            call.key = ("tool", tool_call_id)
            root.pending.pop(tool_call_id, None)
        else:
            call.key = ("tool", call.key, str(call.input))
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
            call_id = attribute(output, "tool_call_id")
            if isinstance(call_id, str):
                root.pending.pop(call_id, None)
            kept = self._keep(root, gist, output)
            call.failed = _says_error(output)
            if call.failed:
                call.error = kept
            else:
                call.text = kept
            root.mark("error" if call.failed else "end", call)
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
        if call.kind == "model" and call.cancelled:
            # The agent read as much of the answer as it wanted.
            call.text = self._keep(root, message_text, partial)
        elif meaning in ("error", "cancelled"):
            call.failed = True
            call.error = self._keep(root, error_text, error)
            if call.kind != "model":  # a model's failure stands where the model was asked
                root.mark("error", call)
                self._drop_pending(root, call)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry)
        if run_id == root.run_id:
            self._fail_root(root, error, meaning)

    def _drop_pending(self, root: RunRecord, call: Call) -> None:
        # Older langchain-core gives no tool_call_id at the start; the name is the next best.
        if call.tool_call_id is None:
            for call_id, name in list(root.pending.items()):
                if name == call.name:
                    root.pending.pop(call_id, None)
                    return

    def retried(self, run_id: UUID, attempt: int, error: BaseException | None) -> None:
        """The model or tool itself tries again inside one run."""
        entry = self._open.get(run_id)
        if entry is None or entry.call is None:
            return
        entry.call.retries = max(entry.call.retries, attempt)
        if error is not None:
            entry.root.room_chars += text_size(entry.call.error)  # it takes the last one's place
            entry.call.error = self._keep(entry.root, error_text, error)

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


def _as_input(inputs: object, limit: int) -> dict[str, Any]:
    shape = plain(inputs, limit)
    return shape if isinstance(shape, dict) else {"input": shape}


@contained(False)
def _says_error(output: object) -> bool:
    status = getattr(output, "status", None)
    if status is not None:  # a tool message has one
        return bool(status == "error")
    return is_command(output) and any(
        getattr(message, "status", None) == "error" for message in messages_in(output)
    )


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
