"""Convert objects that hold data to dicts and lists."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

_PLAIN = (str, bytes, int, float)


def has_type(value: Any, *kinds: type) -> bool:
    """Return whether the type of `value` is one of `kinds`; `isinstance` may run the object's code."""
    return issubclass(type(value), kinds)


def parts_of(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return the content of an object, or None if the object holds no data.

    Args:
        value: Anything but a dict, list, tuple or set.

    Returns:
        A new dict for a mapping, dataclass, pydantic model, attrs class or enum member, and a new
        list for a deque. For an exception, a dict of its type, arguments and notes.
    """
    if value is None or isinstance(value, _PLAIN):
        return None
    if isinstance(value, SecretStr | SecretBytes):
        return {"secret": value.get_secret_value()}
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, BaseException):
        notes = list(getattr(value, "__notes__", ()))
        return {"type": type(value).__name__, "args": list(value.args)} | (
            {"notes": notes} if notes else {}
        )
    if isinstance(value, Enum):
        return {"name": value.name, "value": value.value}
    if isinstance(value, BaseModel):
        return {**vars(value), **(value.model_extra or {})}
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(type(value), "__attrs_attrs__"):
        return {
            field.name: getattr(value, field.name, None) for field in type(value).__attrs_attrs__
        }
    return None
