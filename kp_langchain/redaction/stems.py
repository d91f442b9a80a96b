"""The words that finders need, and the stems of sensitive names: one search of a text for all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from kp_langchain.redaction.field_names import STEMS, without_accents
from kp_langchain.redaction.spans import trie

JOINT = "\x00"  # between the words of a name
_ANY_JOINT = "[ _'\\-\u2019]?"


class Words(NamedTuple):
    """What a text contains.

    Attributes:
        stems: Start and end of the stems of sensitive names; every such name contains one.
        words: The words that finders need; see `add_to_vocabulary`.
    """

    stems: list[tuple[int, int]]
    words: frozenset[str]


def expression_of_names(names: Iterable[str]) -> str:
    """Return an expression for any of `names`, whose words are separated by `JOINT`."""
    return trie(sorted(names)).replace(re.escape(JOINT), _ANY_JOINT)


_NAMES = list(map(JOINT.join, STEMS))
_LATIN_NAMES = [name for name in _NAMES if name[0].isascii()]
_LATIN_STEM = re.compile(expression_of_names(_LATIN_NAMES))
# One expression for the first letters of all scripts would be three times slower.
_OTHER_STEM = re.compile(expression_of_names(name for name in _NAMES if not name[0].isascii()))
_OTHER_WORD = re.compile("[\u0370-\u1dff\u2e80-\ud7ff]+")
_LONGEST_STEM = 24
_vocabulary: set[str] = set()


def add_to_vocabulary(words: Iterable[str]) -> frozenset[str]:
    """Add words to those that `words_in` looks for.

    Args:
        words: Lower-case texts.

    Returns:
        Those of `words` that it can look for: they begin with a letter of ASCII.
    """
    letters = frozenset(word for word in words if "a" <= word[0] <= "z")
    _vocabulary.update(letters)
    return letters


@lru_cache(maxsize=8)
def words_in(low: str) -> Words:
    """Return the stems and the words of the vocabulary in a text.

    Args:
        low: A text in lower case.
    """
    plain = without_accents(low)
    search = _expression(len(_vocabulary)).search
    stems: list[tuple[int, int]] = []
    words: set[str] = set()
    last_end = 0
    match = search(plain)
    while match is not None:
        start = match.start()
        stem_length, found = _meaning(match.group(), len(_vocabulary))
        words |= found
        if stem_length and start >= last_end:
            last_end = start + stem_length
            stems.append((start, last_end))
        match = search(plain, start + 1)
    if not plain.isascii():
        stems += [
            stem.span()
            for word in _OTHER_WORD.finditer(plain)
            for stem in _OTHER_STEM.finditer(plain, word.start(), word.end() + _LONGEST_STEM)
        ]
        stems.sort()
    return Words(stems, frozenset(words))


def stems_in(low: str) -> list[tuple[int, int]]:
    """Return start and end of the stems of sensitive names in a text in lower case."""
    return words_in(low).stems


@cache
def _expression(_size: int) -> re.Pattern[str]:
    return re.compile(expression_of_names([*_LATIN_NAMES, *_vocabulary]))


@lru_cache(maxsize=1024)
def _meaning(match: str, _size: int) -> tuple[int, frozenset[str]]:
    """Return the length of the stem with which a match begins, and the words."""
    stem = _LATIN_STEM.match(match)
    words = frozenset(word for word in _vocabulary if match.startswith(word))
    return stem.end() if stem else 0, words
