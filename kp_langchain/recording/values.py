"""Plain JSON and readable text from whatever LangChain hands over, within bounds.

Nothing costs more than its bound: a tool's output of five megabytes is cut before it is read, and
large structures are written out as JSON only later, on the engine's thread; see `gist` and
`gist_text`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, MutableSequence, Set, ValuesView
from itertools import islice
from types import SimpleNamespace
from typing import Any

from kp_langchain.recording.messages import (
    content_text,
    data_mark,
    is_content,
    is_content_list,
    is_message,
    message_text,
    messages_in,
)
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    clip,
    default_on_error,
    describe,
    join_texts,
    type_name,
)

_CONTAINER = (*MAPPING, list, tuple, Set, MutableSequence, ValuesView)
_STRUCTURE = (*_CONTAINER, int, float)
_BUILT_IN = frozenset({dict, list, tuple, int, float, bool})
_FIELD_LISTS = ("model_fields", "__dataclass_fields__", "__attrs_attrs__")
_SMALL = (str, int, float, type(None))
_WRITES_ALL_ARGUMENTS = (BaseException.__str__, KeyError.__str__)
_BYTES = (bytes, bytearray, memoryview)
_KEY_CHARS = 200
_NUMBER_CHARS = 8  # counted for a number, a truth value or None
_SEPARATOR_CHARS = 2  # counted between two items
_EXACT_INTEGERS = 2**53  # readers of JSON may hold a number in a float
_DECIMAL_BITS = 2048  # Python may be set to write no integer of more than 640 digits


# ------------------------------------------------------------------ plain JSON


def plain(value: object, limit: int) -> Any:
    """Copy `value` into JSON-like form with at most about `limit` characters of text.

    Mappings become dicts, sequences and sets lists, numbers stay; other objects become text.
    Cycles end at `MAX_DEPTH`, long containers at `MAX_ITEMS`. A mapping becomes a dict even if
    there is no room for its items, or it cannot be read.
    """
    return _plain(value, [limit, MAX_ALL_ITEMS], 0)


def as_input(inputs: object, limit: int) -> dict[str, Any]:
    """Return a tool's input in the form of `plain`, as a dict."""
    copy = plain(inputs, limit)
    return copy if isinstance(copy, dict) else {"input": copy}


@default_on_error(None)
def flat_size(inputs: object) -> int | None:
    """Return the `text_size` of a dict of plain values, which `plain` only copies; else None."""
    if type(inputs) is not dict or len(inputs) > MAX_ITEMS:
        return None
    size = _SEPARATOR_CHARS * len(inputs)
    for key, value in inputs.items():
        is_exact = type(value) is int and -_EXACT_INTEGERS <= value <= _EXACT_INTEGERS
        if type(key) is not str or len(key) > _KEY_CHARS:
            return None
        if type(value) is str:
            size += len(key) + len(value)
        elif is_exact or value is None or type(value) is bool:
            size += len(key) + _NUMBER_CHARS
        else:
            return None
    return size


