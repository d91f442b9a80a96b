"""Embedders: what turns a trace's text into the vector that novelty is measured with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kp_langchain.embedding.identity import identity_of
from kp_langchain.embedding.window import both_ends
from kp_langchain.errors import ConfigError, EmbedderError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TEXT_LIMIT_CHARS = 16_384
"""Longest text given to a model; both ends of a longer one are.

all-MiniLM-L6-v2 reads 256 word pieces, some 1,200 characters.
"""


class BadEmbeddingError(EmbedderError):
    """An embedder returned something other than one finite vector per text."""


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors.

    One that has an attribute `ready` and says False there is still to load its model. A scorer
    then has it loaded on a thread of its own: `embed` is called there first.

    One to which unrelated texts are alike, as they are to E5, BGE and many a provider's model, says
    how much in an attribute `baseline`: their cosine similarity, 0 to below 1. Novelty is counted
    from there. What it remembers belongs to its `model`, `revision` and `baseline`, where it has
    such attributes.
    """

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text, shape (n, dimensions)."""
        ...


class _Adapter:
    """Gives a foreign embedder clean texts and checks what it returns."""

    def __init__(self, foreign: object, call: Callable[[list[str]], object]) -> None:
        self.origin = foreign
        self.identity = identity_of(foreign)
        self._call = call

    @property
    def ready(self) -> bool:
        return bool(getattr(self.origin, "ready", True))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        clean = prepared(texts)
        return checked(self._call(clean), len(clean), type(self.origin).__name__)


def resolve_embedder(embedder: object) -> Embedder | None:
    """Return the embedder that an argument stands for.

    Args:
        embedder: `"auto"` for all-MiniLM-L6-v2 on whatever is installed to run it (one embedder
            serves the whole process; see `models.AutoEmbedder`), or None if nothing is; None for
            none; a LangChain `Embeddings` (anything with `embed_documents`); anything with
            `embed`.

    Returns:
        An embedder that cuts texts to 16,384 characters, both ends, replaces lone surrogates, and
        raises `BadEmbeddingError` unless it gets one finite vector per text; or None.

    Raises:
        ConfigError: The object is none of these, or its `baseline` is no number from 0 to below 1.
    """
    from kp_langchain.embedding import local_models

    if embedder is None:
        return None
    if isinstance(embedder, str) and embedder == "auto":
        return _default_embedder() if local_models.anything_installed() else None
    if isinstance(embedder, local_models.LocalModel | _Adapter):
        return embedder
    if not isinstance(embedder, type):
        for method in ("embed_documents", "embed"):
            call = getattr(embedder, method, None)
            if callable(call):
                return _Adapter(embedder, call)
    given = repr(embedder[:40]) if isinstance(embedder, str) else _kind_of(embedder)
    raise ConfigError(
        f"embedder is {given}; expected 'auto', None, a LangChain Embeddings, "
        "or an object with embed(texts) that returns an array of shape (n, dimensions)"
    )


def prepared(texts: Sequence[str]) -> list[str]:
    """Return texts that every tokeniser takes: cut in the middle, and without lone surrogates.

    Raises:
        TypeError: One text instead of a list.
        ValueError: There are no texts.
    """
    if isinstance(texts, str):
        raise TypeError("embed takes a list of texts, not one text")
    if not len(texts):
        raise ValueError("embed needs at least one text")
    cut = (both_ends(text, TEXT_LIMIT_CHARS) for text in texts)
    return [text.encode("utf-8", "replace").decode("utf-8") for text in cut]


def checked(vectors: object, count: int, source: str) -> NDArray[np.float32]:
    """Return what an embedder returned as float32 of shape (`count`, dimensions).

    Raises:
        BadEmbeddingError: It is something else; the message names `source`.
    """
    import numpy as np

    try:
        given = np.asarray(vectors)
    except Exception as error:
        raise BadEmbeddingError(
            f"{source} returned {_kind_of(vectors)} that is no array of vectors"
        ) from error
    if given.dtype.kind not in "fiu" or given.ndim != 2 or len(given) != count or not given.size:
        raise BadEmbeddingError(
            f"{source} returned {_kind_of(vectors)} of {given.dtype} with shape {given.shape}; "
            f"expected numbers with shape ({count}, dimensions)"
        )
    with np.errstate(all="ignore"):
        array = given.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise BadEmbeddingError(f"{source} returned values that are not finite in float32")
    return array


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


@cache
def _default_embedder() -> Embedder:
    from kp_langchain.embedding.local_models import AutoEmbedder

    return AutoEmbedder()
