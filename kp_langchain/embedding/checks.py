"""Guards around every embedder: clean the texts that go in, check the vectors that come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kp_langchain.embedding.window import both_ends
from kp_langchain.errors import BadEmbeddingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TEXT_LIMIT_CHARS = 16_384
"""Longest text that a model receives; a longer one is cut to its two ends.

all-MiniLM-L6-v2 reads 256 word pieces, some 1,200 characters.
"""


def clean_texts(texts: Sequence[str]) -> list[str]:
    """Return texts that every tokeniser accepts: cut in the middle, without lone surrogates.

    Raises:
        TypeError: `texts` is one text instead of a list.
        ValueError: `texts` is empty.
    """
    if isinstance(texts, str):
        raise TypeError("embed takes a list of texts, not one text")
    if not len(texts):
        raise ValueError("embed needs at least one text")
    cut = (both_ends(text, TEXT_LIMIT_CHARS) for text in texts)
    return [text.encode("utf-8", "replace").decode("utf-8") for text in cut]


def check_vectors(vectors: object, count: int, source: str) -> NDArray[np.float32]:
    """Return an embedder's vectors as float32 of shape (`count`, dimensions).

    Args:
        vectors: What the embedder returned.
        count: The number of texts that it received.
        source: The embedder's name, for the message.

    Raises:
        BadEmbeddingError: The vectors are not numbers of that shape, or not finite.
    """
    import numpy as np

    try:
        array = np.asarray(vectors)
    except Exception as error:
        raise BadEmbeddingError(
            f"{source} returned {kind_of(vectors)} that is not an array of vectors"
        ) from error
    if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != count or not array.size:
        raise BadEmbeddingError(
            f"{source} returned {kind_of(vectors)} of {array.dtype} with shape {array.shape}; "
            f"expected numbers with shape ({count}, dimensions)"
        )
    with np.errstate(all="ignore"):
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise BadEmbeddingError(f"{source} returned values that are not finite in float32")
    return array


def kind_of(value: object) -> str:
    """Return what kind of thing a value is, for a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
