"""The recorder: events of LangChain runs in, one `RunRecord` per root run out.

A state machine on top of the open runs, under the same rule: it runs inside the user's agent, in
whatever thread an event comes from, and takes no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kp_langchain.recording.answers import (
    ended_early,
    last_items,
    objective_in,
    record_model_answer,
    structured_response_in,
)
from kp_langchain.recording.bounds import default_on_error, member, short_name
from kp_langchain.recording.calls import (
    Call,
    CallKind,
    Meaning,
    error_text,
    meaning_of,
    stems_from,
)
from kp_langchain.recording.langchain_context import (
    Start,
    is_inner_call,
    mcp_server_in,
    metadata_text,
)
from kp_langchain.recording.open_runs import OpenRun, OpenRuns
from kp_langchain.recording.pauses import exchanges_in, newest_exchanges, question_in
from kp_langchain.recording.requested_calls import (
    answer_to_call,
    begin_requested,
    record_answers,
    record_answers_in_input,
    record_unanswered,
)
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.values import as_input, as_text, gist, message_text
from kp_langchain.run_keys import NAMESPACE_NAME, namespace_text
from kp_langchain.values import clip

_TASK = "langgraph_checkpoint_ns"
# The tool that the classic AgentExecutor runs in place of one that it does not know.
_UNKNOWN_TOOL = "invalid_tool"
# Two namespaces already hide a run from all others, so more need not be recorded.
_MOST_NAMESPACES = 8


class Recorder(OpenRuns):
    """Follows the runs that one handler sees. Takes the arguments of `OpenRuns`.

    A method for an event never raises because of a user's value.
    """

    # ---------------------------------------------------------------- chains and graphs

    def chain_started(self, start: Start, inputs: object) -> None:
        """Record that a chain, graph or node began."""
        run = self._begin(start)
        if run is None:
            return
        root, metadata = run.root, start.metadata
        run.name, run.task = short_name(start.name), metadata_text(metadata, _TASK)
        if run.parent is None:
            run.inputs = last_items(inputs)
        else:
            _note_namespace(root, metadata)
        if root.last_failure is not None:
            root.timeline.add("start", root.last_failure)  # the run continued after it
            root.last_failure = None
        if "langgraph_node" not in metadata:  # a whole graph or chain, not a node of one
            self._resume(root, inputs, metadata)
        self._note_objective(run, inputs)

    def chain_ended(self, run_id: UUID, outputs: object, inputs: object = None) -> None:
        """Record that a chain returned.

        Args:
            run_id: The id of the run.
            outputs: What it returned.
            inputs: Its inputs, if LangChain hands them over only at the end, as for a stream.
        """
        run = self._finish(run_id)
        if run is None:
            return
        root = run.root
        if run.parent is not None:
            if run.is_interrupted:  # unless something begins next, the root pauses as well
                root.is_interrupted = True
                run.note_pause()
                root.waiting_model = root.last_call
            if root.requested_calls.may_be_answered:
                record_answers(root, outputs)
            return
        if inputs is not None:
            self._note_objective(run, inputs)
        call = root.last_call
        is_model_open = call is not None and call.kind == "model" and not call.has_ended
        if run.has_paused:
            self._pause_root(run)
        elif is_model_open and inputs is not None and not root.is_langgraph:
            # A stream that is closed half-way ends without an error, but before its model does.
            self._end_root(root, "cancelled")
        else:
            if root.requested_calls.may_be_answered and structured_response_in(outputs) is None:
                record_unanswered(root, outputs)
            first_inputs = run.inputs if inputs is None else last_items(inputs)
            self._finish_root(root, outputs, first_inputs)

    def chain_failed(self, run_id: UUID, error: BaseException, inputs: object = None) -> None:
        """Record that a chain raised; for `inputs` see `chain_ended`."""
        run = self._finish(run_id)
        if run is None:
            return
        root, is_root, meaning = run.root, run.parent is None, meaning_of(error)
        if meaning == "interrupt":
            self._pass_on_interrupt(run, error)
        if inputs is not None:
            self._note_objective(run, inputs)
        if meaning == "error" and not _is_recorded(error, run):
            _record_failure(run, error)
        if is_root:
            self._fail_root(run, error, meaning)
        elif meaning == "cancelled":
            root.final_message = None

    def _pass_on_interrupt(self, run: OpenRun, error: BaseException) -> None:
        human = run.root.human
        human.question = question_in(error) or human.question
        if run.parent is not None:
            run.parent.is_interrupted = True

    def _fail_root(self, run: OpenRun, error: BaseException, meaning: Meaning) -> None:
        """End a root run that raised, or whose caller left its stream."""
        root = run.root
        if meaning == "interrupt" or (meaning == "cancelled" and run.has_paused):
            self._pause_root(run)
        elif meaning == "error":
            self._end_with_error(root, error)
        elif meaning == "cancelled" and not self._has_answered(root):
            self._end_root(root, "cancelled")
        else:  # left after its answer, or handed over
            output = root.final_message if meaning == "cancelled" else None
            self._finish_root(root, output)

    # ---------------------------------------------------------------- calls

    def _begin_call(self, run: OpenRun, kind: CallKind, start: Start) -> Call:
        root, metadata = run.root, start.metadata
        call = run.call = Call(kind, short_name(start.name), None, started_s=self.now_s())
        run.task = metadata_text(metadata, _TASK)
        outer = run.outer_call()
        is_lookup = kind == "retriever" and outer is not None  # how a tool works, not what was used
        if outer is not None and not is_lookup:
            outer.inner = (*outer.inner, call)[:2]
        call.is_inner = is_inner_call(metadata, root.metadata)
        call.is_void = is_lookup or call.is_inner
        if not is_lookup:
            root.note_call(call)
        if not call.is_void:
            root.last_call = call
        root.is_interrupted = False
        root.timeline.add("start", call)
        return call

    def _end_call(self, run_id: UUID) -> tuple[OpenRun, Call] | None:
        run = self._finish(run_id)
        if run is None or run.call is None:
            return None
        run.call.end(self.now_s())
        return run, run.call

    def model_started(self, start: Start, messages: object, tools: object = None) -> None:
        """Record that a model was asked: with chat messages or prompts, and by which tools."""
        run = self._begin(start)
        if run is None:
            return
        root = run.root
        if root.requested_calls.may_be_answered:
            record_answers_in_input(root, messages)
        call = self._begin_call(run, "model", start)
        call.model = short_name(metadata_text(start.metadata, "ls_model_name")) or call.name
        call.provider = short_name(metadata_text(start.metadata, "ls_provider"))
        # Attempts of one call have one parent, or one LangGraph task, and one input.
        call.key = ("model", run.task or run.parent_key, _input_fingerprint(messages))
        root.human.note(newest_exchanges(messages))
        if isinstance(tools, list) and tools and not call.is_inner:
            call.offers_choice = len(tools) > 1
            root.note_tools(tools, metadata_text(start.metadata, "lc_agent_name"))
        if not call.is_void:
            root.final_message = None
            if not root.fallback_objective:
                root.fallback_objective = objective_in(messages, self.raw_text_chars)
        self._note_objective(run, messages)

    def conversation_seen(self, run_id: UUID, messages: Sequence[object]) -> None:
        """Note what a human was asked and answered in the messages of an open run."""
        run = self._open.get(run_id)
        if run is not None:
            run.root.human.note(exchanges_in(messages))

    def model_answered(
        self,
        run_id: UUID,
        message: object,
        text: str = "",
        info: Mapping[str, Any] | None = None,
        details: object = None,
    ) -> None:
        """Record a model's answer.

        Args:
            run_id: The id of the run.
            message: The message of a chat model; None for a model that returns plain text.
            text: The text of the answer, read only without a message.
            info: LangChain's `generation_info`.
            details: LangChain's `llm_output`, which says what the message does not.
        """
        ended_call = self._end_call(run_id)
        if ended_call is None:
            return
        run, call = ended_call
        root = run.root
        _note_usage(call, message, info, details)
        try:
            if call.is_void:  # no thought of the agent's
                return
            call.is_incomplete = bool(info) and ended_early(info)
            if message is None:
                call.text, root.final_message = root.read(clip, text), text
            elif not record_model_answer(root, call, message):
                root.final_message = message
        finally:
            if run.parent is None:
                self._finish_root(root, message if message is not None else text)

    def tool_started(self, start: Start, inputs: object, tool_call_id: object = None) -> None:
        """Record that a tool began."""
        run = self._begin(start)
        if run is None:
            return
        root, call = run.root, self._begin_call(run, "tool", start)
        call.input = root.read(as_input, inputs)
        if "mcp" in start.metadata or "mcp_server" in start.metadata:
            call.mcp_server = mcp_server_in(start.metadata) or None
        if isinstance(tool_call_id, str) and tool_call_id:
            call.tool_call_id = tool_call_id
            call.key = ("tool", tool_call_id)
        else:
            call.key = ("tool", run.parent_key, call.name, str(call.input))
        root.requested_calls.begin(call, inputs)
        self._note_objective(run, inputs)
        if run.parent is None and not root.objective:
            root.objective = as_text(inputs, self.raw_text_chars)

    def tool_answered(self, run_id: UUID, output: object) -> None:
        """Record what a tool or retriever returned."""
        ended_call = self._end_call(run_id)
        if ended_call is None:
            return
        run, call = ended_call
        root = run.root
        try:
            root.requested_calls.take(member(output, "tool_call_id"))
            root.requested_calls.answer(call.tool_call_id)
            answer = answer_to_call(output, call.tool_call_id) if call.kind == "tool" else output
            status = member(answer, "status")
            is_error = type(status) is str and status == "error"
            call.has_failed = is_error or call.name == _UNKNOWN_TOOL
            _mark_end(run, call, root.read(gist, answer))
        finally:
            if run.parent is None:
                self._finish_root(root, output)

    def retriever_started(self, start: Start, query: object) -> None:
        """Record that a retriever began."""
        run = self._begin(start)
        if run is None:
            return
        root, call = run.root, self._begin_call(run, "retriever", start)
        text = root.read(as_text, query)
        call.input = {"query": text}
        call.key = ("retriever", run.parent_key, call.name, text)
        if run.parent is None and not root.objective:
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
        run, call = ended_call
        root, meaning = run.root, meaning_of(error)
        if partial is not None:
            _note_usage(call, partial)
        call.is_cancelled = meaning == "cancelled"
        if call.is_cancelled:
            root.final_message = None
        if meaning == "interrupt":
            call.is_void = True
            root.requested_calls.pause(call)
        if call.kind == "model" and call.is_cancelled:
            # The agent read as much of the answer as it wanted.
            call.text = root.read(message_text, partial)
        elif meaning == "error":
            call.has_failed = True
            text = root.read(error_text, error)
            failure = root.last_failure
            if failure is not None and _is_recorded(error, run):
                failure.is_void = True  # the same failure, of a chain inside this call
                root.last_failure = None
            root.note_error(error)
            root.requested_calls.answer(call.tool_call_id)
            if call.kind == "model":  # a model's failure stands where the model was asked
                call.error, call.is_void = text, False
            else:
                _mark_end(run, call, text)
        if meaning == "interrupt":
            self._pass_on_interrupt(run, error)
        if run.parent is None:
            self._fail_root(run, error, meaning)


def _note_namespace(root: RunRecord, metadata: Mapping[str, Any]) -> None:
    """Note the namespace that a chain's metadata name, if it is another than those so far."""
    inner = root.inner_namespaces
    if metadata.get(NAMESPACE_NAME) is root.metadata.get(NAMESPACE_NAME):  # like most
        return
    text = namespace_text(metadata)
    if text is not None and text not in (namespace_text(root.metadata), *inner):
        inner.append(text)
        del inner[_MOST_NAMESPACES:]


