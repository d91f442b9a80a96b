"""Requests that the HTTP libraries do not log.

httpx and httpcore write a server's words into their records as they come: the phrase after the
status, and each header. A server that echoes the key or a unit there would have them logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A filter counts for its own logger alone, not for those below it.
_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")))

_is_ours: ContextVar[bool] = ContextVar("_is_ours", default=False)


def _is_of_others(record: logging.LogRecord) -> bool:  # noqa: ARG001 - logging's signature
    return not _is_ours.get()


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop what httpx and httpcore would log meanwhile, in this thread alone."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_of_others)  # once, however often it is called
    before = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(before)
