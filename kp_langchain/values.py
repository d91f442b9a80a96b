"""Nested values: one set of limits, and one walk for each purpose.

What LangChain, tools and users hand over may be endless, cyclic, or an object of any class. `plain`
copies it into JSON-like form within the limits; `map_texts` and `members` read what is JSON-like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Set
from itertools import islice
from typing import Any, Final

MAX_ITEMS: Final = 200
"""Items that are read of one container."""
MAX_ALL_ITEMS: Final = 1000
"""Items that are read of one value, those of nested containers included."""
MAX_DEPTH: Final = 8
"""Levels of nesting that are read of one value."""
DEEPEST: Final = 200
"""Levels that a copy of the same shape has; JSON parsers and pydantic fail at little more."""
ASKED_CHARS: Final = 600
"""How much of the end of a text is read as a question."""
ANSWER_CHARS: Final = 400
"""A longer text is no answer that gives a secret."""
MAPPING: Final = (dict, Mapping)
"""For `isinstance`: `dict` first, because asking the abstract class costs ten times as much."""

_CONTAINER = (*MAPPING, list, tuple, Set, MutableSequence)
_BYTES = (bytes, bytearray)
_KEY_CHARS = 200
_TYPE_CHARS = 100
_NUMBER_CHARS = 8  # counted for a number, a truth value or None
_SEPARATOR_CHARS = 2  # counted between two items
EXACT_INTEGERS: Final = 2**53
"""Readers of JSON may hold a number in a float."""
# PostgreSQL takes no NUL in text, and UTF-8 no lone surrogate.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

Describe = Callable[[object, int], str | None]

# ------------------------------------------------------------------ texts

LEFT_OUT = "characters left out] ..."
_MARK = re.compile(r"\.\.\. \[(\d{1,15}) " + re.escape(LEFT_OUT))
_MARK_CHARS = 50


def clean_text(text: str) -> str:
    """Return `text`, of the same length, with every NUL and lone surrogate replaced by U+FFFD."""
    if text.isascii() and "\x00" not in text:  # like most
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def clip(text: str, limit: int, *, margin: int = 0) -> str:
    """Return `text` cut to `limit` characters: both ends stay, a mark between counts the rest.

    A task may be stated at the end of a long prompt, and the last lines of a long output often say
    how it went. A text that was cut before is cut at the same place. An instance of a subclass of
    `str` becomes a plain `str`.

    Args:
        text: The text.
        limit: Characters to keep, the mark included. If the mark alone is longer, it is returned.
        margin: Characters to leave out on each side of every earlier cut, even where the text is
            within the limit, because a fragment of a secret may stand there.
    """
    if type(text) is not str:
        text = str.__str__(text)
    if margin and LEFT_OUT in text:
        text = _without_margins(text, margin)
    return text if len(text) <= limit else _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    """Return a text without its middle, or without what surrounds the earlier cut that is there."""
    size = len(text)
    start = stop = size // 2
    hidden = 0
    if mark := _mark_near(text, start, limit):
        start, stop = mark.span()
        hidden = int(mark[1]) - (stop - start)
    head, tail, note = 0, 0, ""
    for _ in range(3):  # a longer mark leaves out more, which it has to count
        room = max(0, limit - len(note))
        head = min(start, max(room - room // 2, room - (size - stop)))
        tail = min(size - stop, room - head)
        note = _mark(size - head - tail + hidden)
    return f"{text[:head]}{note}{text[size - tail :]}"


def _mark_near(text: str, middle: int, reach: int) -> re.Match[str] | None:
    """Return the mark of an earlier cut that is nearest to the middle of a text."""
    start, stop = max(0, middle - reach - _MARK_CHARS), middle + reach + _MARK_CHARS
    if text.find(LEFT_OUT, start, stop) < 0:  # a hundred times as fast as the expression
        return None
    marks = _MARK.finditer(text, start, stop)
    return min(marks, key=lambda one: abs(one.start() + one.end() - 2 * middle), default=None)


def _without_margins(text: str, margin: int) -> str:
    """Leave out `margin` characters on each side of every mark, since any of them may be ours."""
    first, *others = _MARK.split(text)  # texts, and between them what each mark counts
    out = first[: max(0, len(first) - margin)]
    left_out = len(first) - len(out)
    while others:
        count, part, *others = others
        kept = part[margin : max(margin, len(part) - margin) if others else None]
        left_out += int(count) + len(part) - len(kept)
        if kept or not others:
            out, left_out = f"{out}{_mark(left_out)}{kept}", 0
    return out


def _mark(left_out: int) -> str:
    return f"... [{left_out} {LEFT_OUT}"


def join_texts(texts: Iterable[str], limit: int, separator: str = "\n\n") -> str:
    """Join texts of at most `limit` characters each, and cut the whole to `limit`."""
    text = separator.join(filter(None, texts))
    return text if len(text) <= limit else _cut(text, limit)


def type_name(value: object) -> str:
    """Return the name of a value's type in angle brackets, for a value that cannot be read."""
    return f"<{clip(type(value).__name__, _TYPE_CHARS)}>"


# ------------------------------------------------------------------ JSON-like values


