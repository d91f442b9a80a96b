"""Hooks for the ends of a process that `atexit` does not see.

Child processes of `multiprocessing` and of Celery end by `os._exit`, after calling hooks of their
own. Of what ends a process without any (a signal's default action, `os._exit` itself) nothing can
be heard; a signal handler is the host's to install.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

_IMPORTED_IN = os.getpid()
_watched = 0  # the process whose ends are watched
# After the finalizers of everybody else, which may still hand results to the parent.
_LAST = -1000


def watch(finish: Callable[[], None]) -> None:
    """Have `finish` called at such an end of this process.

    To be called whenever a process begins to have something to finish: a forked child begins
    without its parent's hooks. Nothing is imported: what can end this process so is loaded.

    Args:
        finish: May be called more than once; must not raise.
    """
    global _watched
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    for hook in (_watch_multiprocessing, _watch_celery):
        with suppress(Exception):  # a release that has these names no more
            hook(finish)


def _watch_multiprocessing(finish: Callable[[], None]) -> None:
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    if process.parent_process() is None and os.getpid() == _IMPORTED_IN:
        return  # `atexit` is enough
    if util.is_exiting():  # the first run ended in a thread that the process still waits for
        _wait_for_threads(finish)
    else:
        util.Finalize(None, _finish, (finish,), exitpriority=_LAST)


def _watch_celery(finish: Callable[[], None]) -> None:
    signals = sys.modules.get("celery.signals")
    if signals is not None:
        signals.worker_process_shutdown.connect(
            lambda **_: finish(), weak=False, dispatch_uid="kp_langchain"
        )


def _finish(finish: Callable[[], None]) -> None:
    """Finish now, and again after the threads that a child process waits for thereafter."""
    if _threads_waited_for():  # asked first: they may end while the rest is finished
        _wait_for_threads(finish)
    finish()


def _wait_for_threads(finish: Callable[[], None]) -> None:
    def wait() -> None:
        while threads := _threads_waited_for():
            for thread in threads:
                thread.join()
        finish()

    # Not a daemon: the process waits for this thread, too.
    threading.Thread(target=wait, name="kp_end", daemon=False).start()


def _threads_waited_for() -> list[threading.Thread]:
    mine = (threading.main_thread(), threading.current_thread())
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in mine]
