"""Texts that are known to need no redaction: prompts, names of tools and answers occur repeatedly."""

from __future__ import annotations

import hashlib

_SHORT_CHARS = 64
_MAX_TEXTS = 8192


class HarmlessTexts:
    """A bounded set of texts; longer ones are remembered only by their hash.

    Attributes:
        short: The texts of up to 64 characters.
    """

    def __init__(self) -> None:
        self.short: set[str] = set()
        self._hashes: set[bytes] = set()

    def __contains__(self, text: str) -> bool:
        return text in self.short if len(text) <= _SHORT_CHARS else _hash(text) in self._hashes

    def add(self, text: str) -> None:
        """Remember a text; if there are too many, forget the others."""
        if len(text) <= _SHORT_CHARS:
            if len(self.short) >= _MAX_TEXTS:
                self.short.clear()
            self.short.add(text)
        else:
            if len(self._hashes) >= _MAX_TEXTS:
                self._hashes.clear()
            self._hashes.add(_hash(text))

    def clear(self) -> None:
        """Forget all texts."""
        self.short.clear()
        self._hashes.clear()


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
