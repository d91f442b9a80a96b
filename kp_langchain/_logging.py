"""One-time warnings and structured events on the logger `kp_langchain`, one line each.

If a logging handler, filter or record factory of the host raises, only the log line is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import KPError
from kp_langchain.printable import one_line, printable_fields

_LOGGER = logging.getLogger("kp_langchain")
_LONGEST_ARGUMENT_CHARS = 1000
_KINDS_MAX = 100
_logged_kinds: set[str] = set()
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


class _EventRecord:
    """A log record with the attribute `event`, but without a field of that name.

    structlog copies all fields of a record into its own dictionary, where `event` is the message.
    So the name of the event is in the field `kp_event`, and `event` reads that field. An `event`
    that the host sets on the record takes precedence.
    """

    class _Event:
        def __get__(self, record: object, kind: type | None = None) -> Any:
            try:
                return vars(record)["kp_event"]
            except (KeyError, TypeError):
                raise AttributeError("event") from None

    event = _Event()

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is created at run time, so pickle cannot import it.
        return _new_event_record, (type(self).__bases__[1],), vars(self)


@cache
def _event_class(kind: type) -> type:
    return type(kind.__name__, (_EventRecord, kind), {"__module__": __name__})


def _new_event_record(kind: type) -> Any:
    event_class: Any = _event_class(kind)
    return event_class.__new__(event_class)


def _add_event(record: logging.LogRecord) -> bool:
    """Give a record with an event name the attribute `event`; a filter."""
    with suppress(Exception):  # the host's records may be of any class
        if "kp_event" in vars(record):
            kind: Any = type(record)
            # In place, because a filter can replace a record only since Python 3.12.
            record.__class__ = _event_class(kind)
    return True


# Before the host's filters, which may read the attributes that these set.
_LOGGER.filters[:0] = [_add_event, _make_printable]


def warn_once(kind: str, message: str, *args: object) -> None:
    """Log a warning on the logger `kp_langchain`, once per process and kind.

    Args:
        kind: Identifies the warning. At most 100 kinds are logged, because a kind may contain the
            name of an error type, and there may be any number of those.
        message: A format string.
        args: Its arguments.
    """
    with _lock:
        is_new = kind not in _logged_kinds and len(_logged_kinds) < _KINDS_MAX
        if is_new:
            _logged_kinds.add(kind)
    if is_new:
        with suppress(Exception):
            _LOGGER.warning(message, *args)


def log_event(message: str, *args: object, fields: Mapping[str, object]) -> None:
    """Log an INFO record on the logger `kp_langchain`: a readable line, and values as fields.

    Args:
        message: A format string.
        args: Its arguments.
        fields: The attributes of the record. `event` becomes the field `kp_event`, which is read as
            `record.event`.

    Raises:
        Exception: Whatever a handler, filter or record factory of the host raises.
    """
    fields = printable_fields(fields, _LONGEST_ARGUMENT_CHARS)
    if "event" in fields:
        fields["kp_event"] = fields.pop("event")
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
