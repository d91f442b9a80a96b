"""Finders, each with the symbols and words that a text must contain for it to match.

Most texts contain few symbols, so that most finders can be skipped without searching the text.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from kp_langchain.redaction.spans import DIGITS, Span
from kp_langchain.redaction.stems import add_to_vocabulary, words_in

Find = Callable[[str, str], Iterable[Span]]
Symbols = frozenset[int]

ANY_DIGIT = "0"
NON_ASCII = "\x80"


class Finder(NamedTuple):
    """A search for one kind of sensitive text.

    Attributes:
        find: Yields the matches in a text. Its arguments are the text and the lower-case text, of
            the same length. It takes time linear in that length.
        symbols: Alternative sets of characters. A text can match only if it contains all characters
            of at least one set. The characters are those of `string.punctuation`, `ANY_DIGIT` for
            any digit, and `NON_ASCII` for any character outside ASCII.
        words: Lower-case substrings. A text can match only if its lower-case form contains at least
            one of them; empty if no word is required.
        shortest: The number of characters of the shortest text that can match.
        is_named: Whether a text can match only if it contains the stem of a sensitive name.
    """

    find: Find
    symbols: tuple[str, ...] = ("",)
    words: tuple[str, ...] = ()
    shortest: int = 1
    is_named: bool = False


def _codes(characters: str) -> Symbols:
    return frozenset(map(ord, characters))


class Finders:
    """Several finders in order; a text is searched only with those that can match it."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders
        self._symbols = [tuple(map(_codes, finder.symbols)) for finder in finders]
        self._without_words = [place for place, finder in enumerate(finders) if not finder.words]
        self._by_word: dict[str, list[int]] = defaultdict(list)
        for place, finder in enumerate(finders):
            for word in finder.words:
                self._by_word[word].append(place)
        add_to_vocabulary(self._by_word)

    def __iter__(self) -> Iterator[Finder]:
        return iter(self._finders)

    def find(self, text: str, low: str, symbols: Symbols) -> list[Span]:
        """Return the matches of all finders.

        Args:
            text: Any text.
            low: The text in lower case, of the same length.
            symbols: The symbols of the text, from `symbols_in`.
        """
        stems, words = words_in(low)
        places = self._without_words
        if not self._by_word.keys().isdisjoint(words):
            more = (self._by_word.get(word, ()) for word in words)
            places = sorted({*places, *chain.from_iterable(more)})
        length = len(text)
        spans: list[Span] = []
        for place in places:
            find, _, _, shortest, is_named = self._finders[place]
            if length >= shortest and (stems or not is_named):
                for alternative in self._symbols[place]:
                    if alternative <= symbols:
                        spans.extend(find(text, low))
                        break
        return spans


_AS_ONE_DIGIT = bytes(ord(ANY_DIGIT) if chr(byte) in DIGITS else byte for byte in range(256))
_NOT_SYMBOLS = bytes(byte for byte in range(256) if chr(byte) not in string.punctuation + DIGITS)
# A character outside ASCII may be a digit.
_NON_ASCII_SYMBOLS = _codes(NON_ASCII + ANY_DIGIT)


def symbols_in(text: str) -> Symbols:
    """Return the symbols in `text` as character codes; takes about 2 ns per character."""
    symbols = frozenset(text.encode("ascii", "replace").translate(_AS_ONE_DIGIT, _NOT_SYMBOLS))
    return symbols if text.isascii() else symbols | _NON_ASCII_SYMBOLS
