"""Runs beyond `max_open_runs`: each is counted once, and the limit is named in one warning."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler
from tests.agents import ASK, ScriptedChatModel, agent, call, handler, say, searching, shape

_COUNT = 30
_LIMIT = 10


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> KPCallbackHandler:
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", str(_LIMIT))
    return handler()


def _all_at_once(make: Any, watching: KPCallbackHandler) -> dict[str, int]:
    """Run as many as `_COUNT` at once of what `make` makes; it is given a wait for all of them."""

    async def gather() -> None:
        made = make(asyncio.Barrier(_COUNT).wait)
        config: Any = {"callbacks": [watching]}
        await asyncio.gather(*[made.ainvoke(ASK, config) for _ in range(_COUNT)])

    asyncio.run(gather())
    assert watching.flush(300)
    return watching.stats()


def _agent_that_meets(wait: Any) -> Any:
    @tool
    async def meet(q: str) -> str:
        """Wait for the others."""
        await wait()
        return q

    class Deciding(ScriptedChatModel):
        def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
            answer = say("I meet.", call("meet", q="a")) if len(messages) == 1 else say("42")
            return ScriptedChatModel([answer])._generate(messages)

    return create_agent(Deciding(), [meet])


def _many_things(wait: Any) -> Any:
    """What LangChain begins without a parent, and an agent that is given the handler once more."""

    async def work(inputs: Any, config: Any) -> Any:
        await wait()
        broken = ScriptedChatModel([OSError("down")])
        await broken.with_fallbacks([ScriptedChatModel([say("42")])]).ainvoke("q")
        return await searching().ainvoke(inputs, {"callbacks": config["callbacks"].handlers})

    return RunnableLambda(work)


@pytest.mark.parametrize("make", [_agent_that_meets, _many_things])
def test_each_run_is_counted_once_and_the_limit_is_named_once(
    make: Any, watching: KPCallbackHandler, caplog: pytest.LogCaptureFixture
) -> None:
    stats = _all_at_once(make, watching)
    assert (stats["runs"], stats["scored"]) == (_COUNT, _LIMIT)
    assert (stats["abandoned"], stats["open"], stats["callback_errors"]) == (_COUNT - _LIMIT, 0, 0)
    (warning,) = caplog.messages
    assert "max_open_runs (10)" in warning


def test_however_much_an_abandoned_run_begins(watching: KPCallbackHandler) -> None:
    def begin(parent: UUID | None = None) -> UUID:
        run_id = uuid4()
        watching.on_chain_start(None, {}, run_id=run_id, parent_run_id=parent)
        return run_id

    first = begin()
    for _ in range(_LIMIT):
        begin()
    children = [begin(first) for _ in range(5000)]
    grandchildren = [begin(child) for child in children]
    for run_id in (*grandchildren, *children, first):
        begin(run_id)
        watching.on_chain_end({}, run_id=run_id)
    begin(first)
    assert watching.stats()["runs"] == _LIMIT + 1
    assert watching._recorder._open.keys() == {
        run_id for root in watching._recorder._roots for run_id in root.open_runs
    }


def test_a_run_whose_parent_was_never_seen_is_recorded(watching: KPCallbackHandler) -> None:
    """The handler is attached to an inner agent only, of runs that others have abandoned."""
    _all_at_once(_agent_that_meets, watching)
    inner = searching().with_config(callbacks=[watching])

    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["messages"][-1].text)

    agent(say("I delegate.", call("ask", q="x")), say("42"), tools=(ask,)).invoke(ASK)
    scored = watching.last(300)
    assert scored is not None
    assert shape(scored.trace) == ["thought", "call search", "saw search", "thought"]
    assert watching.stats()["runs"] == _COUNT + 1
