"""What the model sees, what the state keeps, and what is recorded, with real agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
)
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from kp_langchain import (
    ConfigError,
    KPCallbackHandler,
    KPMiddleware,
    ScoredTrace,
    TraceStore,
)
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from tests.agents import shape
from tests.recall.words import (
    ASK,
    EURO,
    GARDEN,
    POUND,
    Listening,
    answers,
    keep,
    keep_all,
    middleware,
    passing_handler,
    rates,
    texts,
)

SEARCHED = ["thought", "call rates", "saw rates", "thought"]
THREAD: Any = {"configurable": {"thread_id": "t"}}
APPROVE = Command(resume={"decisions": [{"type": "approve"}]})


@tool
def weather(town: str) -> str:
    """Return the weather of a town."""
    return f"rain in {town}"


class Played:
    """One run of an agent with the middleware, recorded by a handler."""

    def __init__(
        self, store: TraceStore, shows: KPMiddleware, task: str = EURO, *, how: str = "invoke",
        metadata: Any = None, script: Sequence[Any] | None = None, tools: Sequence[Any] = (rates,),
    ) -> None:  # fmt: skip
        model = Listening(answers("EURUSD") if script is None else script, asked=[])
        agent = create_agent(model, list(tools), middleware=[shows])
        inputs: Any = {"messages": [("user", task)]}
        handler = passing_handler(store)
        config: Any = {"callbacks": [handler], "metadata": metadata or {}}
        if how == "ainvoke":
            self.state = asyncio.run(agent.ainvoke(inputs, config))
        elif how == "stream":
            self.state = list(agent.stream(inputs, config, stream_mode="values"))[-1]
        else:
            self.state = agent.invoke(inputs, config)
        self.asked = model.asked
        self.examples = examples_in(model.asked[0])
        self.scored = last(handler)


def examples_in(messages: Sequence[AnyMessage]) -> list[str]:
    """The messages that hold examples."""
    return [one.text for one in messages if "earlier runs" in one.text]


def last(handler: KPCallbackHandler) -> ScoredTrace:
    scored = handler.last(120)
    assert scored is not None
    return scored


def shown_ids(scored: ScoredTrace) -> list[str]:
    return [one.trace_id for one in scored.shown]


class TestWhatTheModelSees:
    @pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
    def test_examples_stand_before_the_task_and_nowhere_else(
        self, store: TraceStore, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        kept, shows = keep(store), middleware(store)
        played = Played(store, shows, how=how)
        for asked in played.asked:  # also when the model is called after the tool
            assert isinstance(asked[0], HumanMessage)
            assert "rates" in asked[0].text
            assert POUND in asked[0].text
            assert asked[1].text == EURO
        assert len({asked[0].text for asked in played.asked}) == 1
        assert texts(played.state["messages"])[0] == f"human: {EURO}"
        assert not examples_in(played.state["messages"])
        scored = played.scored
        assert shown_ids(scored) == [kept]
        assert scored.trace.task.objective == EURO
        assert shape(scored.trace) == SEARCHED
        assert scored.trace.metadata.framework == "langgraph"
        assert "earlier runs" not in scored.trace.model_dump_json()
        assert [one.trace_id for one in store.shown.of_run(scored.trace.id)] == [kept]

        played = Played(store, shows, GARDEN, how=how)  # nothing is similar
        assert texts(played.asked[0]) == [f"human: {GARDEN}"]
        assert played.scored.shown == ()
        events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        assert [one.shown for one in events] == [[kept], []]  # type: ignore[attr-defined]
        assert "nearest task has similarity" in events[1].reason  # type: ignore[attr-defined]

    def test_in_a_conversation_each_turn_has_its_own(self, store: TraceStore) -> None:
        keep_all(store, POUND, GARDEN)
        model = Listening([*answers(), say("In spring.")], asked=[])
        saver = InMemorySaver()
        agent = create_agent(model, [rates], middleware=[middleware(store)], checkpointer=saver)
        agent.invoke(ASK, THREAD)
        agent.invoke({"messages": [("user", "when should my roses be pruned")]}, THREAD)
        (first,), (second,) = examples_in(model.asked[0]), examples_in(model.asked[-1])
        assert POUND in first
        assert GARDEN in second
        assert [one.text for one in model.asked[-1][-2:]] == [
            second, "when should my roses be pruned",
        ]  # fmt: skip
        assert not examples_in(agent.get_state(THREAD).values["messages"])

    @pytest.mark.parametrize(
        ("tools", "is_shown"),
        [
            ([weather], False), ([rates, weather], True), ([], True),
            ([{"type": "web_search"}], True),
            ([{"type": "code_execution_20250825", "name": "code_execution"}], True),
            ([{"type": "function", "function": {"name": "rates", "parameters": {}}}], True),
            ([{"type": "function", "function": {"name": "weather", "parameters": {}}}], False),
            ([{"name": "rates", "input_schema": {}}], True),
            ([{"name": "weather", "input_schema": {}}], False),
        ],
    )  # fmt: skip
    def test_runs_that_call_none_of_the_agents_tools_must_be_twice_as_similar(
        self, store: TraceStore, tools: list[Any], is_shown: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        keep(store)
        script = [say("About 1.08.")]
        played = Played(store, middleware(store), script=script, tools=tools)
        assert bool(played.examples) is is_shown
        if not is_shown:
            (reason,) = (one.reason for one in caplog.records if hasattr(one, "reason"))
            assert "calls tools that the agent lacks" in reason
            shows = middleware(store, floor=0.4)
            assert Played(store, shows, script=script, tools=tools).examples

    def test_a_trace_that_runs_ended_worse_with_until_verdicts_say_otherwise(
        self, store: TraceStore
    ) -> None:
        kept, later = keep(store), dict[str, bool]()
        shows = {True: middleware(store), False: middleware(store, held_out=0.999999)}
        for number in range(16):
            one = shows[number % 2 == 0]
            scored = Played(store, one).scored
            assert [(each.trace_id, each.held_out) for each in scored.shown] == [
                (kept, number % 2 == 1)
            ]
            later[scored.trace.id] = number % 2 == 1
        for has_failed in (True, False):
            for id_, was_held_out in later.items():
                store.report_outcome(id_, success=was_held_out or not has_failed)
            # Middleware on a store of its own counts the credit anew.
            fresh = middleware(TraceStore(store.location))
            assert bool(Played(store, fresh).examples) is not has_failed

    def test_a_run_is_shown_traces_of_its_namespace(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        shows = middleware(store)
        for metadata, is_shown in (
            ({}, False),
            ({"kp_namespace": "tenant-b"}, False),
            ({"kp_namespace": "tenant-a"}, True),
        ):
            assert bool(Played(store, shows, metadata=metadata).examples) is is_shown


def gardener(agent: Any) -> Any:
    @tool
    def ask(question: str) -> str:
        """Ask a gardener."""
        return str(agent.invoke({"messages": [("user", GARDEN)]})["messages"][-1].text)

    return ask


class TestHeldOut:
    @pytest.mark.parametrize("thread_id", [None, "nightly"])
    def test_a_share_of_the_runs_is_noted_and_shown_nothing(
        self, store: TraceStore, thread_id: str | None
    ) -> None:
        kept = keep(store)
        shows, held_out = middleware(store, held_out=0.5), list[bool]()
        recording = passing_handler(store)
        thread: Any = {"configurable": {"thread_id": thread_id}} if thread_id else {}
        config: Any = {"callbacks": [recording], **thread}
        saver = InMemorySaver() if thread_id else None
        for _ in range(24):
            model = Listening([say("1.08")], asked=[])
            create_agent(model, [rates], middleware=[shows], checkpointer=saver).invoke(ASK, config)
            scored = last(recording)
            assert shown_ids(scored) == [kept]
            held_out += [one.held_out for one in store.shown.of_run(scored.trace.id)]
            assert bool(examples_in(model.asked[0])) is not held_out[-1]
        assert 2 < sum(held_out) < 22  # a thread does not decide it

    @pytest.mark.parametrize("is_thread", [False, True])
    def test_agents_inside_others_are_held_out_with_them(
        self, store: TraceStore, is_thread: bool
    ) -> None:
        keep_all(store, POUND, GARDEN)
        both = []
        for number in range(14):
            shows = middleware(store, held_out=0.5)
            inner = Listening([say("in spring")], asked=[])
            nested = create_agent(inner, [rates], middleware=[shows])

            ask = gardener(nested)
            model = Listening([say("", call("ask", question="?")), say("fine")], asked=[])
            saver = InMemorySaver() if is_thread else None
            outer = create_agent(model, [ask, rates], middleware=[shows], checkpointer=saver)
            recording = passing_handler(store)
            thread = {"thread_id": f"thread {number}"}
            outer.invoke(ASK, {"configurable": thread, "callbacks": [recording]})
            both.append([bool(examples_in(one.asked[0])) for one in (model, inner)])
            is_shown = {not one.held_out for one in last(recording).shown}
            assert is_shown == {*both[-1]}
        assert {*map(tuple, both)} == {(True, True), (False, False)}


class TestTheRun:
    def test_without_a_handler_nothing_is_recorded_and_examples_are_shown(
        self, store: TraceStore
    ) -> None:
        keep(store)
        model = Listening(answers(), asked=[])
        create_agent(model, [rates], middleware=[middleware(store)]).invoke(ASK)
        assert all(POUND in asked[0].text for asked in model.asked)
        assert store.count() == 1

    def test_a_run_that_pauses_for_a_human_is_one_run(self, store: TraceStore) -> None:
        kept, shows, recording = keep(store), middleware(store), passing_handler(store)
        script = [say("I look.", *(call("rates", pair=f"{n}") for n in range(4))), say("1.08")]
        human = HumanInTheLoopMiddleware(interrupt_on={"rates": True})
        agent = create_agent(
            ScriptedChatModel(script), [rates], middleware=[shows, human],
            checkpointer=InMemorySaver(),
        )  # fmt: skip
        config: Any = {**THREAD, "callbacks": [recording]}
        agent.invoke(ASK, config)
        assert recording.flush(120)
        agent.invoke(Command(resume={"decisions": [{"type": "approve"}] * 4}), config)
        scored = last(recording)
        assert scored.trace.task.objective == EURO
        assert shown_ids(scored) == [kept]

    def test_sixteen_at_once(self, store: TraceStore) -> None:
        words = ["amber", "birch", "cedar", "daisy", "elder", "fern", "gorse", "holly"]
        ids = keep_all(store, *(f"{word} {word} {word} report" for word in words))
        kept, scored = dict(zip(words, ids, strict=True)), list[ScoredTrace]()
        recording = passing_handler(store, on_scored=scored.append)
        shows = middleware(store)

        async def run(word: str) -> None:
            agent = create_agent(ScriptedChatModel(answers(word)), [rates], middleware=[shows])
            inputs: Any = {"messages": [("user", f"{word} {word} report")]}
            await agent.ainvoke(inputs, {"callbacks": [recording]})

        async def run_all() -> None:
            await asyncio.gather(*(run(word) for word in words * 2))

        asyncio.run(run_all())
        assert recording.flush(120)
        assert len(scored) == 16
        for one in scored:
            assert shown_ids(one) == [kept[one.trace.task.objective.split()[0]]]

    def test_nothing_is_shown_while_switched_off(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep(store)
        monkeypatch.setenv("KP_DISABLED", "true")
        model = Listening(answers(), asked=[])
        create_agent(model, [rates], middleware=[middleware(store)]).invoke(ASK)
        assert texts(model.asked[0]) == [f"human: {EURO}"]


def is_well_formed(messages: Sequence[AnyMessage]) -> bool:
    """Whether each call of a tool is followed by its result, as providers demand."""
    waiting: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            waiting.discard(message.tool_call_id)
        elif waiting:
            return False
        if isinstance(message, AIMessage):
            waiting = {str(one["id"]) for one in message.tool_calls}
    return True


class TestOtherMiddleware:
    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_conversation_that_is_summarised(self, store: TraceStore, is_first: bool) -> None:
        keep(store)
        # After five messages, or as early in the first versions.
        options: dict[str, Any] = {"trigger": ("messages", 5), "keep": ("messages", 2)}
        if "trigger" not in signature(SummarizationMiddleware).parameters:
            options = {"max_tokens_before_summary": 40, "messages_to_keep": 2}
        calls = [(call("rates", pair=f"{n}"), call("rates", pair=f"x{n}")) for n in range(4)]
        model = Listening([*(say("", *two) for two in calls), say("One is 1.08.")], asked=[])
        summary = ScriptedChatModel([say("a summary")] * 9)
        others = [middleware(store), SummarizationMiddleware(summary, **options)]
        agent = create_agent(model, [rates], middleware=others if is_first else others[::-1])
        agent.invoke(ASK, {"callbacks": [passing_handler(store)]})
        assert any("a summary" in one.text for asked in model.asked for one in asked)
        for asked in model.asked:
            assert is_well_formed(asked)
            assert len(examples_in(asked)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0"), ({"floor": float("nan")}, "floor=nan"),
        ({"held_out": 1.0}, "held_out=1.0"), ({"timeout_s": 0}, "timeout_s=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)  # fmt: skip
def test_unusable_arguments(store: TraceStore, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        middleware(store, **options)
