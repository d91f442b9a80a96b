"""What stays in memory after many runs, and after runs that never came to their end.

`growth` and `left_over` are called in fresh processes, which take every byte from the system's
allocator (`PYTHONMALLOC=malloc`), so that it can tell how much is in use, by Python and by C alike.
Where it cannot, the size of the process stands in, which is coarser by some hundred KB.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool

from tests.benchmarks.attached import Attached
from tests.benchmarks.candidates import attached
from tests.benchmarks.workload import Player, config_of, make_agent, question

_AT_ONCE = 50
_STRETCHES = 10

References = list[weakref.ref[HumanMessage]]


class _Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns, over all threads' arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def used_bytes() -> int:
    """Bytes that this process has in use, after garbage collection."""
    for _ in range(3):  # what one collection finalises, the next one frees
        gc.collect()
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return resident_bytes()
    tell.restype = _Allocated
    told = tell()
    return int(told.uordblks + told.hblkhd)


def resident_bytes() -> int:
    """Size of this process in memory; where the system does not tell, the largest that it had."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource.getpagesize()


def growth(handler: str, runs: int) -> dict[str, Any]:
    """What `runs` runs leave behind, of one tool call each, once half as many have warmed up.

    Returns:
        Bytes in use, and of the process, after each tenth of the runs, beginning with none of
        them; and the KB in use that a run adds.
    """
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns=1))
    gc.freeze()  # what is there before the first run need not be looked through each time
    with attached(handler) as handled:
        config = config_of(handled.callbacks)
        handled.switch_on()

        def play(count: int) -> None:
            for number in range(count):
                player.invoke(config)
                if number % _AT_ONCE == 0:
                    handled.settle()
            handled.settle()

        play(runs // 2)
        used, resident = [used_bytes()], [resident_bytes()]
        for _ in range(_STRETCHES):
            play(runs // _STRETCHES)
            used.append(used_bytes())
            resident.append(resident_bytes())
        handled.switch_off()
    player.close()
    return {
        "runs": runs,
        "used_bytes": used,
        "resident_bytes": resident,
        "kb_per_run": round((used[-1] - used[0]) / runs / 1000, 4),
    }


def left_over(handler: str, runs: int, run_timeout_s: float) -> dict[str, Any]:
    """What is left of runs that were cancelled, or whose stream was not read to its end.

    Args:
        handler: Its name.
        runs: How many, in each way.
        run_timeout_s: When the time of open runs is over, as the settings say.

    Returns:
        By way (`cancelled`, `closed`, `aclosed`, and `dropped`: a stream that is only forgotten):
        KB that each run still holds, and how many runs have a message of theirs alive, right after
        and when their time is over. What none of them holds shows with the handler `none`: a tenth
        of a KB are the weak references that we count with.
    """
    logging.disable(logging.CRITICAL)
    found = {}
    gc.freeze()
    with attached(handler) as handled:
        config = config_of(handled.callbacks)
        for give_up in _WAYS.values():
            give_up(max(2, runs // 2), config)
        _let_time_pass(handled, run_timeout_s)
        for name, give_up in _WAYS.items():
            before = used_bytes()
            references = give_up(runs, config)
            handled.settle()
            right_after = _held(before, references)
            _let_time_pass(handled, run_timeout_s)
            found[name] = {
                "runs": runs,
                "right_after": right_after,
                "when_over": _held(before, references),
            }
    return found


def _let_time_pass(handler: Attached, run_timeout_s: float) -> None:
    time.sleep(1.1 * run_timeout_s)
    handler.settle()


def _held(before_bytes: int, references: References) -> dict[str, float]:
    grown_bytes = used_bytes() - before_bytes
    return {
        "kb_per_run": round(grown_bytes / len(references) / 1000, 4),
        "alive": sum(reference() is not None for reference in references),
    }


def _asked(references: References) -> dict[str, Any]:
    message = HumanMessage(question()["messages"][0][1])
    references.append(weakref.ref(message))
    return {"messages": [message]}


def _cancelled(runs: int, config: Any) -> References:
    references: References = []

    async def all_of_them() -> None:
        begun = asyncio.Semaphore(0)

        async def never(query: str, limit: int) -> str:
            """Search for ever."""
            begun.release()
            await asyncio.Event().wait()
            return ""

        agent = make_agent(tools=[StructuredTool.from_function(coroutine=never, name="search")])
        for start in range(0, runs, _AT_ONCE):
            tasks = [
                asyncio.create_task(agent.ainvoke(_asked(references), config))
                for _ in range(min(_AT_ONCE, runs - start))
            ]
            for _ in tasks:
                await begun.acquire()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())
    return references


def _begun_streams(runs: int, config: Any, references: References) -> Iterator[Any]:
    agent = make_agent()
    for _ in range(runs):
        stream = agent.stream(_asked(references), config, stream_mode="messages")
        next(stream)
        yield stream


def _closed(runs: int, config: Any) -> References:
    references: References = []
    for stream in _begun_streams(runs, config, references):
        stream.close()
    return references


def _dropped(runs: int, config: Any) -> References:
    references: References = []
    for _ in _begun_streams(runs, config, references):
        pass
    return references


def _aclosed(runs: int, config: Any) -> References:
    references: References = []

    async def all_of_them() -> None:
        agent = make_agent()
        for _ in range(runs):
            stream = agent.astream(_asked(references), config, stream_mode="messages")
            await anext(stream)
            await stream.aclose()

    asyncio.run(all_of_them())
    return references


_WAYS: dict[str, Callable[[int, Any], References]] = {
    "cancelled": _cancelled,
    "closed": _closed,
    "aclosed": _aclosed,
    "dropped": _dropped,
}
