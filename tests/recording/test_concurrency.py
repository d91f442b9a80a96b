"""Many runs and handlers at once: each run is stored, threads stay few, and lose nothing."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.recording import engine, user_calls
from kp_langchain.recording.engine import Engine
from kp_langchain.recording.store_writer import Item
from kp_langchain.recording.user_calls import Lane, Pool
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


# ------------------------------------------------------------------ the thread of an engine


def test_what_cannot_be_begun_with_stops_nothing_else() -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    one = Engine(None, 10)
    one.post(lambda: begun.set() or go.wait(60))
    assert begun.wait(60)
    one.submit(cast("Item", object()))
    one.post(done.set)  # is done in the same step
    go.set()
    assert done.wait(60)


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_comes_while_the_thread_ends_is_done_by_one_thread(
    is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may end a run at any moment, on that thread as well."""
    monkeypatch.setattr(engine, "_IDLE_S", 0.0)
    done = threading.Event()
    late, ends = [done.set], queue.SimpleQueue[bool]()

    class Incoming(queue.SimpleQueue[Any]):
        def empty(self) -> bool:
            is_empty = super().empty()
            if not late:
                return is_empty
            one.post(late.pop())
            return is_empty and not is_seen

    class Ending(Engine):
        def _may_end(self) -> bool:
            may_end = super()._may_end()
            ends.put(may_end)
            return may_end

    one = Ending(None, 10)
    one._incoming = Incoming()
    one.post(str)
    assert done.wait(60)
    assert ends.get(timeout=60)  # as another thread was started


def test_what_comes_while_the_thread_starts_starts_no_second_one() -> None:
    late, done, threads = [str], threading.Event(), list[int]()

    class Starting(Engine):
        @property
        def _run(self) -> Callable[[], None]:  # type: ignore[override]
            if late:
                self.post(late.pop())
            run = super()._run
            return lambda: threads.append(threading.get_ident()) or run()

    one = Starting(None, 10)
    post = partial(one.post, done.set)
    threading.Thread(target=post, daemon=True).start()  # because it could wait for itself
    assert done.wait(60)
    assert len(threads) == 1


# ------------------------------------------------------------------ lanes and their threads


def test_threads_of_a_pool_end_when_nothing_comes_and_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_calls, "_IDLE_S", 0.001)
    pool, threads = Pool("test pool", 1), queue.SimpleQueue[threading.Thread]()
    for _ in range(2):
        pool.start(lambda: threads.put(threading.current_thread()))
        thread = threads.get(timeout=60)
        thread.join(60)
        assert not thread.is_alive()


def test_a_lane_does_each_job_once_and_one_after_another() -> None:
    lane, done, go = Lane(Pool("test lane", 3)), list[int](), threading.Event()
    lane.submit(lambda: go.wait(60) and done.append(0))
    for number in range(1, 100):
        lane.submit(partial(done.append, number))
    go.set()
    assert lane.wait(60)
    assert done == list(range(100))
