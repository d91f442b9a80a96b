"""One-time warnings and structured events on the logger `kp_langchain`, one line each.

If a logging handler, filter or record factory of the host raises, only the log line is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import KPError
from kp_langchain.text import one_line

_LOGGER = logging.getLogger("kp_langchain")
_LONGEST_ARGUMENT_CHARS = 1000
_KINDS_MAX = 100
_logged_kinds: set[str] = set()
_logged_events: set[str] = set()
_lock = ForkSafeLock()


def _make_printable(record: logging.LogRecord) -> bool:
    """Replace line breaks and terminal control characters in the record; a filter."""
    with suppress(Exception):
        if isinstance(record.args, tuple):
            record.args = tuple(map(_printable, record.args))
        if not record.args:
            record.msg = _printable(record.msg)
    return True


def _printable(value: object) -> object:
    """Return numbers unchanged, for formats such as %.3f, and any other value as one line."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return one_line(value, _LONGEST_ARGUMENT_CHARS)


# Before the host's filters, which may show what this replaces.
_LOGGER.filters.insert(0, _make_printable)


def warn_once(kind: str, message: str, *args: object) -> None:
    """Log a warning on the logger `kp_langchain`, once per process and kind.

    Args:
        kind: Identifies the warning. At most 100 kinds are logged, because a kind may contain the
            name of an error type, and there may be any number of those.
        message: A format string.
        args: Its arguments.
    """
    if _is_new(kind, _logged_kinds):
        with suppress(Exception):
            _LOGGER.warning(message, *args)


def _is_new(kind: str, known: set[str]) -> bool:
    with _lock:
        is_new = kind not in known and len(known) < _KINDS_MAX
        if is_new:
            known.add(kind)
    return is_new


def log_event(
    message: str, *args: object, fields: Mapping[str, object], once: str | None = None
) -> None:
    """Log an INFO record on the logger `kp_langchain`: a readable line, and values as fields.

    Args:
        message: A format string.
        args: Its arguments.
        once: Identifies an event that is logged once per process, of at most 100 such events.
        fields: The attributes of the record. `kp_event` is the name of the event: structlog and
            others have a use of their own for `event`.

    Raises:
        Exception: Whatever a handler, filter or record factory of the host raises.
    """
    if once is not None and not _is_new(once, _logged_events):
        return
    fields = {
        name: _printable(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    try:
        _LOGGER.info(message, *args, extra=fields)
    except KeyError:  # the host's records already have one of these attributes
        _LOGGER.info(message, *args, extra={"kp": fields})


def describe_error(error: BaseException) -> str:
    """Return the type of an error, and its text if this package wrote that.

    The text of any other error may quote the run.
    """
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, KPError) else name


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
