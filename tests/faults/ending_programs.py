"""Programs that play agent runs and end, each in its way, for `tests.faults.endings`.

`python -m tests.faults.ending_programs NAME` is one of them; web services and a task queue follow,
which play a run a request. Each works in the current folder: the store is `runs.db`, and the id of
each run whose `invoke` returned is appended to the file `finished` before the program goes on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
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
    # Without the model, which would take most of the life of a second to load.
    return KPCallbackHandler("finance", store=STORE, scorer=Scorer(embedder=None))


def play_one(runnable: Any, inputs: Any) -> None:
    run_id = uuid4()
    runnable.invoke(inputs, {"callbacks": [handler()], "run_id": run_id})
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


# ---------------------------------------------------------------- one process


@program("exception")
def exception() -> None:
    play(5)
    raise RuntimeError("not handled")


@program("sys.exit")
def system_exit() -> None:
    play(5)
    sys.exit(3)


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


@program("threads, not waited for")
def threads() -> None:
    for _ in range(3):
        threading.Thread(target=play_plainly, args=(2,)).start()


PROGRAMS["script end"] = partial(play, 5)
PROGRAMS["asyncio.run"] = lambda: asyncio.run(aplay_five())

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


def executor(context: BaseContext) -> None:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(play, [1] * 8))


def enter_multiprocessing() -> None:
    ways: dict[str, Callable[[BaseContext], None]] = {
        "Process": lambda context: run_children(context, play, 4, 2),
        "Pool closed and joined": pool_joined,
        "ProcessPoolExecutor": executor,
    }
    for method in multiprocessing.get_all_start_methods():
        for name, way in ways.items():
            PROGRAMS[f"{name}, {method}"] = partial(way, multiprocessing.get_context(method))


enter_multiprocessing()


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


# ---------------------------------------------------------------- services and queues


def asgi() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def ask(_: Request) -> PlainTextResponse:
        await aplay()
        return PlainTextResponse("42")

    def ask_in_a_thread(_: Request) -> PlainTextResponse:
        play()
        return PlainTextResponse("42")

    routes = [Route("/", ask), Route("/thread", ask_in_a_thread)]
    return Starlette(routes=routes, lifespan=handler().lifespan)


def wsgi(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    play()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"42"]


def make_celery_app(folder: Path) -> Any:
    """Return an application whose queue is in a folder."""
    from celery import Celery

    app = Celery("endings", broker="filesystem://")
    app.conf.broker_transport_options = {
        "data_folder_in": str(folder / "queue"),
        "data_folder_out": str(folder / "queue"),
        "processed_folder": str(folder / "queue"),
        "control_folder": str(folder / "control"),
        "store_processed": False,
    }
    app.conf.worker_hijack_root_logger = False
    app.task(name="play")(play)
    return app


def __getattr__(name: str) -> Any:
    """Make `celery_app` when Celery asks for it: other programs do not need Celery."""
    if name == "celery_app":
        return make_celery_app(Path())
    raise AttributeError(name)


def main() -> None:
    PROGRAMS[sys.argv[1]]()


if __name__ == "__main__":
    # Under the name by which child processes import it, so that there is one handler and not two.
    from tests.faults import ending_programs

    ending_programs.main()
