"""The recorder: events of LangChain runs in, one `RunRecord` per root run out.

A state machine on top of the tree of runs, under the same rule: it runs inside the user's agent, in
whatever thread an event comes from, and takes no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kp_langchain.recording.answers import answer_in, ended_early, last_items, objective_in
from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.failures import (
    begin_attempt,
    end_attempt,
    error_text,
    is_recorded,
    meaning_of,
    record_failure,
)
from kp_langchain.recording.human import exchanges_in, newest_exchanges
from kp_langchain.recording.langchain_context import (
    Start,
    is_inner_call,
    mcp_server_in,
    metadata_text,
)
from kp_langchain.recording.messages import message_text
from kp_langchain.recording.root_runs import (
    RootRuns,
    continues_in_process,
    has_paused,
    note_pause,
)
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.run_tree import OpenRun
from kp_langchain.recording.safe_reads import (
    attribute,
    clip,
    default_on_error,
    short_name,
)
from kp_langchain.recording.tool_answers import (
    answer_to_call,
    may_be_answered,
    record_answers,
    record_answers_in_input,
    record_model_answer,
    record_remote_answers,
    record_unanswered,
)
from kp_langchain.recording.values import as_text, gist, text_size
from kp_langchain.run_keys import have_same_keys

_TASK = "langgraph_checkpoint_ns"
# Two are as good as many: such a run is shown to no other.
_MOST_NAMESPACES = 8
# Middleware of langchain that ends an agent at a limit without an error.
_LIMIT_NODES = ("ModelCallLimitMiddleware", "ToolCallLimitMiddleware")
# The tool that the classic AgentExecutor runs in place of one that it does not know.
_UNKNOWN_TOOL = "invalid_tool"


class Recorder(RootRuns):
    """Follows the runs that one handler sees. Takes the arguments of `RunTree`.

    A method for an event never raises because of a user's value.
    """

    # ---------------------------------------------------------------- chains and graphs

    def chain_started(self, start: Start, inputs: object) -> None:
        """Record that a chain, graph or node began."""
        entry = self._begin(start)
        if entry is None:
            return
        root, state, metadata = entry.root, entry.root.state, start.metadata
        entry.name, entry.inputs = short_name(start.name), last_items(inputs)
        entry.task = metadata_text(metadata, _TASK)
        if entry.parent is not None:
            _note_namespace(root, metadata)
        if entry.task:
            begin_attempt(entry)
        if state.last_failure is not None:
            root.timeline.add("start", state.last_failure)  # the run continued after it
            state.last_failure = None
        if "langgraph_node" not in metadata:  # a whole graph or chain, not a node of one
            self._resume(root, inputs, metadata)
        if entry.parent is None and not root.objective and not continues_in_process(root):
            root.objective = self._objective_of(inputs)

    def chain_ended(self, run_id: UUID, outputs: object, inputs: object = None) -> None:
        """Record that a chain returned.

        Args:
            run_id: The id of the run.
            outputs: What it returned.
            inputs: Its inputs, if LangChain hands them over only at the end, as for a stream.
        """
        entry = self._finish(run_id)
        if entry is None:
            return
        root = entry.root
        end_attempt(entry)
        given = entry.inputs if inputs is None else last_items(inputs)
        if not entry.has_calls and record_remote_answers(root, given, outputs):
            entry.note_call_inside()
        if entry.parent is not None:
            _inner_chain_ended(entry, outputs)
            return
        if not root.objective and inputs is not None and not continues_in_process(root):
            root.objective = self._objective_of(inputs)
        call = root.state.last_call
        is_model_open = call is not None and call.kind == "model" and not call.has_ended
        if has_paused(entry):
            self._pause_root(entry)
        elif is_model_open and inputs is not None and not root.is_langgraph:
            # A stream that is closed half-way ends without an error, but before its model does.
            self._end_root(root, "cancelled")
        else:
            if root.requested_calls:
                record_unanswered(root, outputs)
            self._finish_root(root, outputs, given)

    def chain_failed(self, run_id: UUID, error: BaseException, inputs: object = None) -> None:
        """Record that a chain raised; for `inputs` see `chain_ended`."""
        entry = self._finish(run_id)
        if entry is None:
            return
        root, is_root, meaning = entry.root, entry.parent is None, meaning_of(error)
        if meaning != "cancelled":
            end_attempt(entry)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry, error)
        if is_root and not root.objective and inputs is not None:
            root.objective = self._objective_of(inputs)
        if meaning == "error" and not is_recorded(error, entry):
            # A graph raises the timeout of its node.
            attempts = (one for one in list(root.state.attempts.values()) if one.parent is entry)
            record_failure(next(attempts, entry), error, is_root=is_root)
        if is_root:
            self._fail_root(entry, error, meaning)
        elif meaning == "cancelled":
            root.state.final_message = None

    # ---------------------------------------------------------------- calls

    def _begin_call(self, entry: OpenRun, kind: CallKind, start: Start) -> Call:
        root, metadata = entry.root, start.metadata
        call = entry.call = Call(kind, short_name(start.name), None)
        entry.task = metadata_text(metadata, _TASK)
        outer = entry.outer_call()
        is_lookup = kind == "retriever" and outer is not None  # how a tool works, not what was used
        if outer is not None and not is_lookup:
            outer.inner = (*outer.inner, call)[:2]
        call.is_void = is_lookup or is_inner_call(metadata, root.metadata)
        if not call.is_void:
            root.state.last_call = call
        root.state.is_interrupted = False
        root.timeline.add("start", call)
        entry.note_call_inside()
        return call

    def _end_call(self, run_id: UUID) -> tuple[OpenRun, Call] | None:
        entry = self._finish(run_id)
        if entry is None or entry.call is None:
            return None
        entry.call.end()
        return entry, entry.call

    def model_started(self, start: Start, messages: object, tools: object = None) -> None:
        """Record that a model was asked: with chat messages or prompts, and by which tools."""
        entry = self._begin(start)
        if entry is None:
            return
        root = entry.root
        if may_be_answered(root):
            record_answers_in_input(root, messages)
        call = self._begin_call(entry, "model", start)
        # Attempts of one call have one parent, or one LangGraph task, and one input.
        call.key = ("model", entry.task or entry.place, _input_fingerprint(messages))
        root.human.note(newest_exchanges(messages))
        call.offers_choice = isinstance(tools, list) and len(tools) > 1
        if not call.is_void:
            root.state.final_message = None
            if not root.fallback_objective:
                root.fallback_objective = objective_in(messages, self._raw_text_chars)
        if entry.parent is None and not root.objective:
            root.objective = self._objective_of(messages)

    def conversation_seen(self, run_id: UUID, messages: Sequence[object]) -> None:
        """Note what a human was asked and answered in the messages of an open run."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.human.note(exchanges_in(messages))

    def model_answered(
        self,
        run_id: UUID,
        message: object,
        text: str = "",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a model's answer.

        Args:
            run_id: The id of the run.
            message: The message of a chat model; None for a model that returns plain text.
            text: The text of the answer, read only without a message.
            info: LangChain's `generation_info`.
        """
        ended_call = self._end_call(run_id)
        if ended_call is None:
            return
        entry, call = ended_call
        root = entry.root
        try:
            if call.is_void:  # no thought of the agent's
                return
            call.is_incomplete = bool(info) and ended_early(info)
            if message is None:
                call.text, root.state.final_message = root.read(clip, text), text
            elif not record_model_answer(root, call, message):
                root.state.final_message = message
            root.claims.last_answer = message, info
        finally:
            if entry.parent is None:
                self._finish_root(root, message if message is not None else text)

    def tool_started(self, start: Start, inputs: object, tool_call_id: object = None) -> None:
        """Record that a tool began."""
        entry = self._begin(start)
        if entry is None:
            return
        root, call = entry.root, self._begin_call(entry, "tool", start)
        if call.name == _UNKNOWN_TOOL and root.state.last_action[0]:
            call.name, inputs = root.state.last_action
            call.has_failed = True  # whatever it returns
        call.input = root.read_input(inputs)
        if "mcp" in start.metadata or "mcp_server" in start.metadata:
            call.mcp_server = mcp_server_in(start.metadata) or None
        if isinstance(tool_call_id, str) and tool_call_id:
            call.tool_call_id = tool_call_id
            call.key = ("tool", tool_call_id)
        else:
            call.key = ("tool", entry.place, call.name, str(call.input))
        root.requested_calls.begin(call, inputs)
        if entry.parent is None and not root.objective:
            root.objective = self._objective_of(inputs) or as_text(inputs, self._raw_text_chars)

    def tool_answered(self, run_id: UUID, output: object) -> None:
        """Record what a tool or retriever returned."""
        ended_call = self._end_call(run_id)
        if ended_call is None:
            return
        entry, call = ended_call
        root = entry.root
        try:
            root.requested_calls.take(attribute(output, "tool_call_id"))
            root.requested_calls.answer(call.tool_call_id)
            answer = answer_to_call(output, call.tool_call_id) if call.kind == "tool" else output
            status = attribute(answer, "status")
            call.has_failed = call.has_failed or (type(status) is str and status == "error")
            _mark_end(entry, call, root.read(gist, answer))
        finally:
            if entry.parent is None:
                self._finish_root(root, output)

    def retriever_started(self, start: Start, query: object) -> None:
        """Record that a retriever began."""
        entry = self._begin(start)
        if entry is None:
            return
        root, call = entry.root, self._begin_call(entry, "retriever", start)
        text = root.read(as_text, query)
        call.input = {"query": text}
        call.key = ("retriever", entry.place, call.name, text)
        if entry.parent is None and not root.objective:
            root.objective = text

    def call_failed(self, run_id: UUID, error: BaseException, partial: object = None) -> None:
        """Record that a model, tool or retriever raised.

        Args:
            run_id: The id of the run.
            error: What it raised.
            partial: The message that a model had streamed until then.
        """
        ended_call = self._end_call(run_id)
        if ended_call is None:
            return
        entry, call = ended_call
        root, meaning = entry.root, meaning_of(error)
        call.is_cancelled = meaning == "cancelled"
        if call.is_cancelled:
            root.state.final_message = None
        if meaning == "interrupt":
            call.is_void = True
            root.requested_calls.pause(call)
        if call.kind == "model" and call.is_cancelled:
            # The agent read as much of the answer as it wanted.
            call.text = root.read(message_text, partial)
        elif meaning == "error":
            call.has_failed = True
            text = root.read(error_text, error)
            failure = root.state.last_failure
            if failure is not None and is_recorded(error, entry):
                failure.is_void = True  # the same failure, of a chain inside this call
                root.state.last_failure = None
            root.note_error(error)
            root.requested_calls.answer(call.tool_call_id)
            if call.kind == "model":  # a model's failure stands where the model was asked
                call.error, call.is_void = text, False
            else:
                _mark_end(entry, call, text)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry, error)
        if entry.parent is None:
            self._fail_root(entry, error, meaning)

    def call_retried(self, run_id: UUID, attempt: int, error: BaseException | None) -> None:
        """Record that a model or tool tries again inside one run.

        Args:
            run_id: The id of the run.
            attempt: The attempts made so far.
            error: Why the last one failed, if known.
        """
        entry = self._open.get(run_id)
        if entry is None or entry.call is None:
            return
        entry.call.retries = max(entry.call.retries, attempt)
        if error is not None:
            entry.root.room_chars += text_size(entry.call.error)  # the new text replaces it
            entry.call.error = entry.root.read(error_text, error)

    # ---------------------------------------------------------------- classic agents

    def agent_acted(self, run_id: UUID, tool: object, tool_input: object) -> None:
        """Record the tool that a classic agent chose; there may be no such tool."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.state.last_action = (short_name(tool), tool_input)

    def agent_finished(self, run_id: UUID, values: object) -> None:
        """Record the final values of a classic agent, which a streamed one does not return."""
        entry = self._open.get(run_id)
        if entry is not None and entry.parent is None:
            entry.root.state.agent_answer = answer_in(values, self._raw_text_chars) or ""


def _note_namespace(root: RunRecord, metadata: Mapping[str, Any]) -> None:
    """Note the namespace that a chain's metadata name, if it is another than those so far."""
    names, inner = root.owner.namespace_keys, root.inner_namespaces
    for name in names:
        if metadata.get(name) is not root.metadata.get(name):
            break
    else:  # like most
        return
    if len(inner) < _MOST_NAMESPACES and not any(
        have_same_keys(names, metadata, known) for known in (root.metadata, *inner)
    ):
        inner.append({name: metadata.get(name) for name in names})


def _inner_chain_ended(entry: OpenRun, outputs: object) -> None:
    root, state = entry.root, entry.root.state
    if entry.is_interrupted:  # unless something begins next, the root pauses as well
        state.is_interrupted = True
        note_pause(entry)
        state.waiting_model = state.last_call
    is_limit = entry.name.startswith(_LIMIT_NODES)
    if is_limit and type(outputs) is dict and outputs.get("jump_to") == "end":
        root.claims.has_reached_limit = True
    if may_be_answered(root):
        record_answers(root, outputs)


def _mark_end(entry: OpenRun, call: Call, text: Any) -> None:
    """Record how a tool or retriever ended, with its output or error."""
    if len(entry.inner) == 1 and entry.inner[0].kind == "model":
        entry.inner[0].leave_to(text, entry.root.raw_text_chars)
    entry.root.state.final_message = None  # of a model that works inside a tool
    call.is_after_rejection = entry.root.human.decision == "rejected"
    entry.root.timeline.add(call.set_result(text), call)


@default_on_error((0, 0, ""))
def _input_fingerprint(messages: object) -> tuple[int, int, str]:
    """Return enough of a model's input to tell two calls apart, without reading all of it.

    It is the number of messages, the length of the last one, and its beginning.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        return (0, 0, "")
    content = getattr(messages[-1], "content", messages[-1])
    if not isinstance(content, (str, list)):
        return (len(messages), 0, "")
    return (len(messages), len(content), content[:80] if isinstance(content, str) else "")
