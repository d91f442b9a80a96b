"""The middleware where something takes too long, panics, never ends, or is interrupted."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from numpy.typing import NDArray

from kp_langchain import TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.embedding.embedder_protocol import resolve_embedder
from kp_langchain.recall import agent_runs, example_search
from kp_langchain.recall.example_search import ExampleSearch
from kp_langchain.recall.middleware import KPMiddleware
from kp_langchain.recall.prompt_search import Request, prompt_search_of
from kp_langchain.recall.recall_log import recorded_domain
from tests.recall.words import (
    ASK,
    EURO,
    GARDEN,
    Listening,
    Words,
    answers,
    keep,
    middleware,
    passing_handler,
    rates,
)


class Gated(Words):
    """Embeds nothing before it may."""

    model = "gated"

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.may_go_on.wait(60)
        return super().embed(texts)


def is_shown_something(shows: KPMiddleware) -> bool:
    model = Listening(answers(), asked=[])
    create_agent(model, [rates], middleware=[shows]).invoke(ASK)
    return any("earlier runs" in message.text for message in model.asked[0])


def test_one_run_waits_for_a_model_that_loads_and_no_other(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    keep(store)
    caplog.set_level(logging.INFO, "kp_langchain")
    gated = Gated()
    shows = KPMiddleware(
        handler=passing_handler(store), embedder=gated, floor=0.5, held_out=0.0, timeout_s=0.05
    )
    try:
        assert not any(is_shown_something(shows) for _ in range(3))
    finally:
        gated.may_go_on.set()
    events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
    late = "an earlier search still takes too long"
    assert [one.reason for one in events] == [  # type: ignore[attr-defined]
        "the search took too long", late, late,
    ]  # fmt: skip
    assert shows.load(60)
    shows._timeout_s = 600.0  # the machine may be busy
    assert is_shown_something(shows)


def test_nor_does_a_run_of_other_middleware_that_waits_for_the_same_model(
    store: TraceStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store)
    caplog.set_level(logging.INFO, "kp_langchain")
    gated = Gated()
    embedder = resolve_embedder(gated)
    monkeypatch.setattr(example_search, "resolve_embedder", lambda _: embedder)  # as the default

    def of_a_request(timeout_s: float = 0.05) -> KPMiddleware:
        handler = passing_handler(store)
        return KPMiddleware(handler=handler, floor=0.5, held_out=0.0, timeout_s=timeout_s)

    first = of_a_request()
    try:
        assert not is_shown_something(first)
        assert not is_shown_something(of_a_request())
    finally:
        gated.may_go_on.set()
    events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
    assert [one.reason for one in events] == [  # type: ignore[attr-defined]
        "the search took too long", "an earlier search still takes too long",
    ]  # fmt: skip
    assert first.load(60)
    assert is_shown_something(of_a_request(600))


def test_a_panic_over_one_task_hides_no_other(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        """As a library in Rust raises it."""

    class Picky(Words):
        model = "picky"

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if any("poison" in text for text in texts):
                raise Panic("index out of bounds")
            return super().embed(texts)

    keep(store)
    keep(store, "poison in dollars today", "X")
    shows = KPMiddleware(
        handler=passing_handler(store), embedder=Picky(), floor=0.5, held_out=0.0, timeout_s=600
    )
    assert is_shown_something(shows)
    assert is_shown_something(shows)
    assert "refuses the task of a kept trace" in caplog.text


def test_no_search_is_left_unanswered(store: TraceStore) -> None:
    class Panic(BaseException):
        """As a library in Rust raises it."""

    class Panicking(Gated):
        model = "panicking"

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            super().embed(texts)
            raise Panic("index out of bounds")

    class Exiting(logging.Handler):
        """Raises what ends the search, where its failure is reported."""

        def emit(self, record: logging.LogRecord) -> None:
            if "cannot be searched" in record.getMessage():
                raise SystemExit

    exiting, panicking = Exiting(), Panicking()
    search = prompt_search_of(ExampleSearch(store, panicking))
    request = Request(EURO, "finance", None, 1, None, 800, with_outputs=False)
    logging.getLogger("kp_langchain").addHandler(exiting)
    try:
        futures = [search.submit(request) for _ in range(5)]
        panicking.may_go_on.set()
        reasons = [future.result(60).reason for future in futures]
    finally:
        logging.getLogger("kp_langchain").removeHandler(exiting)
    assert all("the search failed" in reason for reason in reasons)
    assert "the search failed" in search.submit(request).result(60).reason


def test_the_end_of_the_process_waits_for_no_search(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    script = f"""
import threading
from langchain.agents import create_agent
from kp_langchain import TraceStore
from kp_langchain.recall.middleware import KPMiddleware
from tests.recall.words import Words, answers, keep, passing_handler, rates
from kp_langchain.demo.scripted import ScriptedChatModel

