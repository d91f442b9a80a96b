"""What a signal handler raises while a callback runs reaches the host, and harms nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler
from kp_langchain._forksafe import ForkSafeLock
from tests.agents import ASK, agent, call, handler, say, searching

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1"), reason="this system has no signals for users"
)


class TimeLimit(Exception):  # noqa: N818 - as task queues name theirs
    pass


class Stop(BaseException):
    pass


ERRORS = [SystemExit, TimeLimit, TimeoutError, RuntimeError, Stop, KeyboardInterrupt]


@contextmanager
def handled(action: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def raising(error: type[BaseException], raised: list[int] | None = None) -> Callable[..., None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        if raised is not None:
            raised.append(signum)
        raise error

    return stop


class Signalling(dict[str, Any]):
    """A mapping during whose reading a signal arrives."""

    def get(self, *_: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)

    items = values = get


# ------------------------------------------------------------------ nothing from outside is kept


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["chain", "event", "asynchronous chain"])
def test_what_a_signal_handler_raises_in_a_callback_reaches_the_host(
    error: type[BaseException], kind: str
) -> None:
    watching = handler()
    config: Any = {"callbacks": [watching]}

    def ask(value: Any) -> Any:
        if kind == "event":
            dispatch_custom_event("kp.outcome", True)
            return Signalling()
        return value

    def play() -> None:
        if kind == "asynchronous chain":
            asyncio.run(RunnableLambda(ask).ainvoke(Signalling(), config))
        else:
            RunnableLambda(ask).invoke("q" if kind == "event" else Signalling(), config)

    with handled(raising(error)), pytest.raises(error):
        play()
    searching().invoke(ASK, config)
    assert watching.last(60) is not None
    assert watching.stats()["callback_errors"] == 0


class Stopper:
    def __call__(self, signum: int, frame: FrameType | None) -> None:
        raise TimeLimit

    def method(self, signum: int, frame: FrameType | None) -> None:
        raise TimeLimit


def forgetting(signum: int, frame: FrameType | None) -> None:
    while frame is not None:  # as one that prints where it came
        frame = frame.f_back
    raise TimeLimit


def anything(*_: Any) -> None:
    raise TimeLimit


def nested(signum: int, frame: FrameType | None) -> None:
    def inner() -> None:
        raise TimeLimit

    inner()


@pytest.mark.parametrize(
    "action",
    [
        Stopper(),
        Stopper().method,
        forgetting,
        anything,
        nested,
        partial(lambda why, signum, frame: anything(), "why"),
        lambda signum, frame: anything(),
    ],
    ids=["object", "method", "forgetting", "anything", "nested", "partial", "lambda"],
)
def test_every_form_of_a_signal_handler_is_known(action: Callable[..., Any]) -> None:
    with handled(action), pytest.raises(TimeLimit):
        RunnableLambda(lambda given: given).invoke(Signalling(), {"callbacks": [handler()]})


@pytest.mark.parametrize("error", [SystemExit, TimeLimit, Stop, GeneratorExit])
def test_what_a_users_object_or_function_raises_itself_is_kept_from_the_agent(
    error: type[BaseException],
) -> None:
    class Own(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise error

        items = values = get

    def objective(_: Any) -> str:
        raise error

    for watching in (handler(), handler(objective=objective)):
        RunnableLambda(lambda given: searching().invoke(ASK)).invoke(
            Own(), {"callbacks": [watching]}
        )
        assert watching.last(60) is not None
        assert watching.stats()["callback_errors"] == 0


def test_a_callback_of_a_subclass_that_raises_is_kept_from_the_agent() -> None:
    class Mine(KPCallbackHandler):
        def on_chain_start(self, *_: Any, **__: Any) -> None:
            raise TimeLimit

    class Bare(KPCallbackHandler):
        def __init__(self) -> None:
            pass

    config: Any = {"callbacks": [Mine(store=None), Bare()]}
    assert searching().invoke(ASK, config)["messages"][-1].content == "42"


# ------------------------------------------------------------------ at every point of ours


def at_point(count: int, play: Callable[[], object]) -> int:
    """Play, and send this process a signal at that point in the package; return the points passed.

    Python looks for signals where one of its functions begins and where a built-in one returned.
    """
    points = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal points
        if event not in ("call", "c_return"):
            return
        if frame.f_globals.get("__name__", "").startswith("kp_langchain"):
            points += 1
            if points == count:
                signal.raise_signal(signal.SIGUSR1)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        play()
    finally:
        sys.setprofile(before)
    return points


FATES = ("scored", "cancelled", "abandoned", "handed_over", "empty", "dropped", "failed", "open")


def by_hand(watching: KPCallbackHandler) -> None:
    run_id, tool_id = uuid4(), uuid4()
    watching.on_chain_start(None, {"messages": [("user", "q")]}, run_id=run_id)
    watching.on_tool_start({"name": "t"}, "", run_id=tool_id, parent_run_id=run_id, inputs={"a": 1})
    watching.on_tool_end({"rows": [1]}, run_id=tool_id)
    watching.on_chain_end({"output": "done"}, run_id=run_id)


@pytest.mark.parametrize("error", [SystemExit, RuntimeError])
def test_an_interruption_at_any_point_leaves_a_sound_recorder(error: type[BaseException]) -> None:
    by_hand(first := handler())  # what runs once only
    assert first.flush(60)
    points = at_point(-1, partial(by_hand, handler()))
    by_point: dict[int, dict[str, int]] = {}
    for point in range(1, points + 1):
        watching, raised = handler(), []
        with handled(raising(error, raised)):
            try:
                at_point(point, partial(by_hand, watching))
            except error:
                pass
            else:  # what a thread does meanwhile may make it a point more or less
                assert not raised, f"swallowed at point {point} of {points}"
        by_hand(watching)
        assert watching.flush(60), point
        by_point[point] = stats = watching.stats()
        assert 1 <= stats["scored"] <= 2, point
        assert stats["callback_errors"] == stats["failed"] == 0, point
        watching.close()
        assert not watching._recorder._roots, point
        assert not watching._recorder._open, point
    # Between two steps that belong together, and in no other place, a run may go uncounted.
    uncounted = [n for n, s in by_point.items() if s["runs"] != sum(s[fate] for fate in FATES)]
    assert len(uncounted) <= points // 50, uncounted


@pytest.mark.parametrize("error", [SystemExit, RuntimeError])
def test_an_interruption_of_a_real_agent_at_our_points_ends_it(error: type[BaseException]) -> None:
    watching = handler()
    config: Any = {"callbacks": [watching]}
    points = at_point(-1, lambda: searching().invoke(ASK, config))
    swallowed = []
    for point in range(1, points):
        raised: list[int] = []
        with handled(raising(error, raised)):
            try:
                at_point(point, lambda: searching().invoke(ASK, config))
            except error:
                continue
        if raised:
            swallowed.append(point)
    assert not swallowed
    searching().invoke(ASK, config)
    assert watching.flush(60)
    assert watching.stats()["callback_errors"] == watching.stats()["failed"] == 0


def test_an_interruption_leaves_no_lock_held() -> None:
    """Between taking a lock and the block, no code runs in which a signal handler could."""
    locked = 0
    for point in range(1, 20):
        lock, free = ForkSafeLock(), []

        def use(lock: ForkSafeLock = lock) -> None:
            with lock:
                pass

        with handled(raising(TimeLimit)), suppress(TimeLimit):
            at_point(point, use)
        other = threading.Thread(
            target=lambda lock=lock, free=free: free.append(lock._lock.acquire(blocking=False))
        )
        other.start()
        other.join()
        locked += not free[0]
    assert not locked


# ------------------------------------------------------------------ a tool that is interrupted


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke"])
def test_an_interrupt_inside_a_tool_cancels_the_run(error: type[BaseException], how: str) -> None:
    @tool
    def interrupted(q: str) -> str:
        """Be interrupted."""
        raise error

    made = agent(say("I try.", call("interrupted", q="a")), say("42"), tools=(interrupted,))
    watching = handler()
    config: Any = {"callbacks": [watching]}
    play: dict[str, Callable[[], object]] = {
        "invoke": lambda: made.invoke(ASK, config),
        "stream": lambda: list(made.stream(ASK, config)),
        "ainvoke": lambda: asyncio.run(made.ainvoke(ASK, config)),
    }
    with pytest.raises(error):
        play[how]()
    searching().invoke(ASK, config)
    assert watching.flush(60)
    stats = watching.stats()
    assert (stats["runs"], stats["cancelled"], stats["scored"]) == (2, 1, 1), stats
    assert stats["open"] == stats["callback_errors"] == 0
