"""Many runs and many handlers at once: each run is stored, and threads stay few."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import DomainPolicy, TraceStore
from tests.agents import handler
from tests.recording.playing import Events

ALL = DomainPolicy(threshold=0.0, twin_similarity=1.0)
MOST_THREADS = 8


@pytest.mark.parametrize(
    "n_runs", [300, pytest.param(10_000, marks=pytest.mark.slow)]
)  # about 10 ms each
def test_runs_that_are_open_at_once_on_one_event_loop_are_all_stored(
    n_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", str(n_runs))
    monkeypatch.setenv("KP_MAX_QUEUE", str(n_runs))

    @tool
    async def look(number: int) -> str:
        """Look a number up, once all runs have begun."""
        n_begun.append(number)
        if len(n_begun) == n_runs:
            all_begun.set()
        await all_begun.wait()
        return f"seen {number}"

    async def work(number: int) -> str:
        return await look.ainvoke({"number": number})

    async def main() -> list[str]:
        agent = RunnableLambda(work)
        config: Any = {"callbacks": [watching]}
        return await asyncio.gather(*(agent.ainvoke(at, config) for at in range(n_runs)))

    n_begun: list[int] = []
    all_begun = asyncio.Event()
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=ALL)
        assert len(asyncio.run(main())) == n_runs
        assert watching.flush(3600)
        stats = watching.stats()
        assert (stats["runs"], stats["scored"], store.count()) == (n_runs,) * 3


@pytest.mark.parametrize("has_functions", [False, True])
def test_a_thousand_handlers_have_few_threads(has_functions: bool) -> None:
    before, most = set(threading.enumerate()), 0
    with TraceStore("runs.db") as store:
        handlers = [
            handler(store=store, policy=ALL, **(_functions(at) if has_functions else {}))
            for at in range(1000)
        ]
        for watching in handlers:
            events = Events(watching)
            events.tool()
            watching.on_chain_end("done", run_id=events.root)
            most = max(most, len(set(threading.enumerate()) - before))
        for watching in handlers:
            assert watching.flush(300)
        assert store.count() == len(handlers)
    assert most <= MOST_THREADS


def _functions(number: int) -> dict[str, Any]:
    """Return functions that are other ones for each handler."""
    names: dict[str, Any] = {}
    exec(f"def outcome(run):\n    return {number / 1000}\n", names)  # noqa: S102 - ours
    return {"outcome": names["outcome"]}
