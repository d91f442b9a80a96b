"""What this package says to the logger `kp_langchain`: one line of printable text a record.

The host's logging handlers, filters and record factories are the host's: when one raises, the line
is lost, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._host_exceptions import came_from_outside
from kp_langchain.errors import KPError
from kp_langchain.printable import one_line, printable_fields

_LOGGER = logging.getLogger("kp_langchain")
_LONGEST_ARGUMENT_CHARS = 1000
_KINDS_MAX = 100
_seen: set[str] = set()
_lock = ForkSafeLock()


def _in_one_line(record: logging.LogRecord) -> bool:
    """Replace what would end the line or drive a terminal; whatever the record, it is logged."""
    with suppress(Exception):
        if isinstance(record.args, tuple):
            record.args = tuple(map(_argument, record.args))
        if not record.args:
            record.msg = _argument(record.msg)
    return True


def _argument(value: object) -> object:
    """A value that a format such as %.3f may need as it is, or else its text in one line."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return one_line(value, _LONGEST_ARGUMENT_CHARS)


class _Named:
    """A log record that has the attribute `event`, and no field of that name.

    structlog takes every field of a record for its own dictionary, in which `event` is the message.
    So the name lies in the field `kp_event`. A record's own `event`, set by the host, comes first.
    """

    class _Event:
        def __get__(self, record: object, kind: type | None = None) -> Any:
            try:
                return vars(record)["kp_event"]
            except (KeyError, TypeError):
                raise AttributeError("event") from None

    event = _Event()

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, so pickle would not find it.
        return _new_named, (type(self).__bases__[1],), vars(self)


@cache
def _named(kind: type) -> type:
    return type(kind.__name__, (_Named, kind), {"__module__": __name__})


def _new_named(kind: type) -> Any:
    made: Any = _named(kind)
    return made.__new__(made)


def _with_event(record: logging.LogRecord) -> bool:
    with suppress(Exception):  # the host's records may be of any class
        if "kp_event" in vars(record):
            kind: Any = type(record)
            record.__class__ = _named(kind)
    return True


# Before the filters of the host's, which may read what these make.
_LOGGER.filters[:0] = [_with_event, _in_one_line]


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
        try:
            _LOGGER.warning(message, *args)
        except Exception as error:
            if came_from_outside(error):
                raise


def log_event(message: str, *args: object, fields: Mapping[str, object]) -> None:
    """Log an INFO record on the logger `kp_langchain`: a line to read, and figures as fields.

    Args:
        message: Format string.
        args: Its arguments.
        fields: What becomes attributes of the record; see `_Named` for `event`.
    """
    with suppress(Exception):
        fields = printable_fields(fields, _LONGEST_ARGUMENT_CHARS)
        if "event" in fields:
            fields["kp_event"] = fields.pop("event")
        try:
            _LOGGER.info(message, *args, extra=fields)
        except KeyError:  # a record factory of the host's owns one of these names
            _LOGGER.info(message, *args, extra={"kp": fields})


def describe_error(error: BaseException) -> str:
    """What a log line may say of an error: its type, and its text only if it is our own.

    A foreign error's text may quote the run.
    """
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, KPError) else name
