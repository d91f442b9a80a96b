"""The text of a trace that is compared, and a memory of exact repeats."""

from __future__ import annotations

import time
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence, Set
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
# The white space of ASCII, as `str.split` has it.
_SPACES = bytes.maketrans(b"\t\n\v\f\r\x1c\x1d\x1e\x1f", b" " * 9)


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
        return sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).digest()
    data = text.encode("ascii").translate(_SPACES)
    while b"  " in data:  # faster than splitting; each pass halves the longest run of spaces
        data = data.replace(b"  ", b" ")
    return sha256(data.strip(b" ")).digest()


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
        # When each was added, and itself; the oldest first.
        self._rows: deque[tuple[float, bytes]] = deque()
        # Of each fingerprint, the keys in the same order.
        self._keys: defaultdict[bytes, deque[str | None]] = defaultdict(deque)

    def find(self, digest: bytes, *, ignore: Set[str] = frozenset()) -> Nearest | None:
        """Return the newest trace whose text has the fingerprint `digest`; None if there is none.

        Args:
            digest: The fingerprint.
            ignore: Keys that do not count.
        """
        self._expire()
        for key in reversed(self._keys.get(digest, ())):
            if key is None or key not in ignore:
                return Nearest(key, 1.0)
        return None

    def add(self, digest: bytes, key: str | None) -> None:
        """Remember a fingerprint under a key."""
        self._rows.append((self._clock(), digest))
        self._keys[digest].append(key)
        if len(self._rows) > self._max_elements:
            self._drop_oldest()

    def find_then_add(self, digests: Sequence[bytes], keys: Sequence[str]) -> list[Nearest | None]:
        """Find and add one fingerprint after the other, in one act, but faster.

        Args:
            digests: The fingerprints.
            keys: Their keys, as many.

        Returns:
            For each the newest trace before it, those of the call included, with the fingerprint;
            None if there is none.
        """
        from kp_langchain.scoring.window import repeats_in_window  # loads numpy

        self._expire()
        known = [digest for _, digest in self._rows]
        positions = repeats_in_window(known, digests, window=self._max_elements).tolist()
        found = [
            None
            if at < 0
            else Nearest(
                self._keys[digest][-1] if at < len(known) else keys[at - len(known)],
                1.0,
            )
            for digest, at in zip(digests, positions, strict=True)
        ]
        newest = slice(-self._max_elements, None)
        for digest, key in zip(digests[newest], keys[newest], strict=True):
            self.add(digest, key)
        return found

    def insert(self, fingerprints: Iterable[tuple[bytes, str]]) -> None:
        """Remember many fingerprints with their keys; a pair that is there already is left out."""
        self._expire()
        known = {(digest, key) for digest, keys in self._keys.items() for key in keys}
        for digest, key in fingerprints:
            if (digest, key) not in known:
                known.add((digest, key))
                self.add(digest, key)

    def _expire(self) -> None:
        if self._ttl_ms is not None:
            now = self._clock()
            while self._rows and (now - self._rows[0][0]) * 1000 >= self._ttl_ms:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, digest = self._rows.popleft()
        keys = self._keys[digest]
        keys.popleft()
        if not keys:
            del self._keys[digest]
