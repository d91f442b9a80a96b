"""Keep records of the libraries that this package calls out of the host's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_quiet: ContextVar[bool] = ContextVar("_is_quiet", default=False)


def _pass_unless_quiet(record: logging.LogRecord) -> bool:  # noqa: ARG001 - logging's signature
    return not _is_quiet.get()


@contextmanager
def quiet_loggers(*loggers: str) -> Iterator[None]:
    """Drop the records of these loggers inside the block, in this thread alone.

    The filters are never removed, because another thread may be iterating over them; outside such
    blocks they drop nothing. The levels and handlers, which are the host's, do not change.

    Args:
        loggers: The names of the loggers. Loggers below them are not affected.
    """
    for name in loggers:
        logging.getLogger(name).addFilter(_pass_unless_quiet)  # adds it at most once
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)
