"""Finders, each with the words that a text must contain for it to match.

One search looks for the words of all finders and for the stems of sensitive names. Most finders can
then be skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

from kp_langchain.redaction.fields import STEMS, without_accents
from kp_langchain.redaction.spans import Span, trie

# ------------------------------------------------------------------ words and stems

JOINT = "\x00"  # between the words of a name
_JOINTS = ("", *" _'-\u2019")


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
    any_joint = f"[{re.escape(''.join(_JOINTS))}]?"
    return trie(sorted(names)).replace(re.escape(JOINT), any_joint)


_STEMS = [
    "".join(part for pair in zip(stem, (*joints, ""), strict=True) for part in pair)
    for stem in STEMS
    for joints in product(_JOINTS, repeat=len(stem) - 1)
]
_vocabulary: dict[str, None] = {}  # in the order in which words were added


def add_to_vocabulary(words: Iterable[str]) -> None:
    """Add words, lower-case texts, to those that `words_in` looks for."""
    _vocabulary.update(dict.fromkeys(words))


@lru_cache(maxsize=8)
def words_in(low: str) -> Words:
    """Return the stems and the words of the vocabulary in a text.

    Args:
        low: A text in lower case.
    """
    search, patterns = _patterns(len(_vocabulary))
    content = without_accents(low).encode("utf-8", "surrogatepass")
    matches = search.find_matches_as_indexes(content, overlapping=True)
    words = frozenset(patterns[number] for number, _, _ in matches)
    stems = _longest([(start, end) for number, start, end in matches if number < len(_STEMS)])
    return Words(stems if low.isascii() else _in_characters(stems, content), words)


def stems_in(low: str) -> list[tuple[int, int]]:
    """Return start and end of the stems of sensitive names in a text in lower case."""
    return words_in(low).stems


def _longest(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the places without those that overlap an earlier or longer one."""
    longest: list[tuple[int, int]] = []
    last_end = 0
    for start, end in sorted(places, key=lambda place: (place[0], -place[1])):
        if start >= last_end:
            longest.append((start, end))
            last_end = end
    return longest


def _in_characters(places: list[tuple[int, int]], content: bytes) -> list[tuple[int, int]]:
    """Return places in UTF-8, which are in order, as places in the text."""
    ends = [0, *(end for place in places for end in place)]
    lengths = (
        len(content[start:end].decode("utf-8", "surrogatepass")) for start, end in pairwise(ends)
    )
    indexes = list(accumulate(lengths))
    return list(zip(indexes[::2], indexes[1::2], strict=True))


@cache
def _patterns(_size: int) -> tuple[BytesAhoCorasick, list[str]]:
    """Return the stems and words, in this order, and the search for them."""
    patterns = [*_STEMS, *_vocabulary]
    contents = [pattern.encode() for pattern in patterns]
    return BytesAhoCorasick(contents, implementation=Implementation.DFA), patterns


# ------------------------------------------------------------------ finders

Find = Callable[[str, str], Iterable[Span]]


class Finder(NamedTuple):
    """A search for one kind of sensitive text.

    Attributes:
        find: Yields the matches in a text. Its arguments are the text and the lower-case text, of
            the same length. It takes time linear in that length.
        words: Lower-case substrings. A text can match only if its lower-case form contains at least
            one of them; empty if no word is required.
        is_named: Whether a text can match only if it contains the stem of a sensitive name.
    """

    find: Find
    words: tuple[str, ...] = ()
    is_named: bool = False


class Finders:
    """Several finders in order; a text is searched only with those that can match it."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders
        self._without_words = [place for place, finder in enumerate(finders) if not finder.words]
        self._by_word: dict[str, list[int]] = defaultdict(list)
        for place, finder in enumerate(finders):
            for word in finder.words:
                self._by_word[word].append(place)
        add_to_vocabulary(self._by_word)

    def find(self, text: str, low: str) -> list[Span]:
        """Return the matches of all finders.

        Args:
            text: Any text.
            low: The text in lower case, of the same length.
        """
        stems, words = words_in(low)
        places = set(self._without_words)
        for word in words & self._by_word.keys():
            places.update(self._by_word[word])
        spans: list[Span] = []
        for place in sorted(places):
            find, _, is_named = self._finders[place]
            if stems or not is_named:
                spans.extend(find(text, low))
        return spans
