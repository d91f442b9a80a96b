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
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler, Scorer
from tests.agents import ASK, agent, asearch, call, say, search, searching
from tests.faults.processes import append

STORE = Path("runs.db")
FINISHED = Path("finished")
IN_A_TOOL = Path("in_a_tool")
CHILDREN = 4

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


def config() -> dict[str, Any]:
    return {"callbacks": [handler()], "run_id": uuid4()}


def note(run_id: UUID) -> None:
    append(FINISHED, run_id)


def play(runs: int = 1) -> None:
    for _ in range(runs):
        options = config()
        searching().invoke(ASK, options)
        note(options["run_id"])


def play_plainly(runs: int = 1) -> None:
    """Play runs without LangGraph, whose own threads end when the main thread ends."""
    for _ in range(runs):
        options = config()
        RunnableLambda(lambda q: search.invoke({"q": q})).invoke("a", options)
        note(options["run_id"])


async def aplay() -> None:
    options = config()
    made = agent(say("I search.", call("asearch", q="a")), say("42"), tools=(asearch,))
    await made.ainvoke(ASK, options)
    note(options["run_id"])


@program("script end")
def script_end() -> None:
    play(5)


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
    agent(say("", call("wait", q="a")), say("42"), tools=(wait,)).invoke(ASK, config())


@program("until killed")
def until_killed() -> None:
    while True:
        play()


@program("SIGTERM, handler calls sys.exit")
def exits_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        play()


@program("with handler, then os._exit")
def closed() -> None:
    with handler():
        play(5)
    os._exit(0)


@program("async with handler, then os._exit")
def closed_in_a_loop() -> None:
    async def main() -> None:
        async with handler():
            await asyncio.gather(*(aplay() for _ in range(5)))

    asyncio.run(main())
    os._exit(0)


@program("asyncio.run")
def loop_end() -> None:
    async def main() -> None:
        await asyncio.gather(*(aplay() for _ in range(5)))

    asyncio.run(main())


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


def children_of(context: BaseContext) -> None:
    children = [context.Process(target=play, args=(2,)) for _ in range(CHILDREN)]  # type: ignore[attr-defined]
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


def playing_threads() -> None:
    """Leave behind threads that play on after the process's own function returned."""
    for _ in range(2):
        threading.Thread(target=play_plainly, args=(2,)).start()
    pool = ThreadPoolExecutor(2)
    for _ in range(2):
        pool.submit(play_plainly)


def children_with_threads(context: BaseContext) -> None:
    child = context.Process(target=playing_threads)  # type: ignore[attr-defined]
    child.start()
    child.join()
    assert child.exitcode == 0


def enter_multiprocessing() -> None:
    ways: dict[str, Callable[[BaseContext], None]] = {
        "Process": children_of,
        "Pool closed and joined": pool_joined,
        "with Pool()": pool_terminated,
        "ProcessPoolExecutor": executor,
        "Process, its threads play on": children_with_threads,
    }
    for method in multiprocessing.get_all_start_methods():
        for name, way in ways.items():
            program(f"{name}, {method}")(
                lambda way=way, method=method: way(multiprocessing.get_context(method))
            )


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
    options = config()
    RunnableLambda(search_and_fork).invoke("a", options)
    if children[0]:
        note(options["run_id"])
    play_plainly()
    if children[0]:
        _, status = os.waitpid(children[0], 0)
        assert os.waitstatus_to_exitcode(status) == 0


@program("joblib (loky)")
def joblib_workers() -> None:
    import joblib

    joblib.Parallel(n_jobs=2)(joblib.delayed(play)(1) for _ in range(8))


def sent_handler(watching: KPCallbackHandler) -> None:
    """Play in another process with a handler that was sent there."""
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    note(run_id)


@program("handler sent to ProcessPoolExecutor, spawn")
def sent_to_executor() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        done: list[Future[None]] = [pool.submit(sent_handler, handler()) for _ in range(4)]
        for one in done:
            one.result()


def main() -> None:
    PROGRAMS[sys.argv[1]]()


if __name__ == "__main__":
    # Under the name by which child processes import it, so that there is one handler and not two.
    from tests.faults import ending_programs

    ending_programs.main()
