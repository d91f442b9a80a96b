"""Requests that the HTTP libraries do not log.

httpx and httpcore write a server's words into their records as they come: the phrase after the
status, and each header. A server that echoes the key or a unit there would have them logged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from kp_langchain import _quiet_loggers

_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")))


def quiet_loggers() -> AbstractContextManager[None]:
    """Drop what httpx and httpcore would log meanwhile, in this thread alone."""
    return _quiet_loggers.quiet_loggers(*_LOGGERS)
