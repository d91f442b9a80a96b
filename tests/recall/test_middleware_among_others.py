"""The middleware among other middleware, nested agents, resumed graphs, copies and slow models."""

from __future__ import annotations

import asyncio
import copy
import logging
import operator
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from inspect import signature
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    before_model,
)
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send
from numpy.typing import NDArray

from kp_langchain import KPRetriever, ScoredTrace, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.recall import agent_runs
from kp_langchain.recall.examples_prompt import ExamplesPrompt
from kp_langchain.recall.middleware import KPMiddleware
from tests.agents import shape
from tests.recall.words import (
    ASK,
    EURO,
    GARDEN,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    middleware,
    passing_handler,
    rates,
)


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


def summarising(model: ScriptedChatModel) -> SummarizationMiddleware:
    """Summarises after five messages, or as early in the first versions."""
    options: dict[str, Any] = {"trigger": ("messages", 5), "keep": ("messages", 2)}
    if "trigger" not in signature(SummarizationMiddleware).parameters:
        options = {"max_tokens_before_summary": 40, "messages_to_keep": 2}
    return SummarizationMiddleware(model, **options)


class TestOtherMiddleware:
    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_conversation_that_is_summarised(self, store: TraceStore, is_first: bool) -> None:
        keep(store)
        calls = [(call("rates", pair=f"{n}"), call("rates", pair=f"x{n}")) for n in range(4)]
        script = [say("", *two) for two in calls]
        model = Listening([*script, say("One is 1.08.")], asked=[])
        shorten = summarising(ScriptedChatModel([say("a summary")] * 9))
        others = [middleware(store), shorten]
        agent = create_agent(model, [rates], middleware=others if is_first else others[::-1])
        agent.invoke(ASK)
        assert any("a summary" in one.text for asked in model.asked for one in asked)
        for asked in model.asked:
            assert is_well_formed(asked)
            assert sum("earlier runs" in one.text for one in asked) == 1

    def test_a_conversation_that_is_trimmed(self, store: TraceStore) -> None:
        @before_model
        def trim(state: Any, runtime: Any) -> Any:
            if len(state["messages"]) < 3:
                return None
            return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"][-2:]]}

        keep(store)
        model = Listening([*answers()[:1] * 3, say("One is 1.08.")], asked=[])
        create_agent(model, [rates], middleware=[trim, middleware(store)]).invoke(ASK)
        assert len(model.asked) == 4
        assert all(is_well_formed(asked) for asked in model.asked)

    def test_messages_without_ids(self) -> None:
        prompt = ExamplesPrompt("examples")
        calls = AIMessage("", tool_calls=[call("rates", call_id="1", pair="x")])
        result = ToolMessage("1.08", tool_call_id="1")
        assert is_well_formed(prompt.added_to([calls, result]))
        assert [one.text for one in prompt.added_to([])] == ["examples"]
        system = SystemMessage("be brief")
        placed = prompt.added_to([system, calls, result])
        assert [one.type for one in placed] == ["system", "human", "ai", "tool"]


