"""The middleware where something takes too long, fails, never ends, or is left open."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from numpy.typing import NDArray

from kp_langchain import KPMiddleware, KPRetriever, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, say
from kp_langchain.embedding.local_models import resolve_embedder
from kp_langchain.recall import ExampleSearch, agent_runs, example_search
from kp_langchain.recall.prompt_search import Request, prompt_search_of
from tests.recall.words import (
    ASK,
    EURO,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    keep_all,
    middleware,
    passing_handler,
    rates,
)


class Gated(Words):
    """Embeds nothing before it may."""

    def __init__(self, **attributes: Any) -> None:
        self.model = f"gated {id(self)}"
        self.may_go_on = threading.Event()
        self.sizes: list[int] = []
        vars(self).update(attributes)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.may_go_on.wait(600)
        if getattr(self, "ready", None) is False:
            self.ready = True
        self.sizes.append(len(texts))
        return super().embed(texts)


@pytest.fixture
def gated() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.may_go_on.set()


class Panic(BaseException):
    """As a library in Rust raises it."""


def shown(shows: KPMiddleware, how: str = "invoke") -> str:
    """The examples that a run is shown; the run itself goes well."""
    model = Listening(answers(), asked=[])
    agent = create_agent(model, [rates], middleware=[shows])
    state = agent.invoke(ASK) if how == "invoke" else asyncio.run(agent.ainvoke(ASK))
    assert state["messages"][-1].text == "One is 1.27."
    return "".join(one.text for one in model.asked[0] if "earlier runs" in one.text)


def with_embedder(store: TraceStore, embedder: Any = "auto", **options: Any) -> KPMiddleware:
    options = {"floor": 0.5, "held_out": 0.0, "timeout_s": 600.0, **options}
    return KPMiddleware(handler=passing_handler(store), embedder=embedder, **options)


@pytest.fixture
def reasons(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns why each search so far found nothing."""
    caplog.set_level(logging.INFO, "kp_langchain")

    def read() -> list[str]:
        events = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.recall"]
        return [one.reason for one in events]  # type: ignore[attr-defined]

    return read


LATE = "an earlier search still takes too long"


def test_one_run_waits_for_a_model_that_hangs_and_no_other(
    store: TraceStore, gated: Gated, reasons: Callable[[], list[str]]
) -> None:
    keep(store)
    shows = with_embedder(store, gated, timeout_s=0.05)
    assert not any(shown(shows) for _ in range(3))
    assert reasons() == ["the search took too long", LATE, LATE]
    assert POUND in shown(middleware(store))  # of another model
    gated.may_go_on.set()
    assert shows.load(60)
    shows._timeout_s = 600.0  # the machine may be busy
    assert shown(shows)


