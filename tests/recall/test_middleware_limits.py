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

from kp_langchain import KPCallbackHandler, KPMiddleware, KPRetriever, Scorer, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel
from tests.recall.words import (
    ASK,
    EURO,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    middleware,
    rates,
)


class Gated(Words):
    """Embeds nothing before it may."""

    def __init__(self) -> None:
        self.model = f"gated {id(self)}"
        self.may_go_on = threading.Event()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.may_go_on.wait(600)
        return super().embed(texts)


@pytest.fixture
def gated() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.may_go_on.set()


def shown(shows: KPMiddleware, how: str = "invoke") -> str:
    """The examples that a run is shown; the run itself goes well."""
    model = Listening(answers(), asked=[])
    agent = create_agent(model, [rates], middleware=[shows])
    recording = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    config: Any = {"callbacks": [recording]}
    if how == "invoke":
        state = agent.invoke(ASK, config)
    else:
        state = asyncio.run(agent.ainvoke(ASK, config))
    assert state["messages"][-1].text == "One is 1.27."
    return "".join(one.text for one in model.asked[0] if "earlier runs" in one.text)


def with_embedder(store: TraceStore, embedder: Any = "auto", **options: Any) -> KPMiddleware:
    return middleware(store, embedder=embedder, **options)


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


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_an_embedder_that_fails_costs_only_the_examples(
    store: TraceStore, how: str, reasons: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Words):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            raise OSError("private path")

    keep(store)
    shows = with_embedder(store, Broken())
    assert shows.load(60)
    assert not shown(shows, how)
    assert reasons()[-1].startswith("the search failed: OSError")
    assert "kept traces cannot be searched (OSError)" in caplog.text
    assert "private path" not in caplog.text


def test_a_store_that_is_gone_costs_only_the_examples(tmp_path: Path) -> None:
    broken = TraceStore(tmp_path / "broken.db")
    Path(tmp_path, "broken.db").write_bytes(b"not a database" * 1000)
    assert not shown(middleware(broken))


def test_the_end_of_the_process_waits_for_no_search(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    script = f"""
import threading
from langchain.agents import create_agent
from kp_langchain import KPCallbackHandler, KPMiddleware, KPRetriever, Scorer, TraceStore
from tests.recall.words import ASK, Words, answers, keep, passing_handler, rates
from kp_langchain.demo.scripted import ScriptedChatModel

class Hanging(Words):
    model = "hanging"
    def embed(self, texts):
        threading.Event().wait()

store = TraceStore({str(tmp_path / "kp.db")!r})
keep(store)
shows = KPMiddleware("finance", store=store, embedder=Hanging(), floor=0.5, timeout_s=0.05)
handler = passing_handler(store)
agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[shows])
agent.invoke(ASK, {{"callbacks": [handler]}})
print("ended with", store.count() if handler.flush(60) else None)
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
        assert "kp.recall desk" in caplog.text
        assert "ann@example.org" not in caplog.text
        assert ("PRJ-1" in caplog.text) is is_told
