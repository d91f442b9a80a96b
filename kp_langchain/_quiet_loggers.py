"""Blocks of which libraries beneath this package write nothing into the host's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_ours: ContextVar[bool] = ContextVar("_is_ours", default=False)


def _is_of_others(record: logging.LogRecord) -> bool:  # noqa: ARG001 - logging's signature
    return not _is_ours.get()


@contextmanager
def quiet_loggers(*loggers: str) -> Iterator[None]:
    """Drop what these loggers would log meanwhile, in this thread alone.

    The filters stay, because another thread may be going through them; outside of such blocks they
    let everything pass. Levels and handlers are the host's, and stay as they are.

    Args:
        loggers: Names; a filter counts for its own logger alone, not for those below it.
    """
    for name in loggers:
        logging.getLogger(name).addFilter(_is_of_others)  # once, however often it is called
    before = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(before)
