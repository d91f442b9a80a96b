"""Requests that the HTTP libraries do not log.

httpx and httpcore log the status phrase and the headers of a server unchanged. A server that echoes
the key or a unit there would have it logged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from kp_langchain import _quiet_loggers

_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")))


def quiet_http_loggers() -> AbstractContextManager[None]:
    """Drop the records of httpx and httpcore inside the block, in this thread alone."""
    return _quiet_loggers.quiet_loggers(*_LOGGERS)
