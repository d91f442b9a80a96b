"""Programs that play agent runs and end, each in its way: `python -m tests.faults.ending_programs`.

Each works in the current folder: the store is `runs.db`, and the id of each run whose `invoke`
returned is appended to the file `finished` before the program goes on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler, Scorer
from tests.agents import ASK, agent, asearch, call, say, search, searching
from tests.faults.processes import append

STORE = Path("runs.db")
FINISHED = Path("finished")
IN_A_TOOL = Path("in_a_tool")
PROGRAMS: dict[str, Callable[[], object]] = {}


def program(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def enter(function: Callable[[], object]) -> Callable[[], object]:
        PROGRAMS[name] = function
        return function

    return enter


@cache
def handler() -> KPCallbackHandler:
    # Without the model, a life of a second would mostly be spent loading it.
    embedder = "auto" if os.environ.get("ENDINGS_EMBEDDER") else None
    return KPCallbackHandler("finance", store=STORE, scorer=Scorer(embedder=embedder))


def play_one(runnable: Any, inputs: Any, watching: KPCallbackHandler | None = None) -> None:
    run_id = uuid4()
    runnable.invoke(inputs, {"callbacks": [watching or handler()], "run_id": run_id})
    append(FINISHED, run_id)


def play(runs: int = 1) -> None:
    for _ in range(runs):
        play_one(searching(), ASK)


def play_plainly(runs: int = 1) -> None:
    """Play runs without LangGraph, whose own threads end when the main thread ends."""
    for _ in range(runs):
        play_one(RunnableLambda(lambda q: search.invoke({"q": q})), "a")


async def aplay() -> None:
    run_id = uuid4()
    made = agent(say("I search.", call("asearch", q="a")), say("42"), tools=(asearch,))
    await made.ainvoke(ASK, {"callbacks": [handler()], "run_id": run_id})
    append(FINISHED, run_id)


async def aplay_five() -> None:
    await asyncio.gather(*(aplay() for _ in range(5)))


def play_for_ever() -> None:
    while True:
        play()


# ---------------------------------------------------------------- one process


@program("exception")
def exception() -> None:
    play(5)
    raise RuntimeError("not handled")


@program("sys.exit")
def system_exit() -> None:
    play(5)
    sys.exit(3)


@program("os._exit")
def os_exit() -> None:
    play(5)
    handler().flush()
    play(5)
    os._exit(0)


@program("os._exit before the store was opened")
def os_exit_at_once() -> None:
    play(5)
    os._exit(0)


@program("Ctrl-C in a tool")
def interrupted_tool() -> None:
    @tool
    def wait(q: str) -> str:
        """Wait in a thread, as LangGraph has tools do; the interrupt waits for it, too."""
        IN_A_TOOL.touch()
        while IN_A_TOOL.exists():
            time.sleep(0.01)
        return q

    play(5)
    waiting = agent(say("", call("wait", q="a")), say("42"), tools=(wait,))
    waiting.invoke(ASK, {"callbacks": [handler()]})


@program("SIGTERM, handler calls sys.exit")
def exits_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    play_for_ever()


@program("with handler, then os._exit")
def closed() -> None:
    with handler():
        play(5)
    os._exit(0)


@program("async with handler, then os._exit")
def closed_in_a_loop() -> None:
    async def main() -> None:
        async with handler():
            await aplay_five()

    asyncio.run(main())
    os._exit(0)


@program("asyncio.run, tasks cancelled")
def loop_end_with_tasks() -> None:
    async def endless() -> None:
        while True:
            await aplay()

    async def main() -> None:
        tasks = [asyncio.create_task(endless()) for _ in range(3)]
        while not FINISHED.exists() or FINISHED.stat().st_size < 37 * 5:
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    asyncio.run(main())


@program("ThreadPoolExecutor, not waited for")
def thread_pool() -> None:
    pool = ThreadPoolExecutor(3)
    for _ in range(6):
        pool.submit(play_plainly)


@program("threads, not waited for")
def threads() -> None:
    for _ in range(3):
        threading.Thread(target=play_plainly, args=(2,)).start()


PROGRAMS["script end"] = partial(play, 5)
PROGRAMS["asyncio.run"] = lambda: asyncio.run(aplay_five())
PROGRAMS["until killed"] = play_for_ever

# ---------------------------------------------------------------- several processes


def run_children(context: BaseContext, target: Callable[..., None], count: int, *args: int) -> None:
    children = [context.Process(target=target, args=args) for _ in range(count)]  # type: ignore[attr-defined]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0


def pool_joined(context: BaseContext) -> None:
    pool = context.Pool(2)
    pool.map(play, [1] * 8)
    pool.close()
    pool.join()


def pool_terminated(context: BaseContext) -> None:
    with context.Pool(2) as pool:
        pool.map(play, [1] * 8)


def executor(context: BaseContext) -> None:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(play, [1] * 8))


def enter_multiprocessing() -> None:
    ways: dict[str, Callable[[BaseContext], None]] = {
        "Process": lambda context: run_children(context, play, 4, 2),
        "Pool closed and joined": pool_joined,
        "with Pool()": pool_terminated,
        "ProcessPoolExecutor": executor,
    }
    for method in multiprocessing.get_all_start_methods():
        for name, way in ways.items():
            PROGRAMS[f"{name}, {method}"] = partial(way, multiprocessing.get_context(method))


enter_multiprocessing()


@program("os.fork, child ends by os._exit")
def forked_os_exit() -> None:
    child = os.fork()
    play(2)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@program("os.fork, child ends by sys.exit")
def forked_system_exit() -> None:
    play()
    child = os.fork()
    play(2)
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)


@program("fork in mid-run, both sides go on")
def forked_in_a_run() -> None:
    """The run is the parent's; what the child plays besides is the child's."""
    children: list[int] = []

    def search_and_fork(q: str) -> str:
        search.invoke({"q": q})
        children.append(os.fork())
        return str(search.invoke({"q": q}))

    play_plainly()
    run_id = uuid4()
    RunnableLambda(search_and_fork).invoke("a", {"callbacks": [handler()], "run_id": run_id})
    if children[0]:
        append(FINISHED, run_id)
    play_plainly()
    if children[0]:
        _, status = os.waitpid(children[0], 0)
        assert os.waitstatus_to_exitcode(status) == 0


@program("joblib (loky)")
def joblib_workers() -> None:
    import joblib

    joblib.Parallel(n_jobs=2)(joblib.delayed(play)(1) for _ in range(8))


def play_with(watching: KPCallbackHandler) -> None:
    """Play in another process with a handler that was sent there."""
    play_one(searching(), ASK, watching)


@program("handler sent to ProcessPoolExecutor, spawn")
def sent_to_executor() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(play_with, [handler()] * 4))


def main() -> None:
    PROGRAMS[sys.argv[1]]()


if __name__ == "__main__":
    # Under the name by which child processes import it, so that there is one handler and not two.
    from tests.faults import ending_programs

    ending_programs.main()
