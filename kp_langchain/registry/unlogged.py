"""Requests that the HTTP libraries do not log.

httpx and httpcore write a server's words into their records as they come: the phrase after the
status, and each header. A server that echoes the key or a unit there would have them logged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from kp_langchain import _unlogged

_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")))


def unlogged() -> AbstractContextManager[None]:
    """Drop what httpx and httpcore would log meanwhile, in this thread alone."""
    return _unlogged.unlogged(*_LOGGERS)
