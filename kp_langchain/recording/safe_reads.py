"""Read values that belong to the user: within bounds, and without ever raising.

Everything that reads such a value runs inside the user's agent. So no value is changed. A container
may be endless, so only its first items are read. A text is cut to a bound: both ends stay, and a
mark between them counts what is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

MAX_ITEMS: Final = 200
"""Items that are read of one container."""
MAX_ALL_ITEMS: Final = 1000
"""Items that are read of one value, those of nested containers included."""
MAX_DEPTH: Final = 8
"""Levels of nesting that are read of one value."""
MAPPING: Final = (dict, Mapping)
"""For `isinstance`: `dict` first, because asking the abstract class costs ten times as much."""
NAME_CHARS: Final = 200
"""Characters kept of a name or id: of a run, tool, thread or checkpoint."""

_LEFT_OUT = "characters left out] ..."
_MARK = re.compile(r"\.\.\. \[(\d{1,15}) " + re.escape(_LEFT_OUT))
_TYPE_CHARS = 100
_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


def default_on_error(
    default: object,
) -> Callable[[Callable[_Arguments, _Value]], Callable[_Arguments, _Value]]:
    """Decorate a function that reads a user's value to return `default` if that raises."""

    def decorate(read: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
        @wraps(read)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
            try:
                return read(*args, **kwargs)
            except Exception:  # noqa: BLE001 - the user's own value may do anything
                return cast("_Value", default)

        return call

    return decorate


def attribute(value: object, name: str) -> Any:
    """Return an attribute of a user's value; None if it has none or raises."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - the user's own class may do anything
        return None


def field(value: object, name: str) -> Any:
    """Return what a mapping holds under a name; None for any other value."""
    return value.get(name) if isinstance(value, MAPPING) else None


def member(value: object, name: str) -> Any:
    """Return what a mapping holds under a name, or the attribute of any other object; or None."""
    return value.get(name) if isinstance(value, MAPPING) else getattr(value, name, None)


def list_items(value: object) -> list[Any]:
    """Return the first `MAX_ALL_ITEMS` items of a list; [] for any other value."""
    return value[:MAX_ALL_ITEMS] if isinstance(value, list) else []


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
    if margin:
        text = _without_margins(text, margin)
    return text if len(text) <= limit else _cut(text, limit, reach=limit)


def _cut(text: str, limit: int, reach: int) -> str:
    """Return a text without its middle.

    Args:
        text: The text.
        limit: Characters to keep.
        reach: How far from the middle earlier cuts count.
    """
    size = len(text)
    marks = _marks(text, reach)
    start = stop = size // 2
    if marks:  # ours is the mark nearest to the middle
        mark = min(marks, key=lambda one: abs(one.start() + one.end() - size))
        start, stop = mark.start(), mark.end()
    head, tail, note = 0, 0, ""
    for _ in range(3):  # a longer mark leaves out more, which it has to count
        room = max(0, limit - len(note))
        head = min(start, max(room - room // 2, room - (size - stop)))
        tail = min(size - stop, room - head)
        inside = (one for one in marks if head <= one.start() and one.end() <= size - tail)
        note = _mark(size - head - tail + sum(map(_hidden_chars, inside)))
    return f"{text[:head]}{note}{text[size - tail :]}"


def _without_margins(text: str, margin: int) -> str:
    """Leave out `margin` characters on each side of every mark, since any of them may be ours."""
    spans: list[list[int]] = []  # where each starts and stops, and what its marks stand for
    for mark in _MARK.finditer(text) if _LEFT_OUT in text else ():
        start = mark.start() - margin
        if not spans or start > spans[-1][1]:
            spans.append([max(0, start), 0, 0])
        spans[-1][1] = min(len(text), mark.end() + margin)
        spans[-1][2] += _hidden_chars(mark)
    parts: list[str] = []
    at = 0
    for start, stop, hidden_chars in spans:
        parts += (text[at:start], _mark(hidden_chars + stop - start))
        at = stop
    return "".join([*parts, text[at:]]) if spans else text


def _mark(left_out: int) -> str:
    return f"... [{left_out} {_LEFT_OUT}"


def _hidden_chars(mark: re.Match[str]) -> int:
    """Return how many characters longer the text was before this mark replaced some of it."""
    return int(mark[1]) - len(mark[0])


def _marks(text: str, reach: int) -> list[re.Match[str]]:
    """Return the marks of earlier cuts, no further than `reach` characters from the middle."""
    start, stop = max(0, len(text) // 2 - reach - 50), len(text) // 2 + reach + 50
    if text.find(_LEFT_OUT, start, stop) < 0:  # a hundred times as fast as the expression
        return []
    return list(_MARK.finditer(text, start, stop))


def join_texts(texts: Iterable[str], limit: int, separator: str = "\n\n") -> str:
    """Join texts of at most `limit` characters each, and cut the whole to `limit`."""
    text = separator.join(filter(None, texts))
    return text if len(text) <= limit else _cut(text, limit, reach=len(text))


def clean(text: str) -> str:
    """Replace what UTF-8 or a database cannot hold: lone surrogates and NUL."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text


def short_name(name: object) -> str:
    """Return the name of a run or tool, cut to `NAME_CHARS`; "" for anything but a text."""
    if type(name) is str and len(name) <= NAME_CHARS:
        return name
    return clip(name, NAME_CHARS) if isinstance(name, str) else ""


def describe(value: object, limit: int) -> str:
    """Return `str(value)` cut to `limit` characters; the name of its type if `str` fails."""
    try:
        return clip(str(value), limit)
    except Exception:  # noqa: BLE001 - the user's own __str__ may do anything
        return type_name(value)


def type_name(value: object) -> str:
    """Return the name of a value's type in angle brackets, for a value that cannot be read."""
    return f"<{clip(type(value).__name__, _TYPE_CHARS)}>"