def test_nor_does_a_run_of_other_middleware_that_waits_for_the_same_model(
    store: TraceStore, gated: Gated, reasons: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    keep(store)
    embedder = resolve_embedder(gated)
    monkeypatch.setattr(example_search, "resolve_embedder", lambda _: embedder)  # as the default
    first = with_embedder(store, timeout_s=0.05)
    assert not shown(first)
    assert not shown(with_embedder(store, timeout_s=0.05))
    assert reasons() == ["the search took too long", LATE]
    gated.may_go_on.set()
    assert first.load(60)
    assert shown(with_embedder(store))


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_no_run_waits_for_the_model_to_load(
    store: TraceStore, how: str, gated: Gated, reasons: Callable[[], list[str]]
) -> None:
    keep(store)
    gated.ready = False  # type: ignore[attr-defined]
    shows = with_embedder(store, gated)
    assert not shown(shows, how)  # it ends before the model may
    assert "still loading, which load() waits for" in reasons()[0]
    gated.may_go_on.set()
    assert shows.load(60)
    assert shown(shows, how)


def test_a_model_that_never_calls_itself_ready_is_waited_for_once_it_answered(
    store: TraceStore,
) -> None:
    class Modest(Words):
        ready = False

    keep(store)
    shows = with_embedder(store, Modest())
    assert shows.load(60)
    assert shown(shows)


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("is_loading", [False, True])
def test_an_embedder_that_fails_costs_only_the_examples(
    store: TraceStore, how: str, is_loading: bool, reasons: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    class Broken(Words):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            raise OSError("private path")

    broken = Broken()
    if is_loading:  # one that cannot load is not said to be loading
        broken.ready = False  # type: ignore[attr-defined]
    keep(store)
    shows = with_embedder(store, broken)
    assert shows.load(60)
    assert not shown(shows, how)
    assert reasons()[-1].startswith("the search failed: OSError")
    assert "kept traces cannot be searched (OSError)" in caplog.text
    assert "private path" not in caplog.text


def test_a_store_that_is_gone_costs_only_the_examples(store: TraceStore, tmp_path: Path) -> None:
    broken = TraceStore(tmp_path / "broken.db")
    Path(tmp_path, "broken.db").write_bytes(b"not a database" * 1000)
    handler = passing_handler(store)
    shows = KPMiddleware(handler=handler, store=broken, timeout_s=600, embedder=Words())
    assert not shown(shows)


def test_a_panic_over_one_task_hides_no_other(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(Words):
        model = "picky"

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if any("poison" in text for text in texts):
                raise Panic("index out of bounds")
            return super().embed(texts)

    keep_all(store, POUND, "poison in dollars today")
    shows = with_embedder(store, Picky())
    assert shown(shows)
    assert shown(shows)
    assert "refuses the task of a kept trace" in caplog.text


def test_no_search_is_left_unanswered(store: TraceStore) -> None:
    class Panicking(Gated):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            super().embed(texts)
            raise Panic("index out of bounds")

    panicking = Panicking()
    search = prompt_search_of(ExampleSearch(store, panicking))
    request = Request(EURO, "finance", None, 1, None, 800, with_outputs=False)
    futures = [search.submit(request) for _ in range(5)]
    panicking.may_go_on.set()
    assert all("the search failed" in future.result(60).reason for future in futures)
    assert "the search failed" in search.submit(request).result(60).reason


def test_tasks_that_wait_are_embedded_together(store: TraceStore, gated: Gated) -> None:
    keep(store)
    shows = with_embedder(store, gated)
    models = [Listening([say("1.08")], asked=[]) for _ in range(20)]

    async def ask_all() -> None:
        agents = [create_agent(model, [rates], middleware=[shows]) for model in models]
        runs = [asyncio.ensure_future(agent.ainvoke(ASK)) for agent in agents]
        while len(shows._search._waiting) < 19:
            await asyncio.sleep(0.01)
        gated.may_go_on.set()
        await asyncio.gather(*runs)

    asyncio.run(ask_all())
    assert all(POUND in model.asked[0][0].text for model in models)
    assert max(gated.sizes) >= 19


def test_the_end_of_the_process_waits_for_no_search(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    script = f"""
import threading
from langchain.agents import create_agent
from kp_langchain import KPMiddleware, KPRetriever, TraceStore
from tests.recall.words import ASK, Words, answers, keep, passing_handler, rates
from kp_langchain.demo.scripted import ScriptedChatModel

class Hanging(Words):
    model = "hanging"
    def embed(self, texts):
        threading.Event().wait()

store = TraceStore({str(tmp_path / "kp.db")!r})
keep(store)
shows = KPMiddleware(handler=passing_handler(store), embedder=Hanging(), floor=0.5, timeout_s=0.05)
create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows]).invoke(ASK)
print("ended with", store.count() if shows.handler.flush(60) else None)
"""
    assert "ended with 2" in run_python(script, KP_EXIT_TIMEOUT_S="3600").stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_model_is_waited_for_leaves_the_child_a_search_of_its_own(
    store: TraceStore, gated: Gated
) -> None:
    kept = keep(store)
    retriever = KPRetriever("finance", store=store, embedder=Words(), floor=0.5)
    assert [one.id for one in retriever.invoke(EURO)] == [kept]
    waiting = with_embedder(store, gated, timeout_s=0.05)
    assert not shown(waiting)
    child = os.fork()
    if child == 0:
        try:
            gated.may_go_on.set()
            waiting._timeout_s = 60.0
            is_found = [one.id for one in retriever.invoke(EURO)] == [kept]
            os._exit(0 if is_found and POUND in shown(waiting) else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    gated.may_go_on.set()
    assert waiting.load(60)


def test_runs_that_are_left_open_are_bounded_in_number(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_runs, "_MOST_OPEN", 30)
    shows = middleware(store)

    async def leave() -> None:
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
        async for _ in agent.astream(ASK, stream_mode="messages"):
            break

    for _ in range(40):
        asyncio.run(leave())
    observer = agent_runs.agent_runs()
    assert len(observer._followers) <= 31
    assert len(observer._chains) <= 31


def test_the_domain_is_logged_as_it_is_recorded_under_the_settings_of_today(
    store: TraceStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "kp_langchain")
    for patterns, is_told in (("{}", True), ('{"project": "PRJ-[0-9]"}', False)):
        caplog.clear()
        monkeypatch.setenv("KP_REDACTION__PATTERNS", patterns)
        shows = middleware(store)
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
        agent.invoke(ASK, {"metadata": {"kp_domain": "desk PRJ-1 of ann@example.org"}})
        assert shows.handler.flush(120)
        assert "kp.recall desk" in caplog.text
        assert "ann@example.org" not in caplog.text
        assert ("PRJ-1" in caplog.text) is is_told
