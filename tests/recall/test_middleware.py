"""What the model sees, what the state keeps, and what the recall log says, with real agents."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from numpy.typing import NDArray

from kp_langchain import (
    ConfigError,
    KPCallbackHandler,
    KPRetriever,
    ScoredTrace,
    TraceStore,
    capture,
)
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.recall import task_index
from kp_langchain.recall.middleware import KPMiddleware
from kp_langchain.recording import paused_in_memory
from tests.agents import shape
from tests.recall.words import (
    EURO,
    GARDEN,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    kept_handler,
    middleware,
    passing_handler,
    rates,
    texts,
)


@tool
def weather(town: str) -> str:
    """Return the weather of a town."""
    return f"rain in {town}"


class Played:
    """One run of an agent with the middleware."""

    def __init__(
        self,
        shows: KPMiddleware,
        task: str = EURO,
        how: str = "invoke",
        config: Any = None,
        script: Sequence[Any] | None = None,
        tools: Sequence[Any] = (rates,),
        **options: Any,
    ) -> None:
        self.model = Listening(answers("EURUSD") if script is None else script, asked=[])
        agent = create_agent(self.model, list(tools), middleware=[shows], **options)
        inputs: Any = {"messages": [("user", task)]}
        if how == "ainvoke":
            self.state = asyncio.run(agent.ainvoke(inputs, config))
        elif how == "stream":
            self.state = list(agent.stream(inputs, config, stream_mode="values"))[-1]
        else:
            self.state = agent.invoke(inputs, config)
        self.scored = shows.handler.last(120)

    @property
    def asked(self) -> list[list[AnyMessage]]:
        return self.model.asked


def fresh(store: TraceStore) -> KPMiddleware:
    """Middleware on a store of its own, so that it counts the credit anew."""
    return middleware(TraceStore(store.location))


def examples_in(messages: Sequence[AnyMessage]) -> list[str]:
    """The messages that hold examples."""
    return [one.text for one in messages if "earlier runs" in one.text]


class TestWhatTheModelSees:
    @pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
    def test_examples_stand_before_the_task_and_nowhere_else(
        self, store: TraceStore, how: str
    ) -> None:
        kept = keep(store)
        played = Played(middleware(store), how=how)
        for asked in played.asked:  # also when the model is called after the tool
            assert isinstance(asked[0], HumanMessage)
            assert "rates" in asked[0].text
            assert POUND in asked[0].text
            assert asked[1].text == EURO
        assert len({asked[0].text for asked in played.asked}) == 1
        assert texts(played.state["messages"])[0] == f"human: {EURO}"
        assert not examples_in(played.state["messages"])
        scored = played.scored
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]
        assert scored.trace.task.objective == EURO
        assert "earlier runs" not in scored.trace.model_dump_json()
        assert [one.trace_id for one in store.shown.of_run(scored.trace.id)] == [kept]

    def test_outputs_of_tools_are_shown_only_if_asked_for(self, store: TraceStore) -> None:
        keep(store)
        assert "rate of GBPUSD" not in Played(middleware(store)).asked[0][0].text
        with_outputs = middleware(store, with_outputs=True)
        assert "rate of GBPUSD" in Played(with_outputs, task=EURO).asked[0][0].text

    def test_nothing_is_shown_if_nothing_is_similar(self, store: TraceStore) -> None:
        keep(store)
        played = Played(middleware(store), task=GARDEN)
        assert texts(played.asked[0]) == [f"human: {GARDEN}"]
        assert played.scored is not None
        assert played.scored.shown == ()

    def test_in_a_conversation_each_turn_has_its_own(self, store: TraceStore) -> None:
        keep(store)
        keep(store, GARDEN, "roses")
        shows = middleware(store)
        model = Listening([*answers(), say("In spring.")], asked=[])
        agent = create_agent(model, [rates], middleware=[shows], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        agent.invoke({"messages": [("user", EURO)]}, config)
        agent.invoke({"messages": [("user", "when should my roses be pruned")]}, config)
        (first,) = examples_in(model.asked[0])
        (second,) = examples_in(model.asked[-1])
        assert POUND in first
        assert GARDEN in second
        last = model.asked[-1]
        assert last[-1].text == "when should my roses be pruned"
        assert last[-2].text == second
        (state,) = [agent.get_state(config).values["messages"]]
        assert not examples_in(state)

    def test_that_a_run_succeeded_is_said_only_where_a_verdict_says_it(
        self, store: TraceStore
    ) -> None:
        kept = keep(store)
        assert "a run that seems to have succeeded" in Played(middleware(store)).asked[0][0].text
        store.report_outcome(kept, success=True)
        assert "1: a run that succeeded>>>" in Played(fresh(store)).asked[0][0].text

    def test_the_budget_of_tokens_is_held(self, store: TraceStore) -> None:
        keep(store)
        assert len(Played(middleware(store, max_tokens=200)).asked[0][0].text) < 1600
        played = Played(middleware(store, max_tokens=1))
        assert not examples_in(played.asked[0])
        assert played.scored is not None
        assert played.scored.shown == ()

    def test_several_examples_in_one_message(self, store: TraceStore) -> None:
        keep(store)
        keep(store, "what is one franc in dollars today", "CHFUSD")
        (text,) = examples_in(Played(middleware(store, limit=2)).asked[0])
        assert "GBPUSD" in text
        assert "CHFUSD" in text


class TestWhatTheAgentCanCall:
    def test_runs_that_call_none_of_its_tools_must_be_twice_as_similar(
        self, store: TraceStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        keep(store)
        played = Played(middleware(store), script=[say("Never.")], tools=[weather])
        assert not examples_in(played.asked[0])
        (event,) = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        assert "calls tools that the agent lacks" in event.reason  # type: ignore[attr-defined]
        shows = middleware(store, floor=0.4)
        assert examples_in(Played(shows, script=[say("Never.")], tools=[weather]).asked[0])

    def test_a_retriever_around_the_agent_is_no_tool_of_its(self, store: TraceStore) -> None:
        """The agent has a tool that it did not need, and a node before it retrieves."""
        shows = middleware(store, handler=kept_handler(store), floor=None)
        retrieve = RunnableLambda(
            lambda task: KPRetriever("other", store=store, embedder=Words()).invoke(task)
        )
        for _ in range(2):
            model = Listening([say("About 1.08, as the documents say.")], asked=[])
            agent = create_agent(model, [weather], middleware=[shows])
            chain = {"found": retrieve, "messages": RunnablePassthrough()} | agent
            chain.invoke(EURO, {"callbacks": [shows.handler]})
            shows.handler.flush()
        (run, _) = store.runs()
        assert {one.tool.name for one in run.trace.steps if one.tool} == {"KPRetriever"}
        assert examples_in(model.asked[0])

    @pytest.mark.parametrize(
        "others",
        [
            [rates, weather],
            [],
            [{"type": "web_search"}],
            [{"type": "code_execution_20250825", "name": "code_execution"}],
        ],
    )
    def test_others_are(self, store: TraceStore, others: list[Any]) -> None:
        keep(store)
        played = Played(middleware(store), script=[say("About 1.08.")], tools=others)
        assert len(examples_in(played.asked[0])) == 1

    @pytest.mark.parametrize(
        "described",
        [
            {"type": "function", "function": {"name": "rates", "parameters": {}}},
            {"name": "rates", "input_schema": {}},
        ],
    )
    def test_tools_may_be_dictionaries(self, store: TraceStore, described: Any) -> None:
        keep(store)
        say_it = [say("About 1.08.")]
        assert examples_in(Played(middleware(store), script=say_it, tools=[described]).asked[0])
        described.get("function", described)["name"] = "weather"
        say_it = [say("About 1.08.")]
        assert not examples_in(Played(middleware(store), script=say_it, tools=[described]).asked[0])


class TestAttaching:
    def test_runs_of_the_agent_are_recorded_whole(self, store: TraceStore) -> None:
        played = Played(middleware(store))
        assert played.scored is not None
        assert shape(played.scored.trace) == ["thought", "call rates", "saw rates", "thought"]
        assert played.scored.trace.metadata.framework == "langgraph"

    def test_runs_of_other_agents_are_not(self, store: TraceStore) -> None:
        shows = middleware(store)
        create_agent(ScriptedChatModel(answers()), [rates]).invoke({"messages": [("user", POUND)]})
        assert shows.handler.flush(120)
        assert shows.handler.stats()["runs"] == 0

    def test_a_handler_among_the_callbacks_is_the_only_one(self, store: TraceStore) -> None:
        kept = keep(store)
        own, shows = kept_handler(store), middleware(store)
        Played(shows, config={"callbacks": [own]})
        scored = own.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]
        assert shows.handler.stats()["runs"] == 0

    def test_the_same_handler_twice_records_once(self, store: TraceStore) -> None:
        shows = middleware(store)
        Played(shows, config={"callbacks": [shows.handler]})
        assert shows.handler.stats()["runs"] == shows.handler.stats()["scored"] == 1

    def test_so_is_one_of_capture(self, store: TraceStore) -> None:
        shows = middleware(store)
        with capture("finance", store=None) as handler:
            Played(shows)
        assert handler.last(120) is not None
        assert shows.handler.stats()["runs"] == 0

    def test_a_failed_run(self, store: TraceStore) -> None:
        shows = middleware(store)
        agent = create_agent(ScriptedChatModel([ValueError("no")]), [rates], middleware=[shows])
        with pytest.raises(ValueError, match="no"):
            agent.invoke({"messages": [("user", EURO)]})
        assert shows.handler.flush(120)
        assert shows.handler.stats()["scored"] == 1

    def test_an_agent_inside_a_tool(self, store: TraceStore) -> None:
        kept = keep(store)
        shows = middleware(store)
        inner = create_agent(Listening(answers(), asked=[]), [rates], middleware=[shows])

        @tool
        def ask_bank(question: str) -> str:
            """Ask the bank."""
            return str(inner.invoke({"messages": [("user", EURO)]})["messages"][-1].text)

        outer = create_agent(
            ScriptedChatModel([say("", call("ask_bank", question="?")), say("ok")]), [ask_bank]
        )
        outer.invoke({"messages": [("user", "ask the bank for me")]})
        scored = shows.handler.last(120)
        assert scored is not None
        assert scored.trace.task.objective == EURO
        assert [one.trace_id for one in scored.shown] == [kept]
        assert shape(scored.trace) == ["thought", "call rates", "saw rates", "thought"]

    def test_an_agent_inside_a_chain(self, store: TraceStore) -> None:
        shows = middleware(store)
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
        chain = RunnableLambda(lambda text: {"messages": [("user", text)]}) | agent
        chain.invoke(EURO)
        scored = shows.handler.last(120)
        assert scored is not None
        assert scored.trace.task.objective == EURO

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
    @pytest.mark.parametrize("by_hand", [False, True], ids=["attached", "callbacks"])
    def test_a_run_that_pauses_for_a_human_is_one_run(
        self, store: TraceStore, by_hand: bool, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = keep(store)
        shows = middleware(store)
        agent = create_agent(
            Listening(answers("EURUSD"), asked=[]),
            [rates],
            middleware=[shows, HumanInTheLoopMiddleware(interrupt_on={"rates": True})],
            checkpointer=InMemorySaver(),
        )
        config: Any = {"configurable": {"thread_id": "t"}}
        if by_hand:
            config["callbacks"] = [shows.handler]
        agent.invoke({"messages": [("user", EURO)]}, config)
        assert shows.handler.flush(120)
        assert shows.handler.stats()["paused"] == 1
        if elsewhere:  # as another process, which has only the store
            monkeypatch.setattr(paused_in_memory, "_paused_runs", {})
        agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
        scored = shows.handler.last(120)
        assert scored is not None
        assert shows.handler.stats()["runs"] == (2 if elsewhere else 1)
        assert shape(scored.trace) == ["thought", "call rates", "saw rates", "thought"]
        assert scored.trace.task.objective == EURO
        assert [one.trace_id for one in scored.shown] == [kept]

    def test_sixteen_at_once(self, store: TraceStore) -> None:
        words = ["amber", "birch", "cedar", "daisy", "elder", "fern", "gorse", "holly"]
        kept = {word: keep(store, f"{word} {word} {word} report", word) for word in words}
        scored: list[ScoredTrace] = []
        shows = middleware(store, handler=passing_handler(store, on_scored=scored.append))

        async def run(word: str) -> None:
            model = ScriptedChatModel(answers(word))
            agent = create_agent(model, [rates], middleware=[shows])
            await agent.ainvoke({"messages": [("user", f"{word} {word} report")]})

        async def run_all() -> None:
            await asyncio.gather(*(run(word) for word in words * 2))

        asyncio.run(run_all())
        assert shows.handler.flush(120)
        assert len(scored) == 16
        for one in scored:
            word = one.trace.task.objective.split()[0]
            assert [shown.trace_id for shown in one.shown] == [kept[word]]


def test_nothing_happens_while_recording_is_switched_off(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store)
    monkeypatch.setenv("KP_DISABLED", "true")
    shows = middleware(store)
    played = Played(shows, how="ainvoke")
    assert texts(played.asked[0]) == [f"human: {EURO}"]
    assert shows.handler.stats()["runs"] == 0


class TestHeldOut:
    def test_held_out_runs_are_noted_and_shown_nothing(self, store: TraceStore) -> None:
        kept = keep(store)
        played = Played(middleware(store, held_out=0.999999))
        assert not examples_in(played.asked[0])
        (shown,) = store.shown.of_run(played.scored.trace.id)  # type: ignore[union-attr]
        assert (shown.trace_id, shown.held_out) == (kept, True)

    def test_the_share_is_kept(self, store: TraceStore) -> None:
        keep(store)
        shows = middleware(store, held_out=0.5)
        held_out = []
        for _ in range(60):
            played = Played(shows, script=[say("One is 1.08.")])
            assert played.scored is not None
            held_out += [one.held_out for one in played.scored.shown]
        assert 10 <= sum(held_out) <= 50
        assert len(held_out) == 60


class TestWhatIsNeverShown:
    def test_what_belongs_to_another_namespace(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        shows = middleware(store)

        def seen(**metadata: str) -> list[str]:
            return examples_in(Played(shows, config={"metadata": metadata}).asked[0])

        assert not seen()
        assert not seen(kp_namespace="tenant-b")
        assert seen(kp_namespace="tenant-a")

    def test_a_shared_trace_is_shown_in_every_namespace(self, store: TraceStore) -> None:
        keep(store)
        config = {"metadata": {"kp_namespace": "tenant-b"}}
        assert examples_in(Played(middleware(store), config=config).asked[0])

    def test_a_namespace_that_is_stored_as_a_hash(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "ann@example.org"})
        (stored,) = store.runs(namespace="ann@example.org")
        assert stored.namespace is not None
        assert stored.namespace.startswith("hash:")
        shows = middleware(store)
        for namespace, is_shown in (("ann@example.org", True), ("ben@example.org", False)):
            config = {"metadata": {"kp_namespace": namespace}}
            assert bool(examples_in(Played(shows, config=config).asked[0])) is is_shown

    def test_a_deleted_trace(self, store: TraceStore) -> None:
        kept, shows = keep(store), middleware(store)
        assert examples_in(Played(shows).asked[0])
        store.delete(kept)
        store.delete(domain="finance")
        assert not examples_in(Played(shows).asked[0])

    def test_a_trace_that_a_verdict_calls_a_failure(self, store: TraceStore) -> None:
        kept = keep(store)
        shows = middleware(store)
        assert examples_in(Played(shows).asked[0])
        store.report_outcome(kept, success=False)
        assert not examples_in(Played(shows).asked[0])

    def test_a_trace_that_runs_ended_worse_with(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_index, "_CREDITS_EVERY_S", 3600.0)  # counted anew by a fresh one
        kept = keep(store)
        shows = {True: middleware(store), False: middleware(store, held_out=0.999999)}
        for number in range(16):
            played = Played(shows[number % 2 == 0])
            assert played.scored is not None
            store.report_outcome(played.scored.trace.id, success=number % 2 == 1)
        assert len(store.shown.shown_to(kept)) == 16
        assert not examples_in(Played(fresh(store)).asked[0])


class TestFailures:
    def test_a_late_search_costs_only_the_examples(self, store: TraceStore) -> None:
        keep(store)
        may_go_on = threading.Event()

        class Slow(Words):
            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                may_go_on.wait(60)
                return super().embed(texts)

        shows = KPMiddleware(
            handler=passing_handler(store), held_out=0.0, floor=0.5, timeout_s=0.05, embedder=Slow()
        )
        try:
            assert not examples_in(Played(shows).asked[0])
        finally:
            may_go_on.set()
        assert shows.load(60)

    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    def test_no_run_waits_for_the_model_to_load(
        self, store: TraceStore, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        keep(store)
        may_load = threading.Event()

        class Loading(Words):
            ready = False

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                if not self.ready:  # a run that waits for it is shown something in the end
                    may_load.wait(60)
                self.ready = True
                return super().embed(texts)

        shows = KPMiddleware(
            handler=passing_handler(store), held_out=0, floor=0.5, timeout_s=600, embedder=Loading()
        )
        try:
            assert not examples_in(Played(shows, how=how).asked[0])  # it ends before the model may
        finally:
            may_load.set()
        (event,) = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        assert "still loading, which load() waits for" in event.reason  # type: ignore[attr-defined]
        assert shows.load(60)
        assert examples_in(Played(shows, how=how).asked[0])

    def test_a_model_that_never_calls_itself_ready_is_waited_for_once_it_answered(
        self, store: TraceStore
    ) -> None:
        class Modest(Words):
            ready = False

        keep(store)
        shows = KPMiddleware(
            handler=passing_handler(store), held_out=0, floor=0.5, timeout_s=600, embedder=Modest()
        )
        assert shows.load(60)
        assert examples_in(Played(shows).asked[0])

    def test_a_model_that_cannot_load_is_not_said_to_be_loading(
        self, store: TraceStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Missing(Words):
            ready = False

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                raise OSError("private path")

        caplog.set_level(logging.INFO, "kp_langchain")
        shows = KPMiddleware(handler=passing_handler(store), timeout_s=600, embedder=Missing())
        assert shows.load(60)
        Played(shows)
        (event,) = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        assert event.reason.startswith("the search failed: OSError")  # type: ignore[attr-defined]
        assert "private path" not in caplog.text

    @pytest.mark.parametrize("how", ["invoke", "ainvoke"])
    def test_an_embedder_that_fails(
        self, store: TraceStore, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Words):
            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                raise ValueError("private text")

        keep(store)
        shows = KPMiddleware(handler=passing_handler(store), timeout_s=600, embedder=Broken())
        played = Played(shows, how=how)
        assert texts(played.state["messages"])[-1] == "ai: One is 1.27."
        assert "kept traces cannot be searched (ValueError)" in caplog.text
        assert "private text" not in caplog.text

    def test_a_store_that_is_gone(self, store: TraceStore, tmp_path: Path) -> None:
        broken = TraceStore(tmp_path / "broken.db")
        Path(tmp_path, "broken.db").write_bytes(b"not a database" * 1000)
        shows = KPMiddleware(
            handler=passing_handler(store), store=broken, timeout_s=600, embedder=Words()
        )
        played = Played(shows)
        assert texts(played.state["messages"])[-1] == "ai: One is 1.27."

    def test_the_log_says_why(self, store: TraceStore, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        kept = keep(store)
        Played(middleware(store))
        Played(middleware(store), task=GARDEN)
        events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        assert [one.shown for one in events] == [[kept], []]  # type: ignore[attr-defined]
        assert "nearest task has similarity" in events[1].reason  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"limit": 0}, "limit=0"),
            ({"floor": float("nan")}, "floor=nan"),
            ({"held_out": 1.0}, "held_out=1.0"),
            ({"timeout_s": 0}, "timeout_s=0"),
            ({"max_tokens": 0}, "max_tokens=0"),
        ],
    )
    def test_unusable_arguments(self, store: TraceStore, options: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            middleware(store, **options)

    def test_a_handler_that_keeps_nothing(self) -> None:
        with pytest.raises(ConfigError, match="keeps no runs"):
            KPMiddleware(handler=KPCallbackHandler(store=None), embedder=Words())
