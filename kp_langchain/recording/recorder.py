"""The recorder: events of LangChain runs in, one `RunRecord` per root run out.

A state machine on top of the tree of runs, under the same rule: it runs inside the user's agent, in
whatever thread an event comes from, and takes no lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.recording.answer import answer_in, last_items
from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.chain_errors import (
    begin_attempt,
    end_attempt,
    is_recorded,
    record_failure,
)
from kp_langchain.recording.clipping import clip, short_name
from kp_langchain.recording.exception_kinds import meaning_of
from kp_langchain.recording.exchanges import exchanges_in, newest_exchanges
from kp_langchain.recording.messages import message_text
from kp_langchain.recording.objective import objective_in
from kp_langchain.recording.plain_values import as_input, as_text, error_text, gist, text_size
from kp_langchain.recording.remote_graphs import record_remote_answers
from kp_langchain.recording.root_runs import (
    RootRuns,
    continues_in_process,
    has_paused,
    note_pause,
)
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.run_start import Start, is_inner_call, mcp_server_in, metadata_text
from kp_langchain.recording.run_tree import OpenRun
from kp_langchain.recording.safe_reads import MAX_ITEMS, attribute, default_on_error
from kp_langchain.recording.stop_reasons import ended_early
from kp_langchain.recording.tool_answers import (
    answer_to_call,
    is_error_output,
    record_answers,
    record_answers_in_input,
    record_model_answer,
    record_unanswered,
)
from kp_langchain.run_keys import have_same_keys

if TYPE_CHECKING:
    from kp_langchain.gate.shown_trace import ShownTrace

# Two are as good as many: such a run is shown to no other.
_MOST_NAMESPACES = 8
# A run that searches for examples in a loop: only the texts of the first are recognised.
_MOST_EXAMPLES = 20
# Middleware of langchain that ends an agent at a limit without an error.
_LIMIT_NODES = ("ModelCallLimitMiddleware", "ToolCallLimitMiddleware")
# The tool that the classic AgentExecutor runs in place of one that it does not know.
_UNKNOWN_TOOL = "invalid_tool"


class Recorder(RootRuns):
    """Follows the runs that one handler sees. Takes the arguments of `RootRuns`.

    A method for an event never raises because of a user's value, but a signal handler of the host
    may raise in the middle of it.
    """

    # ---------------------------------------------------------------- chains and graphs

    def chain_started(self, start: Start, inputs: object) -> None:
        """Record that a chain, graph or node began."""
        entry = self._begin(start)
        if entry is None:
            return
        run_id, _, name, metadata, _ = start
        root = entry.root
        entry.name, entry.inputs = short_name(name), last_items(inputs)
        entry.is_limit_node = entry.name.startswith(_LIMIT_NODES)
        entry.task = metadata_text(metadata, "langgraph_checkpoint_ns")
        if run_id != root.run_id and len(root.inner_namespaces) < _MOST_NAMESPACES:
            names = root.owner.namespace_keys
            # No generator: an interruption while one is closed would be lost.
            for known in (root.metadata, *root.inner_namespaces):
                if have_same_keys(names, metadata, known):
                    break
            else:
                root.inner_namespaces.append({name: metadata.get(name) for name in names})
        if entry.task:
            begin_attempt(entry, self._open.get(entry.parent_id))  # type: ignore[arg-type]
        if root.last_failure is not None:
            root.mark("start", root.last_failure)  # the run continued after it
            root.last_failure = None
        if "langgraph_node" not in metadata:  # a whole graph or chain, not a node of one
            self._resume(root, inputs, metadata)
        if not root.objective and run_id == root.run_id and not continues_in_process(root):
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
        root.last_seen_s = time.monotonic()
        end_attempt(entry)
        given = entry.inputs if inputs is None else last_items(inputs)
        if not entry.has_calls and record_remote_answers(root, given, outputs):
            self._note_call_inside(entry)
        if run_id != root.run_id:
            self._inner_chain_ended(entry, outputs)
            return
        if not root.objective and inputs is not None and not continues_in_process(root):
            root.objective = self._objective_of(inputs)
        call = root.last_call
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

    def _note_call_inside(self, entry: OpenRun) -> None:
        """Note in the runs around one that a call inside them is recorded."""
        inner: OpenRun | None = entry
        while inner is not None and inner.parent_id is not None:
            inner = self._open.get(inner.parent_id)
            if inner is None or inner.has_calls:
                return
            inner.has_calls = True

    def _inner_chain_ended(self, entry: OpenRun, outputs: object) -> None:
        root = entry.root
        if entry.is_interrupted:  # unless something begins next, the root pauses as well
            root.is_interrupted = True
            note_pause(entry)
            root.waiting_model = root.last_call
        if entry.is_limit_node and _jumps_to_end(outputs):
            root.has_reached_limit = True
        if root.requested_calls or root.is_awaiting_first_half:
            record_answers(root, outputs)

    def chain_failed(self, run_id: UUID, error: BaseException, inputs: object = None) -> None:
        """Record that a chain raised; for `inputs` see `chain_ended`."""
        entry = self._finish(run_id)
        if entry is None:
            return
        root = entry.root
        root.last_seen_s = time.monotonic()
        meaning = meaning_of(error)
        if meaning != "cancelled":
            end_attempt(entry)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry, error)
        if run_id == root.run_id and not root.objective and inputs is not None:
            root.objective = self._objective_of(inputs)
        if meaning == "error" and not is_recorded(error, entry):
            # A graph raises the timeout of its node.
            attempts = (one for one in list(root.attempts.values()) if one.parent_id == run_id)
            record_failure(next(attempts, entry), error, is_root=run_id == root.run_id)
        if run_id == root.run_id:
            self._fail_root(entry, error, meaning)
        elif meaning == "cancelled":
            root.final_message = None

    # ---------------------------------------------------------------- calls

    def _begin_call(self, kind: CallKind, start: Start) -> tuple[RunRecord, Call] | None:
        entry = self._begin(start)
        if entry is None:
            return None
        name = short_name(start.name)
        call = entry.call = Call(kind, name, (entry.parent_id, name))
        root = entry.root
        entry.task = metadata_text(start.metadata, "langgraph_checkpoint_ns")
        outer = self._outer_call(entry)
        is_lookup = kind == "retriever" and outer is not None  # how a tool works, not what was used
        if outer is not None and not is_lookup:
            outer.inner = (*outer.inner, call)[:2]
        call.is_void = is_lookup or is_inner_call(start.metadata, root.metadata)
        if not call.is_void:
            root.last_call = call
        root.is_interrupted = False
        root.mark("start", call)
        self._note_call_inside(entry)
        return root, call

    def _end_call(self, run_id: UUID) -> tuple[OpenRun, Call] | None:
        entry = self._finish(run_id)
        if entry is None or entry.call is None:
            return None
        entry.call.end()
        entry.root.last_seen_s = time.monotonic()
        return entry, entry.call

    def model_started(self, start: Start, messages: object, tools: object = None) -> None:
        """Record that a model was asked: with chat messages or prompts, and by which tools."""
        parent = self._open.get(start.parent_id) if start.parent_id is not None else None
        if parent is not None and (
            parent.root.requested_calls or parent.root.is_awaiting_first_half
        ):
            record_answers_in_input(parent.root, messages)
        begun_call = self._begin_call("model", start)
        if begun_call is None:
            return
        root, call = begun_call
        if not call.is_void:
            root.final_message = None
        # Attempts of one call have one parent, or one LangGraph task, and one input.
        place = metadata_text(start.metadata, "langgraph_checkpoint_ns") or call.key[0]  # type: ignore[index]
        call.key = ("model", place, _input_fingerprint(messages))
        root.note_exchanges(newest_exchanges(messages))
        call.offers_choice = isinstance(tools, list) and len(tools) > 1
        if not root.fallback_objective and not call.is_void:
            root.fallback_objective = objective_in(messages, self._raw_text_chars)
        if not root.objective and root.run_id == start.run_id:
            root.objective = self._objective_of(messages)

    def conversation_seen(self, run_id: UUID, messages: Sequence[object]) -> None:
        """Note what a human was asked and answered in the messages of an open run."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.note_exchanges(exchanges_in(messages))

    def model_answered(
        self,
        run_id: UUID,
        message: object,
        text: str,
        logprobs: object,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a model's answer.

        Args:
            run_id: The id of the run.
            message: The message of a chat model; None for a model that returns plain text.
            text: The text of the answer, read only without a message.
            logprobs: The log probabilities of the answer's tokens, in the provider's form.
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
            call.is_incomplete = ended_early(info)
            if message is None:
                call.text = root.read(clip, text)
            else:
                record_model_answer(root, call, message)
            if not attribute(message, "tool_calls"):
                root.final_message = text if message is None else message
            root.logprobs = logprobs
        finally:
            if run_id == root.run_id:
                self._finish_root(root, message if message is not None else text)

    def tool_started(self, start: Start, inputs: object, tool_call_id: object = None) -> None:
        """Record that a tool began."""
        begun_call = self._begin_call("tool", start)
        if begun_call is None:
            return
        root, call = begun_call
        if call.name == _UNKNOWN_TOOL and root.last_action[0]:
            call.name, inputs = root.last_action
            call.has_failed = True  # whatever it returns
        call.input = root.read(as_input, inputs)
        call.mcp_server = mcp_server_in(start.metadata) or None
        if isinstance(tool_call_id, str) and tool_call_id:
            call.tool_call_id = tool_call_id
            call.key = ("tool", tool_call_id)
        else:
            call.key = ("tool", call.key, str(call.input))
        root.requested_calls.begin(call, inputs)
        if not root.objective and root.run_id == start.run_id:
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
            text = root.read(gist, answer)
            call.has_failed = call.has_failed or is_error_output(answer)
            _mark_end(entry, call, text)
        finally:
            if run_id == root.run_id:
                self._finish_root(root, output)

    def retriever_started(self, start: Start, query: object) -> None:
        """Record that a retriever began."""
        begun_call = self._begin_call("retriever", start)
        if begun_call is None:
            return
        root, call = begun_call
        text = root.read(as_text, query)
        call.input = {"query": text}
        call.key = ("retriever", call.key, text)
        if not root.objective and root.run_id == start.run_id:
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
            if root.last_failure is not None and is_recorded(error, entry):
                root.last_failure.is_void = True  # the same failure, of a chain inside this call
                root.last_failure = None
            root.note_error(error)
            root.requested_calls.answer(call.tool_call_id)
            if call.kind == "model":  # a model's failure stands where the model was asked
                call.error, call.is_void = text, False
            else:
                _mark_end(entry, call, text)
        if meaning == "interrupt":
            self._pass_on_interrupt(entry, error)
        if run_id == root.run_id:
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

    # ---------------------------------------------------------------- classic agents, outcomes

    def agent_acted(self, run_id: UUID, tool: object, tool_input: object) -> None:
        """Record the tool that a classic agent chose; there may be no such tool."""
        entry = self._open.get(run_id)
        if entry is not None:
            entry.root.last_action = (short_name(tool), tool_input)

    def agent_finished(self, run_id: UUID, values: object) -> None:
        """Record the final values of a classic agent, which a streamed one does not return."""
        entry = self._open.get(run_id)
        if entry is not None and run_id == entry.root.run_id:
            entry.root.agent_answer = answer_in(values, self._raw_text_chars) or ""

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
            inner = self._open.get(inner.parent_id) if inner.parent_id is not None else None
        return True


def _mark_end(entry: OpenRun, call: Call, text: Any) -> None:
    """Record how a tool or retriever ended, with its output or error."""
    if len(entry.inner) == 1 and entry.inner[0].kind == "model":
        entry.inner[0].leave_to(text)
    entry.root.final_message = None  # of a model that works inside a tool
    call.is_after_rejection = entry.root.human_decision == "rejected"
    entry.root.mark(call.set_result(text), call)


@default_on_error(False)
def _jumps_to_end(outputs: object) -> bool:
    return isinstance(outputs, Mapping) and bool(outputs.get("jump_to") == "end")


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
