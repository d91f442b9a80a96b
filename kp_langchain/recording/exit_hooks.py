"""Hooks for processes that end without running `atexit`.

Child processes of `multiprocessing` and of Celery end by `os._exit`, after calling hooks of their
own. Nothing runs if a process ends without any hook: by a signal's default action, or by
`os._exit` itself. Installing a signal handler is up to the host.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

exit_timeout_s = 10.0
"""Longest wait for unfinished work at exit, in seconds."""

at_finish: dict[str, Callable[[float], None]] = {}
"""What is done when the process ends, by its name in `_ORDER`; called with the seconds left."""

_ORDER = ("models", "runs", "jobs")

_IMPORTED_IN = os.getpid()
_watched_pid = 0  # the process that has the hooks
# After all other finalizers, which may still send results to the parent.
_LAST = -1000


def finish() -> None:
    """Finish all work before this process ends: judge, store, send.

    It may be called more than once and from any thread, and never raises.
    """
    until = time.monotonic() + exit_timeout_s
    for name in _ORDER:
        if name in at_finish:
            with suppress(Exception):
                at_finish[name](max(0.0, until - time.monotonic()))


atexit.register(finish)


def watch() -> None:
    """Call `finish` when this process ends without running `atexit`.

    Call this whenever a process begins to have something to finish, because a forked child begins
    without its parent's hooks. It imports nothing: what can end this process so is already loaded.
    """
    global _watched_pid
    if _watched_pid == os.getpid():
        return
    _watched_pid = os.getpid()
    for hook in (_watch_multiprocessing, _watch_celery):
        with suppress(Exception):  # another release may not have these names
            hook()


def _watch_multiprocessing() -> None:
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    if process.parent_process() is None and os.getpid() == _IMPORTED_IN:
        return  # `atexit` is enough
    util.Finalize(None, finish, exitpriority=_LAST)


def _watch_celery() -> None:
    signals = sys.modules.get("celery.signals")
    if signals is not None:
        signals.worker_process_shutdown.connect(
            lambda **_: finish(), weak=False, dispatch_uid="kp_langchain"
        )
