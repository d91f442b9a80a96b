"""Finders, each with the symbols and words that a text must contain for it to match.

Most texts contain few symbols, so that most finders can be skipped without searching the text.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
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

    def may_match(self, symbols: Symbols) -> bool:
        """Return whether a text with these symbols can match."""
        return any(symbols.issuperset(map(ord, alternative)) for alternative in self.symbols)


class _Choice(NamedTuple):
    """The finders for texts with certain symbols, with the places of each in the order of all.

    Attributes:
        without_words: Those that require no word.
        by_word: Those that require a word of the vocabulary, by each of their words.
        by_other_words: Those that require other words, and these words.
    """

    without_words: list[tuple[int, Finder]]
    by_word: dict[str, list[tuple[int, Finder]]]
    by_other_words: list[tuple[int, Finder, tuple[str, ...]]]


class Finders:
    """Several finders in order; a text is searched only with those that can match it."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders
        self._vocabularies = [add_to_vocabulary(finder.words) for finder in finders]
        self._for_symbols = lru_cache(maxsize=8192)(self._choose)

    def __iter__(self) -> Iterator[Finder]:
        return iter(self._finders)

    def find(self, text: str, low: str, symbols: Symbols) -> list[Span]:
        """Return the matches of all finders.

        Args:
            text: Any text.
            low: The text in lower case, of the same length.
            symbols: The symbols of the text, from `symbols_in`.
        """
        choice = self._for_symbols(symbols)
        stems, words = words_in(low)
        chosen = dict(choice.without_words)
        for word in choice.by_word.keys() & words:
            chosen.update(choice.by_word[word])
        for place, finder, others in choice.by_other_words:
            for word in others:
                if word in low:
                    chosen[place] = finder
                    break
        length = len(text)
        spans: list[Span] = []
        for _, finder in sorted(chosen.items()):
            if length >= finder.shortest and (stems or not finder.is_named):
                spans.extend(finder.find(text, low))
        return spans

    def _choose(self, symbols: Symbols) -> _Choice:
        choice = _Choice([], {}, [])
        for place, finder in enumerate(self._finders):
            if not finder.may_match(symbols):
                continue
            vocabulary = self._vocabularies[place]
            for word in vocabulary:
                choice.by_word.setdefault(word, []).append((place, finder))
            others = tuple(word for word in finder.words if word not in vocabulary)
            if others:
                choice.by_other_words.append((place, finder, others))
            elif not vocabulary:
                choice.without_words.append((place, finder))
        return choice


_AS_ONE_DIGIT = bytes(ord(ANY_DIGIT) if chr(byte) in DIGITS else byte for byte in range(256))
_NOT_SYMBOLS = bytes(byte for byte in range(256) if chr(byte) not in string.punctuation + DIGITS)
# A character outside ASCII may be a digit.
_NON_ASCII_SYMBOLS = frozenset(map(ord, NON_ASCII + ANY_DIGIT))


def symbols_in(text: str) -> Symbols:
    """Return the symbols in `text` as character codes; takes about 2 ns per character."""
    symbols = frozenset(text.encode("ascii", "replace").translate(_AS_ONE_DIGIT, _NOT_SYMBOLS))
    return symbols if text.isascii() else symbols | _NON_ASCII_SYMBOLS