class TestNestedAgents:
    @pytest.fixture(autouse=True)
    def no_models_yet(self) -> None:
        self.models: list[tuple[Listening, Listening]] = []

    def nested(self, inner: KPMiddleware, *outer: KPMiddleware) -> Any:
        asking = Listening([say("", call("ask_bank", question="?")), say("ok")], asked=[])
        asked = Listening(answers(), asked=[])
        self.models.append((asking, asked))

        @tool
        def ask_bank(question: str) -> str:
            """Ask the bank."""
            agent = create_agent(asked, [rates], middleware=[inner])
            return str(agent.invoke(ASK)["messages"][-1].text)

        return create_agent(asking, [ask_bank], middleware=list(outer))

    def test_middleware_inside_and_outside_records_once(self, store: TraceStore) -> None:
        keep(store)
        inner, outer = middleware(store), middleware(store)
        self.nested(inner, outer).invoke({"messages": [("user", "which rate has the euro")]})
        assert outer.handler.flush(120)
        assert inner.handler.stats()["runs"] == 0
        scored = outer.handler.last()
        assert scored is not None
        assert len(scored.shown) == 1
        assert "call ask_bank" in shape(scored.trace)
        assert "call rates" in shape(scored.trace)

    def test_a_run_is_held_out_as_a_whole(self, store: TraceStore) -> None:
        keep(store)
        scored: list[ScoredTrace] = []
        handler = passing_handler(store, on_scored=scored.append)
        half = {"handler": handler, "held_out": 0.5}
        for _ in range(20):
            self.nested(middleware(store, **half), middleware(store, **half)).invoke(ASK)
        assert handler.flush(120)
        assert len(scored) == 20
        assert {len(one.shown) for one in scored} == {1}
        were_shown = [
            any("earlier runs" in one.text for model in models for one in model.asked[0])
            for models in self.models
        ]
        assert were_shown == [not one.shown[0].held_out for one in scored]
        assert len(set(were_shown)) == 2

    def test_threads_do_not_decide_who_is_held_out(self, store: TraceStore) -> None:
        keep(store)
        shows = middleware(store, held_out=0.5)
        decisions = []
        saver = InMemorySaver()
        for _ in range(30):
            agent = create_agent(
                ScriptedChatModel([say("1.08")]), [rates], middleware=[shows], checkpointer=saver
            )
            agent.invoke(ASK, {"configurable": {"thread_id": "nightly"}})
            scored = shows.handler.last(120)
            assert scored is not None
            decisions += [one.held_out for one in scored.shown]
        assert 3 < sum(decisions) < 27

    def test_a_retriever_inside_an_agent(self, store: TraceStore) -> None:
        kept = keep(store)

        @tool
        def earlier_runs(q: str) -> str:
            """Return earlier runs."""
            found = KPRetriever("finance", store=store, embedder=Words(), floor=0.5).invoke(q)
            return "\n".join(one.page_content for one in found)

        script = [say("", call("earlier_runs", q=EURO)), say("One is 1.08.")]
        shows = middleware(store)
        agent = create_agent(ScriptedChatModel(script), [earlier_runs], middleware=[shows])
        agent.invoke({"messages": [("user", GARDEN)]})
        scored = shows.handler.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]
        assert "GBPUSD" not in scored.trace.model_dump_json()


class TestResumed:
    def test_calls_that_run_at_once_after_a_pause(self, store: TraceStore) -> None:
        shows = middleware(store)
        script = [say("", *(call("rates", pair=str(n)) for n in range(4))), say("done")]
        agent = create_agent(
            ScriptedChatModel(script),
            [rates],
            middleware=[shows, HumanInTheLoopMiddleware(interrupt_on={"rates": True})],
            checkpointer=InMemorySaver(),
        )
        config: Any = {"configurable": {"thread_id": "t"}}
        agent.invoke(ASK, config)
        agent.invoke(Command(resume={"decisions": [{"type": "approve"}] * 4}), config)
        scored = shows.handler.last(120)
        assert scored is not None
        results = [step for step in scored.trace.steps if step.type == "observation"]
        assert len(results) == 4
        assert all(step.latency_ms is not None for step in results)

    def test_an_agent_that_is_a_node_of_a_graph(self, store: TraceStore) -> None:
        class State(TypedDict):
            messages: list[Any]

        shows = middleware(store)
        agent = create_agent(
            ScriptedChatModel(answers("EURUSD")),
            [rates],
            middleware=[shows, HumanInTheLoopMiddleware(interrupt_on={"rates": True})],
        )
        graph = StateGraph(State)
        graph.add_node("agent", agent)
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        whole = graph.compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        whole.invoke(ASK, config)
        whole.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
        scored = shows.handler.last(120)
        assert scored is not None
        stats = shows.handler.stats()
        assert (stats["runs"], stats["paused"], stats["scored"]) == (1, 0, 1)
        assert shape(scored.trace) == ["thought", "call rates", "saw rates", "thought"]

    # LangChain silences this in each thread by itself, which brings it up in the others.
    @pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
    def test_nodes_that_run_at_once_are_one_run(self, store: TraceStore) -> None:
        class State(TypedDict):
            answers: Annotated[list[str], operator.add]

        def ask(_: Any) -> Any:
            agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
            return {"answers": [agent.invoke(ASK)["messages"][-1].text]}

        graph = StateGraph(State)
        graph.add_node("ask", ask)
        graph.add_conditional_edges(START, lambda _: [Send("ask", {})] * 8, ["ask"])
        graph.add_edge("ask", END)
        whole = graph.compile()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # so that the nodes meet while they begin
        try:
            for number in range(1, 6):
                shows = middleware(store)
                whole.invoke({"answers": []})
                scored = shows.handler.last(120)
                assert scored is not None
                assert shows.handler.stats()["runs"] == 1, number
                assert shape(scored.trace).count("call rates") == 8
        finally:
            sys.setswitchinterval(interval)


