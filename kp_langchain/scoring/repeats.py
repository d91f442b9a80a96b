"""The text of a trace that is compared, and a memory of exact repeats."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Set
from hashlib import sha256
from typing import TYPE_CHECKING

from kp_langchain._forksafe import GatedLock
from kp_langchain.scoring.breakdown import Nearest

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

DEFAULT_MAX_ELEMENTS = 1000

# Soft hyphen, zero-width space, word joiner, byte order mark, and marks of the writing direction;
# not the joiners that change letters, as in Persian.
_INVISIBLE = dict.fromkeys(
    [0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF]
)
# The white space of ASCII but the space itself, as `str.split` knows it.
_OTHER_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
_SPACES = re.compile("  +")


def embedded_text(trace: ReasoningTrace) -> str:
    """Return the text whose embedding stands for the trace.

    The objective, one space, then the contents of all steps joined by one space; a step without
    content counts as an empty text.
    """
    return f"{trace.task.objective} {' '.join([step.content or '' for step in trace.steps])}"


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

    Exact repeats are recognised in every language, with an embedding model or without. The oldest
    is dropped first. Where several threads use it, each holds `lock` meanwhile.

    Args:
        max_elements: How many fingerprints it holds; 1,000 take about 0.3 MB.
        ttl_ms: Age in milliseconds at which a fingerprint no longer counts; None keeps them until
            newer ones need the room.
        clock: Returns seconds that never run backwards.

    Attributes:
        lock: The lock, which also covers the vectors of the same traces.
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
        self.lock = GatedLock()
        self.clear()

    def clear(self) -> None:
        """Forget every fingerprint."""
        # Of each, when it was added, itself, and its key; the oldest first.
        self._rows: list[tuple[float, bytes, str | None]] = []
        self._counts: Counter[bytes] = Counter()

    def find(self, digest: bytes, *, ignore: Set[str] = frozenset()) -> Nearest | None:
        """Return the newest trace whose text has the fingerprint `digest`; None if there is none.

        Args:
            digest: The fingerprint.
            ignore: Keys that do not count.
        """
        self._expire()
        if digest in self._counts:
            for _, other, key in reversed(self._rows):
                if other == digest and (key is None or key not in ignore):
                    return Nearest(key, 1.0)
        return None

    def add(self, digest: bytes, key: str | None) -> None:
        """Remember a fingerprint under a key."""
        self._rows.append((self._clock(), digest, key))
        self._counts[digest] += 1
        if len(self._rows) > self._max_elements:
            self._drop(1)

    def insert(self, fingerprints: Iterable[tuple[bytes, str]]) -> None:
        """Remember many fingerprints with their keys; a pair that is there already is left out."""
        self._expire()
        known = {(digest, key) for _, digest, key in self._rows}
        for digest, key in fingerprints:
            if (digest, key) not in known:
                known.add((digest, key))
                self.add(digest, key)

    def _expire(self) -> None:
        if self._ttl_ms is None:
            return
        now, count = self._clock(), 0
        while count < len(self._rows) and (now - self._rows[count][0]) * 1000 >= self._ttl_ms:
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        """Forget the oldest fingerprints."""
        for _, digest, _ in self._rows[:count]:
            self._counts[digest] -= 1
            if not self._counts[digest]:
                del self._counts[digest]
        del self._rows[:count]
