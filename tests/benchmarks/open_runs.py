"""What recording takes in memory for each run under way.

    PYTHONMALLOC=malloc python -m tests.benchmarks.open_runs [RUNS]

prints KB per open run, without a handler and with ours, and what ours adds. All runs wait in their
last tool call at the same time. The earlier calls of each have returned 1,000 characters.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain_core.tools import StructuredTool

from kp_langchain import KPCallbackHandler, Scorer
from tests.agents import ASK, agent, call, say
from tests.benchmarks.memory import used_bytes

_TEXT_CHARS = 1000
_EARLIER_CALLS = (0, 10, 40)


async def kb_per_run(runs: int, earlier_calls: int, callbacks: list[Any]) -> float:
    """KB in use for each of `runs` runs, while all of them are open."""
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def look(number: int) -> str:
        """Return a text; the last call of a run first waits for all runs."""
        if number == earlier_calls:
            arrived.release()
            await go.wait()
        return str(number).ljust(_TEXT_CHARS)

    tools = (StructuredTool.from_function(coroutine=look, name="look"),)
    config: Any = {"callbacks": callbacks, "recursion_limit": 1000}

    def begin() -> asyncio.Task[Any]:
        calls = [call("look", f"c{number}", number=number) for number in range(earlier_calls + 1)]
        answers = [say("I look.", one) for one in calls]
        return asyncio.create_task(agent(*answers, say("42"), tools=tools).ainvoke(ASK, config))

    before = used_bytes()
    tasks = [begin() for _ in range(runs)]
    for _ in range(runs):
        await arrived.acquire()
    used = used_bytes() - before
    go.set()
    await asyncio.gather(*tasks)
    return used / runs / 1000


def main(runs: int = 200) -> None:
    """Print a line for each number of earlier calls."""
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    for callbacks in ([], [handler]):  # imports and caches what all runs share
        asyncio.run(kb_per_run(1, 1, callbacks))
        handler.flush()
    for earlier_calls in _EARLIER_CALLS:
        without = asyncio.run(kb_per_run(runs, earlier_calls, []))
        recorded = asyncio.run(kb_per_run(runs, earlier_calls, [handler]))
        print(
            f"{earlier_calls:3} earlier calls: {without:6.1f} KB without, {recorded:6.1f} KB with, "
            f"{recorded - without:5.1f} KB more"
        )
        handler.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
