"""Where sensitive names may stand in a text: one search, whose result all finders of names share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from kp_langchain.redaction.field_names import STEMS, without_accents
from kp_langchain.redaction.spans import trie

JOINT = "\x00"  # between the words of a name
_ANY_JOINT = "[ _'\\-\u2019]?"


def expression_of_names(names: Iterable[str]) -> str:
    """Return an expression for any of `names`, whose words are separated by `JOINT`."""
    return trie(sorted(names)).replace(re.escape(JOINT), _ANY_JOINT)


# One expression for the first letters of all scripts would be three times slower.
_NAMES = list(map(JOINT.join, STEMS))
_LATIN_STEM = re.compile(expression_of_names(name for name in _NAMES if name[0].isascii()))
_OTHER_STEM = re.compile(expression_of_names(name for name in _NAMES if not name[0].isascii()))
_OTHER_WORD = re.compile("[\u0370-\u1dff\u2e80-\ud7ff]+")
_LONGEST_STEM = 24


@lru_cache(maxsize=8)
def stems_in(low: str) -> list[tuple[int, int]]:
    """Return start and end of the stems of sensitive names; every such name contains one.

    Args:
        low: A text in lower case.
    """
    plain = without_accents(low)
    stems = [stem.span() for stem in _LATIN_STEM.finditer(plain)]
    if not plain.isascii():
        stems += [
            stem.span()
            for word in _OTHER_WORD.finditer(plain)
            for stem in _OTHER_STEM.finditer(plain, word.start(), word.end() + _LONGEST_STEM)
        ]
        stems.sort()
    return stems
