"""`RepeatMemory`: the newest texts as hashes, to find exact repeats.

Exact repeats are found in every language, with an embedding model or without.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Set
from hashlib import sha256
from operator import itemgetter

from kp_langchain._forksafe import GatedLock
from kp_langchain.scoring.breakdown import Nearest

DEFAULT_MAX_ELEMENTS = 1000
# Soft hyphen, zero-width space, word joiner, byte order mark, and marks of the writing direction;
# not the joiners that change letters, as in Persian.
_INVISIBLE = dict.fromkeys(
    [0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF]
)


# The white space of ASCII but the space itself, as `str.split` knows it.
_OTHER_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_SPACES = re.compile("  +")


def fingerprint(text: str) -> bytes:
    """Return the hash of a text; equal for texts that look the same to a reader.

    Composed and decomposed characters are the same (NFC), and so is all white space; characters
    without width or meaning, such as the byte order mark, are left out. Upper and lower case,
    superscripts, and half and full width are different: `Foo` and `foo`, `2⁵` and `25` may mean
    different things, and an embedding model measures how similar they are.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.translate(_INVISIBLE))
    return sha256(_single_spaced(text).encode("utf-8", "surrogatepass")).digest()


def _single_spaced(text: str) -> str:
    """Return a text with one space in place of each white space, and none at its ends."""
    if not text.isascii():
        return " ".join(text.split())
    # Twice as fast as splitting, or much faster for a text with single spaces already.
    for character in _OTHER_SPACES:
        text = text.replace(character, " ")
    if "  " in text:  # found much sooner than the expression looks for it
        text = _SPACES.sub(" ", text)
    return text.strip(" ")


class RepeatMemory:
    """A bounded memory of fingerprints, with the keys of their traces.

    The oldest is dropped first. Where several threads use it, each holds `section` meanwhile.

    Args:
        max_elements: How many fingerprints it holds; 1,000 take about 0.6 MB.
        ttl_ms: Age in milliseconds at which a fingerprint no longer counts; None keeps them until
            newer ones need the room.
        clock: Returns seconds that never run backwards.

    Attributes:
        section: What a thread holds; also the vectors of the same traces change inside it.
    """

    def __init__(
        self,
        max_elements: int = DEFAULT_MAX_ELEMENTS,
        ttl_ms: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_elements = max_elements
        self._ttl_ms = ttl_ms
        self._clock = clock
        self.section = GatedLock()
        self.clear()

    def clear(self) -> None:
        """Forget every fingerprint."""
        # Number, fingerprint and time of each, oldest first; by fingerprint the keys by number.
        self._order: deque[tuple[int, bytes, float]] = deque()
        self._keys: dict[bytes, dict[int, str | None]] = {}
        self._count = 0

    def find(self, digest: bytes, *, ignore: Set[str] = frozenset()) -> Nearest | None:
        """Return the newest trace whose text has the fingerprint `digest`; None if there is none.

        Args:
            digest: The fingerprint.
            ignore: Keys that do not count.
        """
        self._expire()
        for key in reversed(self._keys.get(digest, {}).values()):
            if key is None or key not in ignore:
                return Nearest(key, 1.0)
        return None

    def add(self, digest: bytes, key: str | None) -> None:
        """Remember a fingerprint under a key."""
        self._append(digest, key, self._clock())

    def insert(self, entries: Iterable[tuple[bytes, str, float]]) -> None:
        """Remember fingerprints that are not new, each in its place by age.

        One that is remembered under the same key already is left out.

        Args:
            entries: For each its fingerprint, its key, and its age in seconds. Of equally old ones,
                the last is the newest.
        """
        self._expire()
        now = self._clock()
        new = {
            (digest, key): now - age_s
            for digest, key, age_s in entries
            if key not in self._keys.get(digest, {}).values()
        }
        placed = [(added_at, digest, key) for (digest, key), added_at in new.items()]
        oldest = min(new.values(), default=math.inf)
        later: list[tuple[float, bytes, str | None]] = []
        while self._order and self._order[-1][2] > oldest:
            number, digest, added_at = self._order.pop()
            later.append((added_at, digest, self._forget(number, digest)))
        for added_at, digest, key in sorted([*reversed(later), *placed], key=itemgetter(0)):
            self._append(digest, key, added_at)
        self._expire()

    def find_then_add(
        self, digest: bytes, key: str | None, *, ignore: Set[str] = frozenset()
    ) -> Nearest | None:
        """Do what `find` and then `add` do."""
        repeat = self.find(digest, ignore=ignore)
        self.add(digest, key)
        return repeat

    def _expire(self) -> None:
        if self._ttl_ms is None:
            return
        now = self._clock()
        while self._order and (now - self._order[0][2]) * 1000 >= self._ttl_ms:
            self._drop_oldest()

    def _append(self, digest: bytes, key: str | None, added_at: float) -> None:
        self._count += 1
        self._order.append((self._count, digest, added_at))
        self._keys.setdefault(digest, {})[self._count] = key
        if len(self._order) > self._max_elements:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        number, digest, _ = self._order.popleft()
        self._forget(number, digest)

    def _forget(self, number: int, digest: bytes) -> str | None:
        """Remove what `_order` no longer lists; return its key."""
        keys = self._keys[digest]
        key = keys.pop(number)
        if not keys:
            del self._keys[digest]
        return key
