"""Texts cut to a bound: both ends stay, and a mark between them counts what is left out."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

from kp_langchain._host_exceptions import raised_by_host

NAME_CHARS: Final = 200
"""Characters kept of a name or id: of a run, tool, thread or checkpoint."""

_LEFT_OUT = "characters left out] ..."
_MARK = re.compile(r"\.\.\. \[(\d{1,15}) " + re.escape(_LEFT_OUT))
_TYPE_CHARS = 100


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
    if len(text) <= limit:
        return text
    size, middle = len(text), len(text) // 2
    marks = _marks(text, limit)
    start = stop = middle
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
    parts: list[str] = []
    part_start, start, stop, hidden_chars = 0, 0, 0, 0
    for mark in _MARK.finditer(text) if _LEFT_OUT in text else ():
        if not hidden_chars or mark.start() - margin > stop:
            if hidden_chars:
                parts += (text[part_start:start], _mark(hidden_chars + stop - start))
                part_start = stop
            start, hidden_chars = max(part_start, mark.start() - margin), 0
        stop = min(len(text), mark.end() + margin)
        hidden_chars += _hidden_chars(mark)
    if stop:
        parts += (text[part_start:start], _mark(hidden_chars + stop - start))
    return "".join([*parts, text[stop:]]) if stop else text


def _mark(left_out: int) -> str:
    return f"... [{left_out} {_LEFT_OUT}"


def _hidden_chars(mark: re.Match[str]) -> int:
    """Return how many characters longer the text was before this mark replaced some of it."""
    return int(mark[1]) - len(mark[0])


def _uncut_size(text: str) -> int:
    """Return how many characters a text had before it was cut."""
    return len(text) + sum(map(_hidden_chars, _MARK.finditer(text)))


def _marks(text: str, reach: int) -> list[re.Match[str]]:
    """Return the marks of earlier cuts, no further than `reach` characters from the middle."""
    start, stop = max(0, len(text) // 2 - reach - 50), len(text) // 2 + reach + 50
    if text.find(_LEFT_OUT, start, stop) < 0:  # a hundred times as fast as the expression
        return []
    return list(_MARK.finditer(text, start, stop))


def join_texts(texts: Iterator[str], limit: int, separator: str = "\n\n") -> str:
    """Join texts of at most `limit` characters each, and cut the whole to `limit`."""
    first: list[str] = []
    last: deque[str] = deque()
    room, last_chars, left_out = max(limit, 1), 0, 0
    for text in filter(None, texts):
        if room > 0:
            first.append(text)
            room -= len(text)
            continue
        last.append(text)
        last_chars += len(text)
        while last_chars - len(last[0]) > limit:
            last_chars -= len(last[0])
            left_out += len(separator) + _uncut_size(last.popleft())
    between = [_mark(left_out - len(separator))] if left_out else []
    return clip(separator.join([*first, *between, *last]), limit)


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
    except BaseException as error:  # the user's own __str__ may do anything
        if raised_by_host(error):
            raise
        return type_name(value)


def type_name(value: object) -> str:
    """Return the name of a value's type in angle brackets, for a value that cannot be read."""
    return f"<{clip(type(value).__name__, _TYPE_CHARS)}>"