def text_size(value: object) -> int:
    """Return about how many characters a text or a value of `plain` has, without writing it out."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        inner = sum(map(len, value)) + sum(map(text_size, value.values()))
    elif isinstance(value, list):
        inner = sum(map(text_size, value))
    else:
        return _NUMBER_CHARS
    return inner + _SEPARATOR_CHARS * len(value)


def _plain(value: object, room: list[int], depth: int) -> Any:
    """Return the `plain` form of a value.

    Args:
        value: The value.
        room: How many more characters, and how many more items, there is room for; reduced.
        depth: Levels of nesting above the value.
    """
    room[1] -= 1
    try:
        if type(value) is str:  # like most values
            text = clip(value, max(room[0], 0))
        elif value is None or value is True or value is False:
            room[0] -= _NUMBER_CHARS
            return value
        elif isinstance(value, (int, float)):
            number = _number(value)
            if not isinstance(number, str):
                room[0] -= _NUMBER_CHARS
                return number
            text = clip(number, max(room[0], 0))
        elif isinstance(value, str):
            text = clip(value, max(room[0], 0))
        elif isinstance(value, _BYTES):
            text = _bytes_mark(value)
        elif depth and (depth >= MAX_DEPTH or room[0] <= 0 or room[1] <= 0):
            text = "..."
        elif depth and type(value) is dict and (mark := data_mark(value)):
            text = mark
        elif isinstance(value, _CONTAINER):
            return _plain_container(value, room, depth)
        else:
            text = as_text(value, max(room[0], 0), depth + 1)
    except Exception:  # noqa: BLE001 - the user's own value may do anything
        return type_name(value)
    room[0] -= len(text)
    return text


def _plain_container(value: Any, room: list[int], depth: int) -> dict[str, Any] | list[Any]:
    """Return the `plain` form of a mapping or sequence; its last item says what is left out."""
    is_mapping = isinstance(value, MAPPING)
    out: dict[Any, Any] = {}
    try:
        pairs = value.items() if is_mapping else enumerate(value)
        for key, item in islice(pairs, MAX_ITEMS + 1):
            if len(out) >= MAX_ITEMS or room[0] <= 0 or room[1] <= 0:
                rest = _rest(value, len(out))
                out["..."] = rest if is_mapping else f"... {rest}"
                break
            name = key
            if is_mapping:
                name = clip(key if isinstance(key, str) else _key_text(key), _KEY_CHARS)
                name = f"{name} ({len(out)})" if name in out else name
                room[0] -= len(name)
            room[0] -= _SEPARATOR_CHARS
            out[name] = _plain(item, room, depth + 1)
    except Exception:  # noqa: BLE001 - the user's own container may do anything
        out["..."] = type_name(value)
    return out if is_mapping else list(out.values())


def _rest(value: object, count: int) -> str:
    """Return how many items are left out, if the length of the value can be trusted."""
    if isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) > count:
        return f"{len(value) - count} more"
    return "more"


def _key_text(key: object) -> str:
    return str(key) if key is None or isinstance(key, bool) else as_text(key, 100)


def _number(value: int | float) -> int | float | str:
    """Return Python's own number for an instance of any subclass; text if JSON would spoil it.

    Readers of JSON know neither infinities nor NaN, and round large integers.
    """
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else str(number)
    integer = int.__int__(value)
    if -_EXACT_INTEGERS <= integer <= _EXACT_INTEGERS:
        return integer
    bits = integer.bit_length()
    return str(integer) if bits <= _DECIMAL_BITS else f"<integer of {bits} bits>"


def _bytes_mark(value: bytes | bytearray | memoryview) -> str:
    return f"<{value.nbytes if isinstance(value, memoryview) else len(value)} bytes>"


def fields_of(value: object) -> Mapping[str, object] | None:
    """Return the fields of an object whose `repr` would show them all; None for other objects.

    These are objects of pydantic, dataclasses and attrs, namespaces, and LangGraph's `Send`. If the
    object has a `__dict__`, that itself is returned, not a copy.
    """
    if isinstance(value, type):
        return None
    cls = type(value)
    names = next((fields for name in _FIELD_LISTS if (fields := getattr(cls, name, None))), None)
    if cls.__name__ == "Send" and hasattr(cls, "__slots__"):
        names = cls.__slots__
    if names is None and not isinstance(value, SimpleNamespace):
        return None
    fields = getattr(value, "__dict__", None)
    if fields is None:  # they are in slots
        field_names = (getattr(name, "name", name) for name in islice(names or (), MAX_ITEMS))
        fields = {name: getattr(value, name, None) for name in field_names}
    return fields if isinstance(fields, Mapping) else None


# ------------------------------------------------------------------ readable text


def as_text(value: object, limit: int, depth: int = 0) -> str:
    """Return what a reader would want of a value as text, cut to `limit`; see `gist`."""
    return gist_text(gist(value, limit, depth), limit)


def gist_text(gist: Any, limit: int) -> str:
    """Return what `gist` returned as text: structures become compact JSON."""
    if isinstance(gist, str):
        return gist
    return clip(json.dumps(gist, ensure_ascii=False, separators=(", ", ": ")), limit)


def gist(value: object, limit: int, depth: int = 0) -> Any:
    """Return what a reader would want of a tool's output or a run's result, cut to `limit`.

    Messages give their text, documents their page content, commands the messages they carry.
    Structures are copied in the form of `plain`, which `gist_text` writes out when there is time.
    """
    if value is None:
        return ""
    try:
        return clip(value, limit) if isinstance(value, str) else _gist(value, limit, depth)
    except Exception:  # noqa: BLE001 - the user's own value may do anything
        return type_name(value)


def _gist(value: object, limit: int, depth: int) -> Any:
    is_built_in = type(value) in _BUILT_IN
    if not is_built_in and (text := _text_of_object(value, limit, depth)) is not None:
        return text
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "page_content"):
        return join_texts((as_text(item, limit) for item in value[:MAX_ITEMS]), limit)
    if messages := messages_in(value):
        return join_texts((message_text(message, limit) for message in messages), limit)
    if isinstance(value, (list, tuple)) and is_content_list(value[:MAX_ITEMS]):
        return content_text(value, limit)
    if type(value) is dict and (mark := data_mark(value)):
        return mark
    fields = None if is_built_in else fields_of(value)
    if fields is not None or isinstance(value, _STRUCTURE):
        if depth >= MAX_DEPTH:
            return "..."
        copy = _plain(value if fields is None else fields, [limit, MAX_ALL_ITEMS], depth)
        return clip(copy, limit) if isinstance(copy, str) else copy
    return describe(value, limit)


def _text_of_object(value: object, limit: int, depth: int) -> Any:
    """Return the `gist` of bytes, an exception, a message or a document; None for others."""
    if isinstance(value, _BYTES):
        return clip(_bytes_mark(value), limit)
    if isinstance(value, BaseException):
        writes_all = type(value).__str__ in _WRITES_ALL_ARGUMENTS
        if not writes_all or all(type(one) in _SMALL for one in value.args):
            return describe(value, limit)
        return gist(value.args, limit, depth)
    if is_message(value):
        return message_text(value, limit) or _data_of_message(value, limit, depth)
    page = getattr(value, "page_content", None)
    return clip(page, limit) if isinstance(page, str) else None


def _data_of_message(message: object, limit: int, depth: int) -> Any:
    """Return the content of a tool's message that holds data and no text."""
    content = getattr(message, "content", None)
    if getattr(message, "type", None) != "tool" or not content or is_content(content[0]):
        return ""
    return _plain(content, [limit, MAX_ALL_ITEMS], depth)
