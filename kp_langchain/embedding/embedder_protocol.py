"""`Embedder`: the protocol of embedding models, and the adapters for models of other kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kp_langchain.embedding import packages
from kp_langchain.embedding.auto_embedder import AutoEmbedder
from kp_langchain.embedding.checks import check_vectors, clean_texts, kind_of
from kp_langchain.embedding.identity import identity_of
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors.

    An embedder whose attribute `ready` is False still has to load its model. A scorer then loads
    it on a separate thread, by calling `embed` there.

    To some embedders unrelated texts are alike: E5, BGE, and many providers' models. Such an
    embedder states their cosine similarity, 0 to below 1, in an attribute `baseline`; novelty is
    counted from there. Its vectors belong to its `model`, `revision` and `baseline`, if it has
    these attributes.
    """

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text, shape (n, dimensions)."""
        ...


class _Adapter:
    """Gives a foreign embedder clean texts and checks the vectors that it returns."""

    def __init__(self, foreign: object, call: Callable[[list[str]], object]) -> None:
        self.origin = foreign
        self.identity = identity_of(foreign)
        self._call = call

    @property
    def ready(self) -> bool:
        return bool(getattr(self.origin, "ready", True))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        clean = clean_texts(texts)
        return check_vectors(self._call(clean), len(clean), type(self.origin).__name__)


def resolve_embedder(embedder: object) -> Embedder | None:
    """Return the embedder that an argument stands for.

    Args:
        embedder: `"auto"` for all-MiniLM-L6-v2 on whichever package is installed to run it (one
            embedder serves the whole process; see `AutoEmbedder`), or for None if no such package
            is installed; None for no embedder; a LangChain `Embeddings` (anything with
            `embed_documents`); anything with `embed`.

    Returns:
        An embedder that cuts longer texts to both ends, 16,384 characters in all, replaces lone
        surrogates, and raises `BadEmbeddingError` unless it gets one finite vector per text; or
        None.

    Raises:
        ConfigError: The object is none of these, or its `baseline` is not a number from 0 to
            below 1.
    """
    if embedder is None:
        return None
    if isinstance(embedder, str) and embedder == "auto":
        return _default_embedder() if packages.is_any_installed() else None
    if isinstance(embedder, LocalModel | _Adapter):
        return embedder
    if not isinstance(embedder, type):
        for method in ("embed_documents", "embed"):
            call = getattr(embedder, method, None)
            if callable(call):
                return _Adapter(embedder, call)
    description = repr(embedder[:40]) if isinstance(embedder, str) else kind_of(embedder)
    raise ConfigError(
        f"embedder is {description}; expected 'auto', None, a LangChain Embeddings, "
        "or an object with embed(texts) that returns an array of shape (n, dimensions)"
    )


@cache
def _default_embedder() -> Embedder:
    return AutoEmbedder()
