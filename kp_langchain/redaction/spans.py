"""Spans of sensitive text, placeholders, and what all finders share to search a text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar, cast

# ------------------------------------------------------------------ patterns

Text = TypeVar("Text", str, bytes)


class _LazyPattern:
    """Has the attributes of the compiled pattern, each from its first use on."""

    def __init__(self, expression: Any, flags: int) -> None:
        self._arguments = (expression, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._arguments), name)
        setattr(self, name, value)
        return value


def lazy_pattern(expression: Text, flags: int = 0) -> re.Pattern[Text]:
    """Return a regular expression of this package, not compiled yet.

    Args:
        expression: The expression; it must be valid, for an error comes only with its first use.
        flags: As `re.compile` has them.
    """
    return cast("re.Pattern[Text]", _LazyPattern(expression, flags))


# ------------------------------------------------------------------ spans and characters


class Span(NamedTuple):
    """A part of a text, `text[start:end]`, to redact.

    Attributes:
        start: Index of its first character.
        end: Index after its last character.
        kind: Its kind, as the placeholder names it: "password", "email" ...
    """

    start: int
    end: int
    kind: str


PLACEHOLDER = re.compile(r"\[REDACTED:([a-z0-9_]{1,40})(?:#[a-z0-9]{1,16}){0,2}\]")
"""What replaces sensitive text; the group is its kind."""

# An escape directly before a word, which is not part of it, read backwards: an escape sequence
# written out (\n, \x1b), a percent-encoded character, the end of an ANSI colour code.
_ESCAPE_REVERSED = re.compile(
    r"[nrtfbv]\\|[0-9A-Fa-f]{2}[%x]|m[0-9;]{0,8}\[(?:\x1b|b1x\\|b1000u\\|330\\)"
)


def class_table(*classes: str) -> bytes:
    """Return a table for `character_classes`: 1 for the characters of the first class, and so on.

    Args:
        classes: ASCII characters of each class. Characters in no class map to 0.
    """
    table = bytearray(256)
    for number, characters in enumerate(classes, 1):
        for character in characters:
            table[ord(character)] = number
    return bytes(table)


def character_classes(text: str, table: bytes) -> bytes:
    """Return the class of each character of `text`; takes about 1 ns per character.

    Searching the classes is many times faster than a regular expression whose first character
    occurs every few letters. Characters outside ASCII count as question marks.
    """
    return text.encode("ascii", "replace").translate(table)


DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOKEN_CLASS = class_table(DIGITS + LETTERS + "_-./+=~@:%!$|?")


def long_runs(classes: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of at least `length` characters of non-zero class.

    A run starts with `length` characters of the first class.
    """
    run = b"\x01" * length
    end = 0
    while (start := classes.find(run, end)) >= 0:
        end = classes.find(b"\x00", start + length)
        if end < 0:
            end = len(classes)
        yield start, end


def occurrences(text: str, words: Iterable[str]) -> Iterator[int]:
    """Yield the start of each occurrence of each of `words`, one word after the other."""
    for word in words:
        if word in text:
            at = text.find(word)
            while at >= 0:
                yield at
                at = text.find(word, at + len(word))


def trie(words: Iterable[str]) -> str:
    """Return one expression that matches any of `words` and examines each character once."""
    branches: dict[str, list[str]] = {}
    ends = False
    for word in words:
        if word:
            branches.setdefault(word[0], []).append(word[1:])
        else:
            ends = True
    parts = [re.escape(first) + trie(rest) for first, rest in sorted(branches.items())]
    if not parts:
        return ""
    body = parts[0] if len(parts) == 1 and not ends else f"(?:{'|'.join(parts)})"
    return body + "?" if ends else body


def placeholder(kind: str) -> str:
    """Return the text that replaces a match of `kind`."""
    return f"[REDACTED:{kind}]"


def distinct_key(key: Any, existing: dict[Any, Any]) -> Any:
    """Return `key`, numbered if it exists already, so that no entry is lost."""
    if key not in existing or not isinstance(key, (str, bytes)):
        return key
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    number = len(existing) + 1
    while True:
        new_key: Any = f"{text}[REDACTED:same#{number}]"
        if PLACEHOLDER.fullmatch(text) is not None:
            new_key = f"{text[:-1].split('#')[0]}#{number}]"
        if isinstance(key, bytes):
            new_key = new_key.encode("utf-8", "surrogateescape")
        if new_key not in existing:
            return new_key
        number += 1


def starts_word(text: str, start: int) -> bool:
    """Return whether a word can start at `start`: not directly after an ASCII letter or digit.

    Only ASCII counts, so a key directly after Chinese or Japanese text is still found. The last
    letters of an escape do not count.
    """
    if start == 0:
        return True
    before = text[start - 1]
    if not (before.isascii() and before.isalnum()):
        return True
    return escape_length_before(text, start) > 0


def escape_length_before(text: str, end: int) -> int:
    r"""Return the length of the escape that ends at `end` (`\n`, `%3D`, a colour code), or 0."""
    match = _ESCAPE_REVERSED.match(text[max(0, end - 16) : end][::-1])
    return match.end() if match else 0


def word_set(text: str | Iterable[str]) -> frozenset[str]:
    """Return the words of `text`, which are separated by white space."""
    return frozenset((text if isinstance(text, str) else " ".join(text)).split())


# ------------------------------------------------------------------ tables


def load_table(name: str) -> dict[str, Any]:
    """Return the content of the table `NAME.toml` of the folder `tables`.

    Args:
        name: The name of the file, without its ending.
    """
    return tomllib.loads(files(__package__).joinpath(f"tables/{name}.toml").read_text("utf-8"))
