"""Log lines that a process writes at most once."""

from __future__ import annotations

import logging

from kp_langchain._forksafe import ForkSafeLock

_LOGGER = logging.getLogger("kp_langchain")
_KINDS_MAX = 100
_seen: set[str] = set()
_lock = ForkSafeLock()


def warn_once(kind: str, message: str, *args: object) -> None:
    """Log a warning on the logger `kp_langchain`, unless this process has logged this kind.

    Args:
        kind: What the line is about. After 100 kinds no new one is logged: kinds may be named
            after foreign error types, of which there is no end.
        message: Format string.
        args: Its arguments.
    """
    with _lock:
        is_new = kind not in _seen and len(_seen) < _KINDS_MAX
        if is_new:
            _seen.add(kind)
    if is_new:
        _LOGGER.warning(message, *args)
