"""What is done when a process ends: all work is finished, also where it ends without `atexit`.

Child processes of `multiprocessing` and of Celery end by `os._exit`, after calling hooks of their
own. Nothing runs if a process ends without any hook: by a signal's default action, or by
`os._exit` itself. Installing a signal handler is up to the host.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from contextlib import suppress
from typing import Any

from kp_langchain.embedding.local_models import limit_waiting
from kp_langchain.recording.bounds import total
from kp_langchain.store.jobs import drain_all

log = logging.getLogger("kp_langchain")

exit_timeout_s = 10.0
"""Longest wait for unfinished work at exit, in seconds."""

engines: weakref.WeakSet[Any] = weakref.WeakSet()
"""The engines of this process."""

_IMPORTED_IN = os.getpid()
_watched_pid = 0  # the process that has the hooks
# After all other finalizers, which may still send results to the parent.
_LAST = -1000


def finish() -> None:
    """Finish all work before this process ends: judge, store, send.

    It may be called more than once and from any thread, and never raises.
    """
    until = time.monotonic() + exit_timeout_s
    limit_waiting(exit_timeout_s)
    for engine in list(engines):
        with suppress(Exception):
            engine.finish(until)
    with suppress(Exception):  # the host's handlers and filters may raise
        _warn_of_unfinished()
    with suppress(Exception):
        drain_all(max(0.0, until - time.monotonic()))


def _warn_of_unfinished() -> None:
    if n_unscored := total("queued"):
        log.warning(
            "%d finished runs were not scored within %.0f s of exit; those that are in a store are "
            "scored by the next process that records into it. Call handler.flush() before the "
            "program ends, or raise exit_timeout_s",
            n_unscored,
            exit_timeout_s,
        )
    if verdicts := total("queued_verdicts"):
        log.warning(
            "%d verdicts were not written within %.0f s of exit and are lost; report them again",
            verdicts,
            exit_timeout_s,
        )


atexit.register(finish)


def watch() -> None:
    """Call `finish` when this process ends without running `atexit`.

    Call this whenever a process gets its first work to finish: a forked child has none of its
    parent's hooks. It imports nothing: a library that ends processes so is already loaded.
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
