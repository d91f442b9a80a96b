"""The words that finders need, and the stems of sensitive names: one search of a text for all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

from kp_langchain.redaction.field_names import STEMS, without_accents
from kp_langchain.redaction.spans import trie

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
    found = search.find_matches_as_indexes(content, overlapping=True)
    words = frozenset(patterns[number] for number, _, _ in found)
    stems = _longest([(start, end) for number, start, end in found if number < len(_STEMS)])
    return Words(stems if low.isascii() else _in_characters(stems, content), words)


def stems_in(low: str) -> list[tuple[int, int]]:
    """Return start and end of the stems of sensitive names in a text in lower case."""
    return words_in(low).stems


def _longest(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the places without those that overlap an earlier or longer one."""
    chosen: list[tuple[int, int]] = []
    last_end = 0
    for start, end in sorted(places, key=lambda place: (place[0], -place[1])):
        if start >= last_end:
            chosen.append((start, end))
            last_end = end
    return chosen


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
    encoded = [pattern.encode() for pattern in patterns]
    return BytesAhoCorasick(encoded, implementation=Implementation.DFA), patterns