def map_texts(
    value: Any,
    change: Callable[[str], Any],
    *,
    change_key: Callable[[str], str] | None = None,
    change_other: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a copy of a JSON-like value with its texts changed.

    Args:
        value: Dicts, lists, tuples and sets, nested in any way; all but dicts become lists.
        change: Returns the new text, or a value in its place.
        change_key: The same for keys; `change` if it is not given.
        change_other: Returns what replaces anything else; by default, it stays.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        new_key = change_key or change
        return {
            new_key(str(key)): map_texts(
                item, change, change_key=change_key, change_other=change_other
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [
            map_texts(item, change, change_key=change_key, change_other=change_other)
            for item in value
        ]
    return change_other(value) if change_other else value


def members(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of all that a container holds at any depth, within the limits.

    Args:
        value: Any value. One that is no container is yielded itself, without a key.
        depth: Levels of nesting above it.
    """
    if depth == 0 and not isinstance(value, (*MAPPING, list, tuple)):
        yield None, value
    elif depth < MAX_DEPTH and isinstance(value, (*MAPPING, list, tuple)):
        pairs = value.items() if isinstance(value, MAPPING) else ((None, item) for item in value)
        for key, item in islice(pairs, MAX_ITEMS):
            yield key, item
            yield from members(item, depth + 1)


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


# ------------------------------------------------------------------ any values


def plain(value: object, limit: int, describe: Describe | None = None) -> Any:
    """Copy `value` into JSON-like form with at most about `limit` characters of text.

    Mappings become dicts, sequences and sets lists, numbers stay. Objects of pydantic and
    dataclasses become dicts, other objects text. Cycles end at `MAX_DEPTH`, long containers at
    `MAX_ITEMS`. A mapping becomes a dict even if there is no room for its items.

    Args:
        value: The value.
        limit: About how many characters.
        describe: Returns the text of an object, or of a dict within another container, given its
            most characters; None for those that are copied field by field.
    """
    return _plain(value, [limit, MAX_ALL_ITEMS], 0, describe)


def _plain(value: object, room: list[int], depth: int, describe: Describe | None) -> Any:
    """Return the `plain` form of a value.

    Args:
        value: The value.
        room: How many more characters, and how many more items, there is room for; reduced.
        depth: Levels of nesting above the value.
        describe: See `plain`.
    """
    room[1] -= 1
    limit = max(room[0], 0)
    try:
        if type(value) is str:  # like most values
            text = clip(value, limit)
        elif (number := _number(value)) is not None or value is None:
            room[0] -= _NUMBER_CHARS
            return number
        elif depth and (depth >= MAX_DEPTH or room[0] <= 0 or room[1] <= 0):
            text = "..."
        elif isinstance(value, str):
            text = clip(value, limit)
        elif isinstance(value, _BYTES):
            text = clip(f"<{len(value)} bytes>", limit)
        elif (
            describe is not None
            and (depth or type(value) is not dict)
            and ((shown := describe(value, limit)) is not None)
        ):
            text = shown
        elif isinstance(value, _CONTAINER):
            return _plain_container(value, room, depth, describe)
        elif (fields := fields_of(value)) is not None:
            return _plain_container(fields, room, depth, describe)
        else:
            text = clip(str(value), limit)
    except Exception:  # noqa: BLE001 - the user's own value may do anything
        text = type_name(value)
    room[0] -= len(text)
    return text


def _plain_container(
    value: Any, room: list[int], depth: int, describe: Describe | None
) -> dict[str, Any] | list[Any]:
    """Return the `plain` form of a mapping or sequence; its last item says what is left out."""
    is_mapping = isinstance(value, MAPPING)
    out: dict[Any, Any] = {}
    for key, item in islice(value.items() if is_mapping else enumerate(value), MAX_ITEMS + 1):
        if len(out) >= MAX_ITEMS or room[0] <= 0 or room[1] <= 0:
            rest = f"{len(value) - len(out)} more" if len(value) > len(out) else "more"
            out["..."] = rest if is_mapping else f"... {rest}"
            break
        name = key
        if is_mapping:
            name = clip(key if isinstance(key, str) else str(key), _KEY_CHARS)
            room[0] -= len(name)
        room[0] -= _SEPARATOR_CHARS
        out[name] = _plain(item, room, depth + 1, describe)
    return out if is_mapping else list(out.values())


def _number(value: object) -> int | float | None:
    """Return a truth value or number as JSON can hold it; None for any other value.

    Readers of JSON know neither infinities nor NaN, and round large integers.
    """
    if not isinstance(value, (int, float)) or value is True or value is False:
        return value if isinstance(value, bool) else None
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else None
    return int.__int__(value) if -EXACT_INTEGERS <= value <= EXACT_INTEGERS else None


def fields_of(value: object) -> Mapping[str, object] | None:
    """Return the fields of an object of pydantic or of a dataclass; None for other objects."""
    names = getattr(type(value), "model_fields", None)
    if names is None:
        names = getattr(type(value), "__dataclass_fields__", None)
    if not isinstance(names, dict):
        return None
    return {name: getattr(value, name, None) for name in islice(names, MAX_ITEMS)}
