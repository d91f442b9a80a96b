"""What stays in memory: after many runs, after runs that never ended, after one that was too large.

`growth`, `left_over` and `large_output` are called in fresh processes each.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import tempfile
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool

from tests.benchmarks.candidates import BASELINE, CANDIDATES
from tests.benchmarks.workload import Player, config_of, make_agent, question

RUN_TIMEOUT_S = 2.0
_AT_ONCE = 50
LARGE_BYTES = 5_000_000


def _resident_bytes() -> int | None:
    """Memory of this process; None where the system does not tell it this way."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()


def _figures() -> dict[str, int | None]:
    for _ in range(3):  # what one collection finalises, the next one frees
        gc.collect()
    return {
        "resident_bytes": _resident_bytes(),
        "traced_bytes": tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else None,
        "blocks": sys.getallocatedblocks(),
    }


def growth(handler: str, runs: int, traced: bool, server: str) -> dict[str, Any]:
    """What `runs` runs of a small agent leave behind, once as many as a fifth warmed up.

    Args:
        handler: Its name, or "none".
        runs: How many; of one tool call each.
        traced: Whether Python counts every byte, which makes it three times as slow; else the
            operating system says how large the process is, and Python how many blocks it uses.
        server: Address of the server that swallows everything.
    """
    logging.disable(logging.CRITICAL)
    candidate = BASELINE if handler == "none" else CANDIDATES[handler]
    player = Player(make_agent(turns=1))
    if traced:
        tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        attached = candidate.attach(Path(folder), server)
        config = config_of(attached.callbacks)
        attached.switch_on()

        def play(count: int) -> dict[str, int | None]:
            for number in range(count):
                player.invoke(config)
                if number % _AT_ONCE == 0:
                    attached.settle()
            attached.settle()
            return _figures()

        before = play(runs // 5)
        after = play(runs)
        attached.switch_off()
        account = dict(attached.account())
    return {"runs": runs, "before": before, "after": after, "account": account}


# ---------------------------------------------------------------- runs that never ended


def _is_alive(references: list[weakref.ref[HumanMessage]]) -> int:
    return sum(reference() is not None for reference in references)


def left_over(way: str, runs: int, handler: str) -> dict[str, Any]:
    """What is left of `runs` runs that were cancelled, or whose stream was closed half-way.

    Args:
        way: `cancelled`, `closed` (a stream), `aclosed` (an async one) or `dropped` (a stream that
            was never closed, only forgotten).
        runs: How many.
        handler: Its name, or "none".

    Returns:
        Traced bytes, messages of the agent that are still alive, and the handler's counts: before,
        right after, and when the time of open runs is over (`RUN_TIMEOUT_S`).
    """
    logging.disable(logging.CRITICAL)
    candidate = BASELINE if handler == "none" else CANDIDATES[handler]
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        attached = candidate.attach(Path(folder), "")
        config = config_of(attached.callbacks)
        give_up = _WAYS[way]
        give_up(max(10, runs // 10), config)
        time.sleep(1.1 * RUN_TIMEOUT_S)
        attached.settle()
        before = _figures()
        references = give_up(runs, config)
        right_after = _state(attached, references)
        time.sleep(1.1 * RUN_TIMEOUT_S)
        return {
            "runs": runs,
            "before": before,
            "right_after": right_after,
            "when_over": _state(attached, references),
        }


def _state(attached: Any, references: list[weakref.ref[HumanMessage]]) -> dict[str, Any]:
    attached.settle()
    return {**_figures(), "alive": _is_alive(references), "account": dict(attached.account())}


def _asked(references: list[weakref.ref[HumanMessage]]) -> dict[str, Any]:
    message = HumanMessage(question()["messages"][0][1])
    references.append(weakref.ref(message))
    return {"messages": [message]}


def _cancelled(runs: int, config: Any) -> list[weakref.ref[HumanMessage]]:
    references: list[weakref.ref[HumanMessage]] = []

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


def _streams(runs: int, config: Any) -> Iterator[tuple[Any, list[weakref.ref[HumanMessage]]]]:
    references: list[weakref.ref[HumanMessage]] = []
    agent = make_agent()
    for _ in range(runs):
        yield agent.stream(_asked(references), config, stream_mode="messages"), references


def _closed(runs: int, config: Any) -> list[weakref.ref[HumanMessage]]:
    references: list[weakref.ref[HumanMessage]] = []
    for stream, references in _streams(runs, config):
        next(stream)
        stream.close()
    return references


def _dropped(runs: int, config: Any) -> list[weakref.ref[HumanMessage]]:
    references: list[weakref.ref[HumanMessage]] = []
    for stream, references in _streams(runs, config):
        next(stream)
    return references


def _aclosed(runs: int, config: Any) -> list[weakref.ref[HumanMessage]]:
    references: list[weakref.ref[HumanMessage]] = []

    async def all_of_them() -> None:
        agent = make_agent()
        for _ in range(runs):
            stream = agent.astream(_asked(references), config, stream_mode="messages")
            await anext(stream)
            await stream.aclose()

    asyncio.run(all_of_them())
    return references


_WAYS: dict[str, Callable[[int, Any], list[weakref.ref[HumanMessage]]]] = {
    "cancelled": _cancelled,
    "closed": _closed,
    "aclosed": _aclosed,
    "dropped": _dropped,
}


# ---------------------------------------------------------------- a tool output that is too large


def large_output() -> list[dict[str, Any]]:
    """What our recorder holds of a 5 MB tool output, in the forms in which tools give them."""
    logging.disable(logging.CRITICAL)
    from kp_langchain import KPCallbackHandler, Scorer, Settings

    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    settings = Settings()
    text = "a line of the ledger, " * (LARGE_BYTES // 22)
    blocks = [
        {"type": "text", "text": text[start : start + 1000]}
        for start in range(0, LARGE_BYTES, 1000)
    ]
    lines = [{"line": number, "text": text[:470]} for number in range(LARGE_BYTES // 500)]
    outputs: dict[str, Any] = {
        "text": text,
        "message": ToolMessage(text, tool_call_id="c"),
        "message of blocks": ToolMessage(blocks, tool_call_id="c"),
        "message with artifact": ToolMessage("seen", tool_call_id="c", artifact=lines),
        "list of mappings": lines,
        "bytes": text.encode(),
    }
    found = []
    for form, output in outputs.items():
        with _run_with_a_tool(handler) as tool:
            tracemalloc.start()
            began_s = time.perf_counter()
            handler.on_tool_end(output, run_id=tool)
            took_s = time.perf_counter() - began_s
            peak = tracemalloc.get_traced_memory()[1]
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
        found.append(
            {
                "form": form,
                "held_bytes": held,
                "peak_bytes": peak,
                "bound_chars": settings.max_text_chars,
                "event_ms": took_s * 1000,
            }
        )
    handler.close()
    return found


@contextmanager
def _run_with_a_tool(handler: Any) -> Iterator[Any]:
    root, tool = uuid4(), uuid4()
    handler.on_chain_start(None, {"messages": [HumanMessage("Why?")]}, run_id=root, name="agent")
    handler.on_tool_start(
        {"name": "search"}, "", inputs={"q": "a"}, run_id=tool, parent_run_id=root
    )
    yield tool
    handler.on_chain_end({"messages": []}, run_id=root)
    handler.flush()
