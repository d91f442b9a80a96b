"""Finders, each with the signs and words without which it finds nothing.

Most texts hold few signs, and those say at once which finders need not look.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from kp_langchain.redaction.spans import DIGITS, Span

Find = Callable[[str, str], Iterable[Span]]
Signs = frozenset[int]

ANY_DIGIT = "0"
BEYOND_ASCII = "\x80"


class Finder(NamedTuple):
    """Looks for one kind of thing.

    Attributes:
        find: Yields what it finds in a text. It is given the text and the same in lower case, of
            the same length; its work grows linearly with that.
        signs: Alternatives, each some characters: in a text that lacks one of each there is nothing
            of the kind. They are of `string.punctuation`, or `ANY_DIGIT`, or `BEYOND_ASCII` for any
            character that is not ASCII.
        words: Likewise, parts of a text in lower case, of which one must stand in it; none if
            there are no such.
    """

    find: Find
    signs: tuple[str, ...] = ("",)
    words: tuple[str, ...] = ()

    def may_find(self, signs: Signs) -> bool:
        """Tell whether a text with these signs may hold something of the kind."""
        return any(signs.issuperset(map(ord, alternative)) for alternative in self.signs)


class Finders:
    """Several finders, of which a text is shown to those that may find something, in their order."""

    def __init__(self, *finders: Finder) -> None:
        self._finders = finders
        self._for_signs = lru_cache(maxsize=1024)(self._choose)

    def __iter__(self) -> Iterator[Finder]:
        return iter(self._finders)

    def find(self, text: str, low: str, signs: Signs) -> list[Span]:
        """Return what they find in a text with these signs."""
        spans: list[Span] = []
        for find, words in self._for_signs(signs):
            for word in words:
                if word in low:
                    break
            else:
                if words:
                    continue
            spans.extend(find(text, low))
        return spans

    def _choose(self, signs: Signs) -> list[tuple[Find, tuple[str, ...]]]:
        return [(finder.find, finder.words) for finder in self._finders if finder.may_find(signs)]


_AS_ONE_DIGIT = bytes(ord(ANY_DIGIT) if chr(byte) in DIGITS else byte for byte in range(256))
_NO_SIGNS = bytes(byte for byte in range(256) if chr(byte) not in string.punctuation + DIGITS)
# There are other digits beyond ASCII.
_WITH_OTHERS = frozenset(map(ord, BEYOND_ASCII + ANY_DIGIT))


def signs_of(text: str) -> Signs:
    """Return the signs that stand in `text`, as character codes; about 2 ns a character."""
    signs = frozenset(text.encode("ascii", "replace").translate(_AS_ONE_DIGIT, _NO_SIGNS))
    return signs if text.isascii() else signs | _WITH_OTHERS
