"""What is recorded of one root run, and its redacted form while the run is paused.

A paused run keeps the timeline of its calls and not steps: whether an error recovered, and which
attempts belong to one call, is known only when the run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.run import ExternalTrace, ShownTrace
from kp_langchain.recording.bounds import (
    NAME_CHARS,
    default_on_error,
    member,
    raw_text_chars,
    short_name,
)
from kp_langchain.recording.calls import Call, RequestedCall, RequestedCalls, Timeline
from kp_langchain.recording.langchain_context import Start, metadata_text, thread_id_in
from kp_langchain.recording.pauses import (
    Exchange,
    HumanInput,
    exchange_by_tool,
    name_answers,
    note_rejections,
)
from kp_langchain.recording.redactor import quoted_lines, without_lines
from kp_langchain.recording.values import as_input, gist_text
from kp_langchain.run_keys import RunKeys
from kp_langchain.usage import Tokens, Usage
from kp_langchain.values import clip, join_texts, text_size, type_name
from kp_langchain.verdict import NOTE_READ_CHARS, Verdict

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.calls import Mark
    from kp_langchain.recording.pauses import HandlerPauses
    from kp_langchain.recording.score_receivers import ScoreReceiver

Ending = Literal["finished", "failed", "cancelled", "paused"]
_Text = TypeVar("_Text")

_MOST_SEARCHES = 8
_MOST_CALLS = 10_000
_MOST_TOOL_LISTS = 8
# How agents and graphs name themselves in `metadata.ls_integration`.
_GRAPHS = ("langgraph", "langchain_create_agent")


class RunRecord:
    """What is recorded of one root run.

    Attributes:
        settings: Bound how much is recorded.
        counters: Count the fates of runs.
        run_id: LangChain's id of the root run.
        name: The name of the root run, cut to `NAME_CHARS`.
        metadata: LangChain's metadata of the root run, by reference.
        tags: LangChain's tags of the root run, by reference.
        domain: The domain that the metadata name; "" if they name none.
        thread_id: The LangGraph thread of the root run, or of the graph inside it that paused.
        is_langgraph: Whether a graph runs, and not only chains.
        timeline: The starts, ends and errors of its calls, at most `max_steps`.
        calls: Its calls in their order, LangChain's own included, at most 10,000.
        uncounted_calls: How many more there were.
        tools: Lists of tools that its models could ask for, the user's own, by what tells most
            of them apart.
        started_s: When it began, in seconds of the recorder's clock; None if that is not known.
        ended_s: When it ended or paused, likewise.
        earlier_usage: What the part before a pause took.
        room_chars: Characters that there is still room for in the texts of steps; may be negative.
        raw_text_chars: Characters kept of one text until it is redacted.
        dropped_texts: Texts and inputs that were left out because there was no room.
        started_at: When the run began, in UTC.
        objective: The task as its inputs state it.
        fallback_objective: The task as the first model was asked, in case the inputs state none.
        requested_calls: The tool calls that a model asked for and nobody has answered yet.
        human: What a human was asked and answered.
        output: What the root run returned, by reference, if the recorder keeps that.
        confidence: The confidence that its structured output states, 0 to 1.
        has_structured_answer: Whether it returned a structure that the agent had checked.
        ending: How it ended; None while it is under way.
        error: The error that ended it; "" if none did.
        answer: The `gist` of its answer, a text after `write_out`; None if it returned nothing.
        verdict: What was said of its outcome while it was under way: a `Verdict`, or the data of
            a `kp.outcome` event.
        resumed_thread: The LangGraph thread of the pause that it continues from, until it is joined
            to the part before that; "" if it continues from none.
        earlier_keys: The keys by which the part before a pause is found in the store.
        earlier_task: The hash that tells repeats of the task, as that part stated it.
        is_withheld: Whether something of that part could not be redacted.
        external_traces: Where other tracers record it, by the name of the tool.
        searches: How often that was looked up.
        shown: The kept traces that it was shown as examples, or held out from, by their ids.
        examples: The texts of these examples.
        inner_namespaces: The namespaces in plain text of chains inside it, where they differ from
            its own; "" stands for an unusable one.

    While it is under way:
        last_seen_s: When its last event came, in seconds of `time.monotonic`.
        open_runs: Its runs that have not ended, each an `OpenRun`.
        last_call: The call that began last.
        last_failure: The error of a chain, as long as nothing has begun after it.
        final_message: What the model answered last, if that asks for no tool; None if a model was
            asked, or anything was cancelled, since then.
        error_ids: The ids of the exceptions that are recorded already.
        is_interrupted: Whether a graph inside it has paused, and nothing has begun since.
        waiting_model: The model that was called last when a graph inside it paused that has not
            been resumed: its tool calls wait for an approval.
        is_over: Whether it has ended, been abandoned, or been left to a parent process.
    """

    def __init__(self, settings: Settings, counters: Counters, start: Start) -> None:
        self.settings, self.counters = settings, counters
        self.run_id, self.metadata, self.tags = start.run_id, start.metadata, start.tags
        self.name = short_name(start.name)
        self.domain = clip(metadata_text(self.metadata, "kp_domain"), 4 * NAME_CHARS).strip()[:100]
        self.thread_id = thread_id_in(self.metadata)
        self.is_langgraph = metadata_text(self.metadata, "ls_integration") in _GRAPHS
        self.timeline = Timeline(settings.max_steps)
        self.calls: list[Call] = []
        self.uncounted_calls = 0
        self.tools: dict[object, list[Any]] = {}
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.earlier_usage: Usage | None = None
        self.room_chars = settings.max_run_chars
        self.raw_text_chars = raw_text_chars(settings)
        self.dropped_texts = 0
        self.started_at = datetime.now(UTC)
        self.objective = self.fallback_objective = ""
        self.requested_calls = RequestedCalls()
        self.human = HumanInput()
        self.output: object = None
        self.confidence: float | None = None
        self.has_structured_answer = False
        self.ending: Ending | None = None
        self.error = self.resumed_thread = ""
        self.answer: Any = None
        self.verdict: Any = None
        self.earlier_keys: RunKeys | None = None
        self.earlier_task: str | None = None
        self.is_withheld = False
        self.external_traces: dict[str, ExternalTrace] = {}
        self.searches = 0
        self.shown: dict[str, ShownTrace] = {}
        self.examples: list[str] = []
        self.inner_namespaces: list[str] = []
        self.last_seen_s = time.monotonic()
        self.open_runs: set[Any] = set()
        self.last_call: Call | None = None
        self.last_failure: Call | None = None
        self.final_message: object = None
        self.error_ids: list[int] = []
        self.is_interrupted = False
        self.waiting_model: Call | None = None
        self.is_over = False

    def read(self, reader: Callable[[Any, int], _Text], value: object) -> _Text:
        """Return a step's text or input, read from `value` within what there is room for.

        Without any room left, only the number of characters left out is returned.

        Args:
            reader: Reads a value within a number of characters, such as `gist`.
            value: The user's value.
        """
        has_room = self.room_chars > 0
        try:
            text = reader(value, self.raw_text_chars if has_room else 0)
        except Exception:  # noqa: BLE001 - the user's own value may do anything
            text = type_name(value)  # type: ignore[assignment]
        self.dropped_texts += bool(text) and not has_room
        size = len(text) if isinstance(text, str) else text_size(text)
        self.room_chars -= min(size, self.settings.max_text_chars)
        return text

    def note_call(self, call: Call) -> None:
        """Count a call that begins."""
        if len(self.calls) < _MOST_CALLS:
            self.calls.append(call)
        else:
            self.uncounted_calls += 1

    def note_tools(self, tools: list[Any], agent: str) -> None:
        """Note which tools a model may ask for.

        Args:
            tools: The definitions, by reference.
            agent: The name of the agent that asks; "" if unknown.
        """
        if len(self.tools) < _MOST_TOOL_LISTS:
            # Each call has a list of its own, mostly of the same tools.
            self.tools[agent, len(tools), _tool_name(tools[0]), _tool_name(tools[-1])] = tools

    def note_error(self, error: BaseException) -> None:
        """Remember a recorded exception, so that it is not recorded again when it propagates."""
        if len(self.error_ids) < self.settings.max_steps:
            self.error_ids.append(id(error))

    def find_traces(self, receivers: Sequence[ScoreReceiver], parent_id: UUID) -> None:
        """Look up where the tools record it; called when something begins inside it, or ends.

        Args:
            receivers: One for each tool.
            parent_id: The id of the run inside which something begins, or of the one that ends.
        """
        if self.searches >= _MOST_SEARCHES:
            return
        self.searches += 1
        for receiver in receivers:
            if receiver.name in self.external_traces:
                continue
            try:
                external: object = receiver.find_trace(self.run_id, parent_id)
            except Exception as error:  # noqa: BLE001 - the tool's package
                self.counters.add("callback_errors")
                warn_once(
                    f"find_trace:{receiver.name}:{type(error).__name__}",
                    "the trace that %s has of a run cannot be looked up (%s), so the run's score "
                    "is not sent there",
                    receiver.name,
                    describe_error(error),
                )
            else:
                if isinstance(external, ExternalTrace):
                    self.external_traces[receiver.name] = external
        if len(self.external_traces) == len(receivers):
            self.searches = _MOST_SEARCHES

    def parts(self) -> Iterator[Any]:
        """Yield all that is recorded of it in words, once it is written out."""
        yield from (self.objective, self.fallback_objective, self.name, self.error)
        yield from (self.human.question, self.answer)
        verdict = self.verdict
        note = verdict.get("note") if isinstance(verdict, dict) else member(verdict, "note")
        if isinstance(note, str):
            yield clip(note, NOTE_READ_CHARS)
        for call in self.timeline.calls():
            yield from (call.name, call.input, call.text, call.error)
        for request in self.requested_calls:
            yield as_input(request.arguments, self.raw_text_chars)

    def answers(self) -> Iterator[Exchange]:
        """Yield what a human was asked and answered, also by way of a tool."""
        yield from self.human.exchanges
        for call in self.timeline.calls():
            yield from exchange_by_tool(call)

    def write_out(self) -> None:
        """Turn the structures among answer, texts and errors into text.

        Called on the engine's thread, because it would take the agent's time.
        """
        limit = self.raw_text_chars
        for call in self.timeline.calls():
            call.write_out(limit)
        if self.ending != "paused":
            self._add_decisions()
        if self.answer is not None:
            self.answer = gist_text(self.answer, limit)

    def _add_decisions(self) -> None:
        """Append to each model's text the tool calls that it requested and nobody made.

        A router or a grader asks for a call only to answer in its form.
        """
        for request in self.requested_calls.decisions:
            model = request.model
            if model is None or model.kind != "model" or model.is_incomplete:
                continue
            if model is self.waiting_model:
                continue
            structure = self.read(as_input, request.arguments)
            if request.name and (model.offers_choice or not structure):  # it tells the choice
                structure = {request.name: structure}
            texts = (model.text, gist_text(structure, self.raw_text_chars))
            model.text = join_texts(iter(texts), self.raw_text_chars)

    def drop_quotes(self) -> None:
        """Drop the lines that model and retriever only repeat of the examples the run was shown.

        The answer stays as it is: that to a like task may be the same. The texts of
        examples are not stored with a paused run, so what it quotes of them after that stays.
        """
        if not self.examples:
            return
        lines, calls = quoted_lines(self.examples), self.timeline.calls()
        answer = self.answer if isinstance(self.answer, str) else ""
        models = (call for call in reversed(calls) if call.kind == "model")
        answering = next((call for call in models if answer and answer in call.text), None)
        for call in calls:
            if call is answering:
                before, _, after = call.text.rpartition(answer)
                kept = (without_lines(before, lines), answer, without_lines(after, lines))
                call.text = "".join(kept)
            elif call.kind == "model" or call.returns_examples:
                call.text = without_lines(call.text, lines)

    def prepend(self, earlier: RunRecord) -> None:
        """Put what was recorded before a pause in front of this record.

        The task, the name and the start are those before the pause; what was reported later,
        such as a verdict or a domain, prevails.
        """
        self.human.note_answered(earlier.human.question)
        self.objective = earlier.objective or self.objective
        self.fallback_objective = earlier.fallback_objective or self.fallback_objective
        self.name = earlier.name or self.name
        self.started_at = earlier.started_at
        self.domain = self.domain or earlier.domain
        self.verdict = self.verdict or earlier.verdict
        self.dropped_texts += earlier.dropped_texts
        self.requested_calls.add_earlier(earlier.requested_calls)
        self.earlier_keys, self.earlier_task = earlier.earlier_keys, earlier.earlier_task
        self.earlier_usage = earlier.earlier_usage
        self.uncounted_calls += earlier.uncounted_calls
        self.tools = {**earlier.tools, **self.tools}
        self.is_withheld = earlier.is_withheld
        self.shown = {**earlier.shown, **self.shown}
        self.timeline = self.timeline.joined_to(earlier.timeline)


@default_on_error("")
def _tool_name(tool: Any) -> str:
    return short_name(tool.get("function", tool).get("name"))


# ------------------------------------------------------------------ while it is paused

# Fields of a call that are not stored, or not as they are.
_NOT_STORED = (
    "kind", "key", "tool_call_id", "started_s", "returns_examples", "tokens", "is_inner",
)  # fmt: skip
CALL_FIELDS = tuple(one.name for one in fields(Call) if one.name not in _NOT_STORED)


def paused_record(body: Mapping[str, Any], settings: Settings, counters: Counters) -> RunRecord:
    """Return the record of a paused run from what was stored of it.

    Args:
        body: What it recorded, as it was stored.
        settings: Those of the run that resumes it.
        counters: Those of that run.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The body is malformed.
    """
    record = RunRecord(settings, counters, Start(UUID(body["run_id"]), None, body["name"]))
    record.started_at = datetime.fromisoformat(body["started_at"]).astimezone(UTC)
    record.domain = body["domain"]
    record.objective = body["objective"]
    record.fallback_objective = body["fallback_objective"]
    record.human.question = body["question"]
    calls = [_call(call, record.run_id) for call in body["calls"]]
    for call_id, name, arguments, of_model in body["requested"]:
        model = None if of_model is None else calls[of_model]
        record.requested_calls.add(RequestedCall(call_id, name, arguments, model))
    for mark, at in body["marks"]:
        record.timeline.add(cast("Mark", mark), calls[at])
    record.timeline.dropped += body["dropped_steps"]
    record.dropped_texts = body["dropped_texts"]
    verdict, keys = body["reported"], body["keys"]
    record.verdict = verdict and Verdict.from_list(verdict)
    record.shown = {one["trace_id"]: ShownTrace(**one) for one in body["shown"]}
    record.earlier_keys = keys and RunKeys.from_dict(keys)
    record.earlier_task, record.is_withheld = body["task"], body["withheld"]
    record.earlier_usage = Usage.from_dict(body["usage"])
    record.uncounted_calls = body["uncounted_calls"]
    if body["tools"]:
        record.tools["before the pause"] = [{"function": one} for one in body["tools"]]
    return record


def _call(body: Mapping[str, Any], run_id: UUID) -> Call:
    call_id = body["tool_call_id"]
    # All attempts of one call have one key; those after the pause are known by the call's id alone.
    key = ("tool", call_id) if call_id else ("paused", run_id, body["key"])
    stored = {name: body[name] for name in CALL_FIELDS}
    tokens = body["tokens"] and Tokens(**body["tokens"])
    return Call(kind=body["kind"], key=key, tool_call_id=call_id, tokens=tokens, **stored)


def join_paused(record: RunRecord, paused_runs: HandlerPauses) -> None:
    """Put what a resumed run recorded before its pause in front of the rest.

    Args:
        record: The run; changed.
        paused_runs: Where it waits.
    """
    thread_id, record.resumed_thread = record.resumed_thread, ""
    if not thread_id:
        return
    body = paused_runs.claim(thread_id) if record.is_langgraph else None
    earlier = None
    try:
        earlier = None if body is None else paused_record(body, record.settings, record.counters)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        warn_once(
            "paused",
            "what a paused run of another process recorded cannot be read (%s) and is dropped",
            describe_error(error),
        )
    name_answers(
        record.timeline.calls(),
        RequestedCalls() if earlier is None else earlier.requested_calls,
    )
    if earlier is not None:
        record.prepend(earlier)
        record.counters.add("continued")
    note_rejections(record.timeline.calls())