class TestTheProcess:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_what_waits_at_a_fork_is_the_parents(self, store: TraceStore) -> None:
        keep(store)
        may_go_on = threading.Event()

        class Hanging(Words):
            model = "waits at a fork"

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                may_go_on.wait(60)
                return super().embed(texts)

        shows = KPMiddleware(
            handler=passing_handler(store), embedder=Hanging(), floor=0.5, held_out=0.0,
            timeout_s=0.05,
        )  # fmt: skip
        try:
            create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows]).invoke(ASK)
            child = os.fork()
            if child == 0:
                may_go_on.set()
                shows._timeout_s = 60.0
                model = Listening(answers(), asked=[])
                create_agent(model, [rates], middleware=[shows]).invoke(ASK)
                os._exit(0 if POUND in model.asked[0][0].text else 1)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            may_go_on.set()
        assert shows.load(60)

    def test_a_closed_handler_records_nothing(self, store: TraceStore) -> None:
        shows = middleware(store)
        shows.handler.close()
        create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows]).invoke(ASK)
        assert shows.handler.stats()["runs"] == 0
        assert store.count() == 0

    def test_copies_and_pickles(self, store: TraceStore) -> None:
        keep(store)
        shows = middleware(store)
        assert copy.deepcopy(shows) is copy.copy(shows) is shows
        again = pickle.loads(pickle.dumps(shows))  # noqa: S301 - our own
        model = Listening(answers(), asked=[])
        create_agent(model, [rates], middleware=[again]).invoke(ASK)
        assert POUND in model.asked[0][0].text
        retriever = KPRetriever("finance", store=store, embedder=Words(), floor=0.5)
        assert len(retriever.model_copy(deep=True).invoke(EURO)) == 1

    def test_a_model_that_hangs_delays_nobody_else(self, store: TraceStore) -> None:
        keep(store)
        may_go_on = threading.Event()

        class Hanging(Words):
            model = "hanging"

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                may_go_on.wait(60)
                return super().embed(texts)

        hangs = KPMiddleware(
            handler=passing_handler(store), embedder=Hanging(), floor=0.5, timeout_s=0.05
        )
        try:
            for _ in range(3):
                model = Listening(answers(), asked=[])
                create_agent(model, [rates], middleware=[hangs]).invoke(ASK)
                assert len(model.asked[0]) == 1
            model = Listening(answers(), asked=[])
            create_agent(model, [rates], middleware=[middleware(store)]).invoke(ASK)
            assert POUND in model.asked[0][0].text
        finally:
            may_go_on.set()
        assert hangs.load(60)

    def test_tasks_that_wait_are_embedded_together(self, store: TraceStore) -> None:
        keep(store)
        sizes: list[int] = []
        may_go_on = threading.Event()

        class Batches(Words):
            model = "batches"

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                may_go_on.wait(60)
                sizes.append(len(texts))
                return super().embed(texts)

        shows = KPMiddleware(
            handler=passing_handler(store), embedder=Batches(), floor=0.5, held_out=0.0,
            timeout_s=600,
        )  # fmt: skip
        models = [Listening([say("1.08")], asked=[]) for _ in range(20)]

        async def ask_all() -> None:
            agents = [create_agent(model, [rates], middleware=[shows]) for model in models]
            runs = [asyncio.ensure_future(agent.ainvoke(ASK)) for agent in agents]
            while len(shows._search._waiting) < 19:
                await asyncio.sleep(0.01)
            may_go_on.set()
            await asyncio.gather(*runs)

        asyncio.run(ask_all())
        assert all(POUND in model.asked[0][0].text for model in models)
        assert max(sizes) >= 19

    def test_streams_that_are_left_half_read(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(agent_runs, "_MOST_OPEN", 50)
        shows = middleware(store)

        async def leave() -> None:
            agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
            async for _ in agent.astream(ASK, stream_mode="messages"):
                break

        for _ in range(60):
            asyncio.run(leave())
        observer = agent_runs.agent_runs()
        assert len(observer._followers) <= 51
        assert len(observer._chains) <= 51

    def test_the_domain_is_logged_as_it_is_recorded(
        self, store: TraceStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kp_langchain")
        shows = middleware(store)
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
        agent.invoke(ASK, {"metadata": {"kp_domain": "desk of ann@example.org"}})
        assert shows.handler.flush(120)
        assert "kp.recall desk of" in caplog.text
        assert "ann@example.org" not in caplog.text
