"""`with handler:`, `async with handler:`, and the lifespan of a web service."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from kp_langchain import DomainPolicy, KPCallbackHandler, Registry, TraceStore
from tests.agents import ASK, agent, asearch, call, handler, say, searching, shape
from tests.loopback_registry import LoopbackRegistry

pytest.importorskip("starlette")
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

POLICY = DomainPolicy(threshold=0.0, visibility="network")
KEY = "kp_0123456789abcdef0123456789abcdef"


def asking(watching: KPCallbackHandler, **options: Any) -> Starlette:
    async def ask(_: Request) -> PlainTextResponse:
        made = agent(say("I search.", call("asearch", q="a")), say("42"), tools=(asearch,))
        answer = await made.ainvoke(ASK, {"callbacks": [watching]})
        return PlainTextResponse(answer["messages"][-1].content)

    return Starlette(routes=[Route("/", ask)], **options)


def test_with_stores_what_ended_and_records_nothing_more() -> None:
    with TraceStore("runs.db") as store:
        with handler(store=store) as watching:
            for _ in range(3):
                searching().invoke(ASK, {"callbacks": [watching]})
        assert store.count() == 3
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.stats()["runs"] == 3


def test_with_lets_errors_through() -> None:
    watching = handler()

    def fail() -> None:
        with watching:
            searching().invoke(ASK, {"callbacks": [watching]})
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()
    assert watching.stats()["scored"] == 1


def test_async_with_waits_while_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "300")
    scoring, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        scoring.set()
        go.wait(60)

    async def let_go() -> None:
        await asyncio.to_thread(scoring.wait, 60)
        go.set()  # this runs only if the loop is not blocked by the end of the block

    async def main(watching: KPCallbackHandler) -> int:
        async with watching:
            searching().invoke(ASK, {"callbacks": [watching]})
            letting_go = asyncio.create_task(let_go())
        await letting_go
        return watching.stats()["scored"]

    assert asyncio.run(main(handler(on_scored=hold, store="runs.db"))) == 1
    with TraceStore("runs.db") as store:
        assert store.count() == 1


def test_the_lifespan_of_a_service_stores_and_sends() -> None:
    with LoopbackRegistry(keys={KEY}) as server, TraceStore("runs.db") as store:
        registry = Registry(server.url, api_key=KEY)
        policy = POLICY.model_copy(update={"twin_similarity": 1.0})  # the same run again
        watching = handler("finance", store=store, registry=registry, policy=policy)
        for times in (1, 2):  # an application may be started again
            with TestClient(asking(watching, lifespan=watching.lifespan)) as client:
                assert client.get("/").text == "42"
            assert store.count() == len(server.units) == times


def test_the_lifespan_stands_within_one_of_the_service() -> None:
    from contextlib import asynccontextmanager

    events = []
    with TraceStore("runs.db") as store:
        watching = handler(store=store)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> Any:
            async with watching.lifespan():
                events.append("opened")
                yield {"what the service": "needs"}
                events.append("closed")
            events.append(f"{store.count()} stored")

        with TestClient(asking(watching, lifespan=lifespan)) as client:
            client.get("/")
        assert events == ["opened", "closed", "1 stored"]


def test_fastapi_takes_it() -> None:
    fastapi = pytest.importorskip("fastapi")
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        app = fastapi.FastAPI(lifespan=watching.lifespan)

        @app.get("/")
        async def ask() -> str:
            searching().invoke(ASK, {"callbacks": [watching]})
            return "42"

        with TestClient(app) as client:
            assert client.get("/").json() == "42"
        assert store.count() == 1


def test_the_store_opens_while_the_first_run_is_under_way() -> None:
    opened = []

    @tool
    def wait(q: str) -> str:
        """Wait for the store."""
        for _ in range(6000):
            if Path("runs.db").exists():
                opened.append(q)
                break
            time.sleep(0.01)
        return q

    with handler(store="runs.db") as watching:
        made = agent(say("", call("wait", q="a")), say("42"), tools=(wait,))
        made.invoke(ASK, {"callbacks": [watching]})
    assert opened == ["a"]


def test_a_stream_held_at_its_pause_is_in_the_store_when_its_handler_is_closed() -> None:
    asking = HumanInTheLoopMiddleware(interrupt_on={"search": True})
    answers = (say("I search.", call("search", q="a")), say("42"))
    paused = agent(*answers, checkpointer=InMemorySaver(), middleware=[asking])
    thread: Any = {"configurable": {"thread_id": "t-1"}}
    with handler(store="runs.db") as watching:
        stream = paused.stream(ASK, {**thread, "callbacks": [watching]}, stream_mode="updates")
        assert any("__interrupt__" in part for part in stream)
    assert watching.stats()["handed_over"] == 1
    with handler(store="runs.db") as watching:
        resume = Command(resume={"decisions": [{"type": "approve"}]})
        paused.invoke(resume, {**thread, "callbacks": [watching]})
    scored = watching.last(300)
    assert scored is not None
    assert shape(scored.trace) == ["thought", "call search", "saw search", "thought"]
    stream.close()
