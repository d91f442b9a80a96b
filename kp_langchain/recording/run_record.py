"""What is recorded of one root run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from kp_langchain.recording.answers import answer_in
from kp_langchain.recording.bounds import RecordOwner
from kp_langchain.recording.calls import Call, RequestedCalls, Timeline
from kp_langchain.recording.human import Exchange, HumanInput, exchange_by_tool
from kp_langchain.recording.langchain_context import Start, metadata_text, thread_id_in
from kp_langchain.recording.redactor import Quotes
from kp_langchain.recording.safe_reads import (
    NAME_CHARS,
    attribute,
    clip,
    join_texts,
    short_name,
)
from kp_langchain.recording.values import as_input, flat_size, gist_text, text_size
from kp_langchain.verdict import NOTE_READ_CHARS

if TYPE_CHECKING:
    from kp_langchain.gate.run import ExternalTrace, ShownTrace
    from kp_langchain.run_keys import RunKeys

Ending = Literal["finished", "failed", "cancelled", "paused"]
_Text = TypeVar("_Text")

# How agents and graphs name themselves in `metadata.ls_integration`.
_GRAPHS = ("langgraph", "langchain_create_agent")


@dataclass(slots=True)
class OpenState:
    """What is known of a run while it is under way.

    Attributes:
        last_seen_s: When its last event came, in seconds of `time.monotonic`.
        open_runs: Its runs that have not ended, each an `OpenRun`.
        last_call: The call that began last.
        last_failure: The error of a chain, as long as nothing has begun after it.
        last_action: The tool that a classic agent chose last, and its input.
        final_message: What the model answered last, if that asks for no tool; None if a model was
            asked, or anything was cancelled, since then.
        agent_answer: The answer of a classic agent, which a streamed one does not return.
        attempts: The latest attempts of LangGraph's nodes that have neither returned nor raised an
            error, each an `OpenRun`, by their tasks; cancelled ones stay.
        error_ids: The ids of the exceptions that are recorded already.
        new_input_threads: The threads in which new input was given, so that a paused run in one
            of them is abandoned.
        is_interrupted: Whether a graph inside it has paused, and nothing has begun since.
        waiting_model: The model that was called last when a graph inside it paused that has not
            been resumed: its tool calls wait for an approval.
        is_over: Whether it has ended, been abandoned, or been left to a parent process.
    """

    last_seen_s: float
    open_runs: set[Any] = field(default_factory=set)
    last_call: Call | None = None
    last_failure: Call | None = None
    last_action: tuple[str, object] = ("", None)
    final_message: object = None
    agent_answer: Any = ""
    attempts: dict[str, Any] = field(default_factory=dict)
    error_ids: list[int] = field(default_factory=list)
    new_input_threads: set[str] = field(default_factory=set)
    is_interrupted: bool = False
    waiting_model: Call | None = None
    is_over: bool = False


@dataclass(slots=True)
class Claims:
    """What a run says of its own outcome.

    Attributes:
        output: What the root run returned, by reference, if the recorder keeps that.
        confidence: The confidence that its structured output states, 0 to 1.
        has_structured_answer: Whether it returned a structure that the agent had checked.
        has_reached_limit: Whether a limit of steps or calls ended it.
        last_answer: The message that a model answered last, and LangChain's `generation_info`.
    """

    output: object = None
    confidence: float | None = None
    has_structured_answer: bool = False
    has_reached_limit: bool = False
    last_answer: tuple[object, Mapping[str, Any] | None] = (None, None)


@dataclass(slots=True, eq=False)
class Resumption:
    """The pause that a run continues from.

    Attributes:
        thread_id: The LangGraph thread in which the run had paused.
        earlier: What it recorded before the pause in this process; None if it did not, or if
            another process may have continued it since.
    """

    thread_id: str
    earlier: RunRecord | None


@dataclass(frozen=True, slots=True)
class EarlierPart:
    """What is known of a run's part before a pause, besides its timeline; fit to be stored.

    Attributes:
        keys: The keys by which the run is found in the store.
        task: The hash that tells repeats of one task.
        withheld: Whether some of the part could not be redacted.
    """

    keys: RunKeys | None = None
    task: str | None = None
    withheld: bool = False


@dataclass(slots=True, eq=False)
class RunRecord:
    """What is recorded of one root run.

    Attributes:
        owner: The recorder that it belongs to.
        run_id: LangChain's id of the root run.
        name: The name of the root run, cut to `NAME_CHARS`.
        metadata: LangChain's metadata of the root run, by reference.
        tags: LangChain's tags of the root run, by reference.
        domain: The domain that the metadata name; "" if they name none.
        thread_id: The LangGraph thread of the root run, or of the graph inside it that paused.
        is_langgraph: Whether a graph runs, and not only chains.
        timeline: The starts, ends and errors of its calls, at most `bounds.steps`.
        room_chars: Characters that there is still room for in the texts of steps; may be negative.
        raw_text_chars: Characters kept of one text until it is redacted.
        dropped_texts: Texts and inputs that were left out because there was no room.
        started_at: When the run began, in UTC.
        objective: The task as its inputs state it.
        fallback_objective: The task as the first model was asked, in case the inputs state none.
        requested_calls: The tool calls that a model asked for and nobody has answered yet.
        provider_calls: The calls of providers' tools without a result yet, by each of their ids.
        state: What is known of it while it is under way.
        human: What a human was asked and answered.
        claims: What it says of its own outcome.
        ending: How it ended; None while it is under way.
        error: The error that ended it; "" if none did.
        answer: The `gist` of its answer, a text after `write_out`; None if it returned nothing.
        verdict: What was said of its outcome while it was under way: a `Verdict`, or the data of
            a `kp.outcome` event.
        paused_at: When it paused, in UTC; None unless it did.
        resumption: The pause that it continues from, until it is joined to the earlier part.
        earlier_part: What is known of its part in another process, once it is joined to that.
        external_traces: Where other tracers record it, by the name of the tool.
        searches: How often that was looked up.
        shown: The kept traces that it was shown as examples, or held out from, by their ids.
        examples: The texts of these examples.
        inner_namespaces: The metadata that name a namespace, of chains inside it where they differ
            from its own.
    """

    owner: RecordOwner
    start: InitVar[Start]
    run_id: UUID = field(init=False)
    name: str = field(init=False)
    metadata: Mapping[str, Any] = field(init=False)
    tags: object = field(init=False)
    domain: str = field(init=False)
    thread_id: str | None = field(init=False)
    is_langgraph: bool = field(init=False)
    timeline: Timeline = field(init=False)
    room_chars: int = field(init=False)
    raw_text_chars: int = field(init=False)
    dropped_texts: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    objective: str = ""
    fallback_objective: str = ""
    requested_calls: RequestedCalls = field(default_factory=RequestedCalls)
    provider_calls: dict[str, Call] = field(default_factory=dict)
    state: OpenState = field(init=False)
    human: HumanInput = field(default_factory=HumanInput)
    claims: Claims = field(default_factory=Claims)
    ending: Ending | None = None
    error: str = ""
    answer: Any = None
    verdict: Any = None
    paused_at: datetime | None = None
    resumption: Resumption | None = None
    earlier_part: EarlierPart | None = None
    external_traces: dict[str, ExternalTrace] = field(default_factory=dict)
    searches: int = 0
    shown: dict[str, ShownTrace] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    inner_namespaces: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self, start: Start) -> None:
        self.run_id, _, name, self.metadata, self.tags = start
        self.name = short_name(name)
        self.domain = clip(metadata_text(self.metadata, "kp_domain"), 4 * NAME_CHARS).strip()[:100]
        self.thread_id = thread_id_in(self.metadata)
        self.is_langgraph = metadata_text(self.metadata, "ls_integration") in _GRAPHS
        bounds = self.owner.bounds
        self.room_chars = bounds.run_chars
        self.raw_text_chars = bounds.raw_text_chars
        self.timeline = Timeline(bounds.steps)
        self.state = OpenState(time.monotonic())

    def read(self, reader: Callable[[Any, int], _Text], value: object) -> _Text:
        """Return a step's text or input, read from `value` within what there is room for.

        Without any room left, only the number of characters left out is returned.

        Args:
            reader: Reads a value within a number of characters, such as `gist`.
            value: The user's value.
        """
        if self.room_chars > 0:
            text = reader(value, self.raw_text_chars)
        else:
            text = reader(value, 0)
            self.dropped_texts += bool(text)
        size = len(text) if isinstance(text, str) else text_size(text)
        self.room_chars -= min(size, self.owner.bounds.text_chars)
        return text

    def read_input(self, inputs: object) -> dict[str, Any]:
        """Return a tool's input, read within what there is room for."""
        size = flat_size(inputs)
        if size is None or size >= min(self.room_chars, self.raw_text_chars):
            return self.read(as_input, inputs)
        self.room_chars -= min(size, self.owner.bounds.text_chars)
        return dict(inputs)  # type: ignore[call-overload, no-any-return]

    def note_error(self, error: BaseException) -> None:
        """Remember a recorded exception, so that it is not recorded again when it propagates."""
        if len(self.state.error_ids) < self.owner.bounds.steps:
            self.state.error_ids.append(id(error))

    def parts(self) -> Iterator[Any]:
        """Yield all that is recorded of it in words, once it is written out."""
        yield from (self.objective, self.fallback_objective, self.name, self.error)
        yield from (self.human.question, self.answer)
        verdict = self.verdict
        note = verdict.get("note") if isinstance(verdict, dict) else attribute(verdict, "note")
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
        """Add the tool calls that nobody made to what the models said that asked for them.

        A router or a grader asks for a call only to answer in its form.
        """
        for request in self.requested_calls.decisions:
            model = request.model
            if model is None or model.kind != "model" or model.is_incomplete:
                continue
            if model is self.state.waiting_model:
                continue
            structure = self.read(as_input, request.arguments)
            if request.name and (model.offers_choice or not structure):  # it tells the choice
                structure = {request.name: structure}
            texts = (model.text, gist_text(structure, self.raw_text_chars))
            model.text = join_texts(iter(texts), self.raw_text_chars)

    def drop_quotes(self) -> None:
        """Drop what model and retriever only repeat of the examples that the run was shown.

        The texts of examples are not stored with a paused run. Where another process continues it,
        what it then quotes of the examples from before the pause stays.
        """
        if not self.examples:
            return
        quotes = Quotes(self.examples)
        calls = self.timeline.calls()
        answer, answering = self.answer, None
        if isinstance(answer, str) and quotes.without(answer) != answer:
            self.answer = quotes.without_in_answer(answer)
            models = (call for call in reversed(calls) if call.kind == "model")
            answering = next((call for call in models if answer in call.text), None)
        for call in calls:
            if call is answering:  # its thought keeps what the answer keeps
                before, _, after = call.text.rpartition(answer)
                call.text = f"{quotes.without(before)}{self.answer}{quotes.without(after)}"
            elif call.kind == "model" or call.returns_examples:
                call.text = quotes.without(call.text)

    @property
    def has_answered(self) -> bool:
        """Whether the model has answered and nothing is under way: it needs no further event."""
        return not (self.requested_calls or self.state.open_runs) and bool(
            answer_in(self.state.final_message, self.raw_text_chars)
        )

    @property
    def is_awaiting_first_half(self) -> bool:
        """Whether only the store may have what this run recorded before it paused."""
        if self.resumption is None:
            return False
        earlier = self.resumption.earlier
        return earlier is None or earlier.is_awaiting_first_half

    def resume(self, thread_id: str, earlier: RunRecord | None) -> None:
        """Note that this run continues from a pause; `prepend` follows when it has ended.

        Args:
            thread_id: The LangGraph thread of the pause.
            earlier: What was recorded before it in this process, if it was.
        """
        if self.resumption is not None:  # a second graph inside one run
            if earlier is not None:
                self.prepend(earlier)
            return
        self.resumption = Resumption(thread_id, earlier)
        if earlier is not None:
            self._take_over_open_calls(earlier)
            self.requested_calls.wait()
            self.room_chars -= self.owner.bounds.run_chars - earlier.room_chars

    def prepend(self, earlier: RunRecord) -> None:
        """Put what a paused run recorded before it paused in front of this record.

        The task, the name and the start are those of the earlier part; what was reported later,
        such as a verdict or a domain, prevails.
        """
        self.human.note_answered(earlier.human)
        self.human.note(earlier.human.exchanges)
        self.objective = earlier.objective or self.objective
        self.fallback_objective = earlier.fallback_objective or self.fallback_objective
        self.name = earlier.name or self.name
        self.started_at = earlier.started_at
        self.is_langgraph = self.is_langgraph or earlier.is_langgraph
        self.domain = self.domain or earlier.domain
        self.verdict = self.verdict or earlier.verdict
        self.dropped_texts += earlier.dropped_texts
        # After `resume`, too: meanwhile the store may have added to what `earlier` knows.
        self._take_over_open_calls(earlier)
        self.metadata = {**earlier.metadata, **self.metadata}
        self.tags = earlier.tags if not self.tags else self.tags
        self.earlier_part = self.earlier_part or earlier.earlier_part
        self.shown = {**earlier.shown, **self.shown}
        self.examples = [*earlier.examples, *self.examples]
        self.inner_namespaces = [*earlier.inner_namespaces, *self.inner_namespaces]
        self.timeline = self.timeline.joined_to(earlier.timeline)

    def _take_over_open_calls(self, earlier: RunRecord) -> None:
        self.requested_calls.add_earlier(earlier.requested_calls)
        self.provider_calls = {**earlier.provider_calls, **self.provider_calls}
        earlier.provider_calls = {}