def _is_recorded(error: BaseException, run: OpenRun) -> bool:
    """Return whether an error of a run, or a cause of it, is recorded already, below the run."""
    # Only errors since the run began: an earlier exception, now freed, may have had the same id.
    return stems_from(error, run.root.error_ids[run.errors_before :])


def _record_failure(run: OpenRun, error: BaseException) -> None:
    """Record that a chain raised an error of its own, not that of a call below it."""
    root, is_root = run.root, run.parent is None
    # The chain failed before the tool calls that the model requested last could run.
    for request in root.requested_calls.of_model(root.last_call):
        root.requested_calls.take(request.call_id)
        begin_requested(root, request)
    # All attempts of a LangGraph node have one task; those of other chains have one parent.
    call = Call("chain", "", ("chain", run.task or (run.parent_key, run.name)))
    call.has_failed = True
    # There is always room for the error that ends the run: it is the run's result.
    call.error = error_text(error, root.raw_text_chars) if is_root else root.read(error_text, error)
    root.timeline.add("error", call)
    root.last_failure = call
    root.note_error(error)


def _mark_end(run: OpenRun, call: Call, text: Any) -> None:
    """Record how a tool or retriever ended, with its output or error."""
    if len(run.inner) == 1 and run.inner[0].kind == "model":
        run.inner[0].leave_to(text, run.root.raw_text_chars)
    run.root.final_message = None  # of a model that works inside a tool
    call.is_after_rejection = run.root.human.decision == "rejected"
    run.root.timeline.add(call.set_result(text), call)


@default_on_error(None)
def _note_usage(call: Call, message: object, info: object = None, details: object = None) -> None:
    """Note which model answered, and what the answer says of its tokens.

    Args:
        call: The call of the model.
        message: The message of a chat model, or None.
        info: LangChain's `generation_info`.
        details: LangChain's `llm_output`.
    """
    answer = member(message, "response_metadata")
    for source in (answer, details):
        name = isinstance(source, dict) and (source.get("model_name") or source.get("model"))
        if isinstance(name, str) and name:
            call.model = short_name(name)
            break
    call.tokens = member(message, "usage_metadata")
    if call.tokens is None and isinstance(details, dict):
        call.tokens = details.get("token_usage") or details.get("usage")
    if call.tokens is None and isinstance(info, dict):
        call.tokens = info.get("usage_metadata")


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