class Hanging(Words):
    model = "hanging"
    def embed(self, texts):
        threading.Event().wait()

store = TraceStore({str(tmp_path / "kp.db")!r})
keep(store)
shows = KPMiddleware(
    handler=passing_handler(store), embedder=Hanging(), floor=0.5, held_out=0.0, timeout_s=0.05
)
agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
agent.invoke({{"messages": [("user", "what is a euro")]}})
print("ended with", store.count() if shows.handler.flush(60) else None)
"""
    assert "ended with 2" in run_python(script, KP_EXIT_TIMEOUT_S="3600").stdout


class Tenant(KPMiddleware):
    """Middleware with an `__init__` of its own."""

    def __init__(self, name: str, store: TraceStore) -> None:
        self.before = name
        super().__init__("finance", store=store, embedder=Words(), floor=0.5, held_out=0.0)
        self.tenant = name


def test_subclasses_are_pickled(store: TraceStore) -> None:
    again = pickle.loads(pickle.dumps(Tenant("north", store)))  # noqa: S301 - our own
    assert type(again) is Tenant
    assert (again.before, again.tenant) == ("north", "north")
    assert again.load(60)
    keep(store)
    assert is_shown_something(again)


def test_a_run_is_recorded_to_its_end_whatever_it_leaves_open(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_runs, "_MOST_OPEN", 50)
    left: list[Any] = []

    def leave(state: MessagesState) -> dict[str, Any]:
        for number in range(200):  # streams that nobody reads to their end
            left.append(RunnableLambda(str).stream(number))
            next(left[-1])
        return {"messages": [("ai", "Done.")]}

    shows = middleware(store)
    graph = StateGraph(MessagesState)
    graph.add_node("ask", create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows]))
    graph.add_node("leave", leave)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "leave")
    graph.compile().invoke(ASK)
    assert len(agent_runs.agent_runs()._chains) <= 51
    scored = shows.handler.last(120)
    assert scored is not None
    assert scored.trace.outcome.result_summary == "Done."


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a signal")
def test_a_time_limit_of_the_host_ends_the_wait(store: TraceStore) -> None:
    keep(store)

    class Alarming(Gated):
        model = "alarming"

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            # Again, because a signal that comes just before a wait does not end it.
            while any(EURO in text for text in texts) and not reached.wait(0.01):
                signal.pthread_kill(main, signal.SIGALRM)
            return super().embed(texts)

    def raise_limit(*_: object) -> None:
        if not reached.is_set():
            reached.set()
            raise TimeoutError("the limit of the host")

    reached = threading.Event()
    main = threading.main_thread().ident or 0
    alarming = Alarming()
    shows = KPMiddleware(
        handler=passing_handler(store), embedder=alarming, floor=0.5, held_out=0.0, timeout_s=600
    )
    alarming.may_go_on.set()
    assert shows.load(60)
    alarming.may_go_on.clear()
    before = signal.signal(signal.SIGALRM, raise_limit)
    try:
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
        with pytest.raises(TimeoutError, match="limit of the host"):
            agent.invoke(ASK)
    finally:
        signal.signal(signal.SIGALRM, before)
        alarming.may_go_on.set()
    assert shows.load(60)


def gardener(agent: Any) -> Any:
    @tool
    def ask(question: str) -> str:
        """Ask a gardener."""
        return str(agent.invoke({"messages": [("user", GARDEN)]})["messages"][-1].text)

    return ask


def test_an_agent_inside_an_agent_of_a_thread_is_held_out_with_it(store: TraceStore) -> None:
    keep(store)
    keep(store, GARDEN, "roses")
    both = []
    for number in range(16):
        shows = middleware(store, held_out=0.5)
        inner_model = Listening([say("in spring")], asked=[])
        ask = gardener(create_agent(inner_model, [rates], middleware=[shows]))
        model = Listening([say("", call("ask", question="?")), say("fine")], asked=[])
        tools = [ask, rates]
        outer = create_agent(model, tools, middleware=[shows], checkpointer=InMemorySaver())
        outer.invoke(ASK, {"configurable": {"thread_id": f"thread {number}"}})
        shown = ["earlier runs" in one.asked[0][0].text for one in (model, inner_model)]
        both.append(shown)
    assert all(outer == inner for outer, inner in both)
    assert {outer for outer, _ in both} == {True, False}


def test_settings_of_today_say_how_a_domain_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PRJ-1" in recorded_domain("desk PRJ-1")
    monkeypatch.setenv("KP_REDACTION__PATTERNS", '{"project": "PRJ-[0-9]"}')
    assert "PRJ-1" not in recorded_domain("desk PRJ-1")
