"""What a handler costs the agent: CPU and time of runs, memory, and the import of the handler.

Each function is called in a process of its own that knows no other handler.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from langchain_core.tools import StructuredTool

from kp_langchain import KPCallbackHandler, Scorer
from tests.agents import ASK, agent, call, say
from tests.benchmarks.handlers import Attached, attached
from tests.benchmarks.harness import Quartiles, environment, quartiles, used_bytes
from tests.benchmarks.workload import CASES, Player, Texts, config_of, events_of, make_agent

_SETTLED_EVERY = 50
_OPEN_TEXT_CHARS = 1000
_IMPORT = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


class _Sample(NamedTuple):
    """Seconds that one call took.

    Attributes:
        cpu_s: CPU of the whole process, from the start until the handler has settled.
        wall_s: Until the agent returns.
    """

    cpu_s: float
    wall_s: float


def overhead(
    handler: str, cases: Sequence[str], turns: int, seconds: float, fewest: int, texts: bool = False
) -> dict[str, Any]:
    """Compare runs with a handler to runs without, in turn, as ratios of the two calls of a pair.

    Garbage is collected before each call, and what was there before the first pair is out of the
    collector's sight, as it is in a server that calls `gc.freeze`.

    Args:
        handler: The candidate.
        cases: Ways to run the agent.
        turns: Tool calls of a run.
        seconds: How long pairs are taken in each case.
        fewest: How many pairs at least.
        texts: Whether the model and the tool say as much as real ones.
    """
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns, Texts(seed=1) if texts else None))
    result: dict[str, Any] = {}
    with attached("none") as nothing, attached(handler) as candidate:
        for name in cases:
            case = CASES[name]

            def take(handler: Attached, play: Callable[[Player, Any], None] = case.play) -> _Sample:
                return _take(lambda: play(player, config_of(handler.callbacks)), handler)

            for _ in range(min(2, fewest - 1)):  # imports, caches, connections, threads
                take(nothing)
                take(candidate)
            gc.collect()
            gc.freeze()
            pairs: list[tuple[_Sample, _Sample]] = []
            until_s = time.monotonic() + seconds
            while len(pairs) < fewest or time.monotonic() < until_s:
                if len(pairs) % 2:  # every other pair the other way round
                    with_it = take(candidate)
                    pairs.append((take(nothing), with_it))
                else:
                    pairs.append((take(nothing), take(candidate)))
            result[name] = _summary(pairs, events_of(player, case), case.runs)
    player.close()
    return result


def _take(play: Callable[[], None], handler: Attached) -> _Sample:
    gc.collect()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    play()
    wall_s = time.perf_counter() - wall_s
    handler.settle()
    cpu_s = time.process_time() - cpu_s
    return _Sample(cpu_s, wall_s)


def _summary(pairs: Sequence[tuple[_Sample, _Sample]], events: int, runs: int) -> dict[str, Any]:
    added_s = [with_it.cpu_s - without.cpu_s for without, with_it in pairs]
    return {
        "events": events // runs,
        "cpu_ratio": quartiles([one.cpu_s / other.cpu_s for other, one in pairs]),
        "wall_ratio": quartiles([one.wall_s / other.wall_s for other, one in pairs]),
        "added_us_per_event": quartiles([1e6 * one / events for one in added_s]),
        "added_ms_per_run": quartiles([1e3 * one / runs for one in added_s]),
        "without_ms_per_run": quartiles([1e3 * without.cpu_s / runs for without, _ in pairs]),
    }


def growth(handler: str, runs: int) -> float:
    """Return the KB in use that stay of each run, of one tool call each, after a warm-up."""
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns=1))
    gc.freeze()  # what is there before the first run need not be looked through each time
    with attached(handler) as candidate:
        config = config_of(candidate.callbacks)

        def play(count: int) -> int:
            for number in range(count):
                player.invoke(config)
                if number % _SETTLED_EVERY == 0:
                    candidate.settle()
            candidate.settle()
            return used_bytes()

        before = play(runs // 2)
        grown = play(runs) - before
    player.close()
    return grown / runs / 1000


def open_runs(runs: int, earlier_calls: Sequence[int]) -> dict[str, list[float]]:
    """Return the KB that a run under way takes without a handler, and what recording adds.

    All runs wait in their last tool call at the same time. The earlier calls of each have returned
    1,000 characters.
    """
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    for callbacks in ([], [handler]):  # imports and caches what all runs share
        asyncio.run(_kb_per_open_run(1, 1, callbacks))
    found = {}
    for number in earlier_calls:
        handler.flush()
        without = asyncio.run(_kb_per_open_run(runs, number, []))
        found[str(number)] = [
            without,
            asyncio.run(_kb_per_open_run(runs, number, [handler])) - without,
        ]
    handler.close()
    return found


async def _kb_per_open_run(runs: int, earlier_calls: int, callbacks: list[Any]) -> float:
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def look(number: int) -> str:
        """Return a text; the last call of a run first waits for all runs."""
        if number == earlier_calls:
            arrived.release()
            await go.wait()
        return str(number).ljust(_OPEN_TEXT_CHARS)

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


def imports(statements: Mapping[str, str], rounds: int) -> dict[str, Quartiles]:
    """Return the CPU milliseconds of each statement in fresh interpreters, all in turn."""
    taken: dict[str, list[float]] = {name: [] for name in statements}
    with TemporaryDirectory() as folder:
        for _ in range(1 + rounds):  # the first round is not counted
            for name, statement in statements.items():
                done = subprocess.run(
                    [sys.executable, "-c", _IMPORT.format(statement)],
                    cwd=folder,
                    env=environment(Path(folder)),
                    capture_output=True,
                    text=True,
                    check=True,
                )
                taken[name].append(float(done.stdout.split()[-1]) * 1000)
    return {name: quartiles(times[1:]) for name, times in taken.items()}
