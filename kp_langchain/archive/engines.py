"""What the blocks of an archive are mapped with: processes of this machine, or Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from kp_langchain.errors import KPError, MissingExtraError

Engine = Literal["local", "ray"]
"""`local` for processes of this machine, `ray` for Ray."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_AT_ONCE = 2  # items for each worker: one that it works on, and the next
_RETRIES = 3
_ANSWERS_WITHIN_S = 10.0


class MapBlocks(Protocol):
    """Calls a function with each item, a few items ahead of the results that are taken."""

    def __call__(
        self,
        function: Callable[[_Item], _Result],
        items: Iterable[_Item],
        *,
        in_order: bool = False,
    ) -> Iterator[_Result]:
        """Yield the results; the first error of a call ends it.

        Args:
            function: The function.
            items: What it is called with.
            in_order: Whether the results have the order of the items. Workers then wait for one
                that takes long.
        """
        ...


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def opened(name: Engine, workers: int) -> Iterator[MapBlocks]:
    """Yield what maps blocks; afterwards no process of it is left.

    Args:
        name: `local` for processes of this machine (one worker is this process), `ray` for Ray.
        workers: How many blocks are worked on at the same time.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    if name == "ray":
        with _ray(workers) as map_blocks:
            yield map_blocks
    elif workers == 1:
        yield lambda function, items, **_: map(function, items)
    else:
        with _processes(workers) as map_blocks:
            yield map_blocks


# ------------------------------------------------------------------ processes


@contextmanager
def _processes(workers: int) -> Iterator[MapBlocks]:
    others = set(multiprocessing.active_children())
    # A forked process would have this one's threads' locks, but not its threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)

    def map_blocks(
        function: Callable[[_Item], _Result], items: Iterable[_Item], *, in_order: bool = False
    ) -> Iterator[_Result]:
        rest = iter(items)
        waiting: list[Future[_Result]] = []
        try:
            while True:
                free = _AT_ONCE * workers - len(waiting)
                waiting += [pool.submit(function, item) for item in islice(rest, free)]
                if not waiting:
                    return
                awaited = waiting[:1] if in_order else waiting
                done = wait(awaited, return_when=FIRST_COMPLETED).done
                waiting = [future for future in waiting if future not in done]
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            raise KPError(
                "a worker process ended, as one does that is killed or has no memory left; the "
                "same command continues"
            ) from None

    try:
        yield map_blocks
    except BaseException:
        # What they work on is done again by the next command; to wait for it may take minutes.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave Ctrl-C to the process that started this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# ------------------------------------------------------------------ Ray


@contextmanager
def _ray(workers: int) -> Iterator[MapBlocks]:
    # Before it is imported: nothing is sent to its makers.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "ray cannot be loaded; install it: pip install 'kp-langchain[ray]'"
        ) from error

    def map_blocks(
        function: Callable[[Any], Any], items: Iterable[Any], *, in_order: bool = False
    ) -> Iterator[Any]:
        def call(item: Any) -> Any:
            return function(item)

        remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(call)
        rest = iter(items)
        waiting: list[Any] = []
        try:
            while True:
                free = workers - len(waiting)  # a larger cluster would run more at once
                waiting += [remote.remote(item) for item in islice(rest, free)]
                if not waiting:
                    return
                done, _ = ray.wait(waiting[:1] if in_order else waiting)
                waiting = [one for one in waiting if one not in done]
                yield from ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, KPError) else error) from None
        except ray.exceptions.RayError as error:
            raise KPError(
                f"a task of Ray failed {_RETRIES + 1} times ({type(error).__name__}); the same "
                "command continues"
            ) from error

    try:
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **_ray_options(workers))
        except Exception as error:
            raise KPError(f"Ray cannot be started or joined: {error}") from error
        yield map_blocks
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Check that something listens at an address, for which Ray would wait minutes.

    Raises:
        OSError: Nothing does.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname is not None and parts.port is not None:
        socket.create_connection((parts.hostname, parts.port), _ANSWERS_WITHIN_S).close()


def _ray_options(workers: int) -> dict[str, Any]:
    """Return where Ray runs: in the cluster that `RAY_ADDRESS` names, or on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    if address is not None:
        _check_answers(address)
        return {"address": address}
    # Workers do not have the search path of this process.
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {
        "address": "local",
        "num_cpus": workers,
        "include_dashboard": False,
        "runtime_env": {"env_vars": {"PYTHONPATH": path}},
    }
