"""Reads values that belong to the user: within bounds, and without ever raising.

Everything that reads such a value runs inside the user's agent. So no value is changed. A container
may be endless, so only its first items are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from kp_langchain._host_exceptions import raised_by_host

MAX_ITEMS: Final = 200
"""Items that are read of one container."""
MAX_ALL_ITEMS: Final = 1000
"""Items that are read of one value, those of nested containers included."""
MAX_DEPTH: Final = 8
"""Levels of nesting that are read of one value."""
MAPPING: Final = (dict, Mapping)
"""For `isinstance`: `dict` first, because asking the abstract class costs ten times as much."""

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


def default_on_error(
    default: object,
) -> Callable[[Callable[_Arguments, _Value]], Callable[_Arguments, _Value]]:
    """Decorate a function that reads a user's value to return `default` if that raises.

    An exception that a signal handler of the host raises meanwhile still passes.
    """

    def decorate(read: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
        @wraps(read)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
            try:
                return read(*args, **kwargs)
            except BaseException as error:
                if raised_by_host(error):
                    raise
                return cast("_Value", default)

        return call

    return decorate


def list_items(value: object) -> list[Any]:
    """Return the first `MAX_ALL_ITEMS` items of a list; [] for any other value."""
    return value[:MAX_ALL_ITEMS] if isinstance(value, list) else []


def attribute(value: object, name: str) -> Any:
    """Return an attribute of a user's value; None if it has none or raises."""
    try:
        return getattr(value, name, None)
    except BaseException as error:  # the user's own class may do anything
        if raised_by_host(error):
            raise
        return None
