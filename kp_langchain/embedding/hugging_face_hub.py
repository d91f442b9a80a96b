"""Embedding models from the Hugging Face hub: its cache, its downloads, its progress bars."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from kp_langchain._logging import warn_once
from kp_langchain.embedding.model_names import MODEL_VARIABLE

_TIMEOUT_S = 3.0
_FIRST_BYTES_S = 10.0


def download(
    repository: str,
    size: str,
    *,
    allow_patterns: list[str],
    ignore_patterns: list[str] | None = None,
) -> Path:
    """Download a model from the hub into its local cache, after a warning that says so.

    A hub that is silent costs seconds: one request with a short timeout shows whether it answers,
    and the first bytes of the model must come soon. The download's own retries would take minutes.

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
    from huggingface_hub.file_download import repo_folder_name

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

    def fetch() -> None:
        try:
            HfApi().model_info(repository, timeout=_TIMEOUT_S)
            folder = snapshot_download(
                repository, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
            future.set_result(folder)
        except BaseException as error:  # noqa: BLE001 - the future hands it to the caller
            future.set_exception(error)

    cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="model"))
    before = _bytes_in(cache)
    future: Future[str] = Future()
    # A daemon: no exit waits for a hub that is silent.
    threading.Thread(target=fetch, name="kp_langchain download", daemon=True).start()
    with without_progress_bars():
        wait([future], timeout=_FIRST_BYTES_S)
        if not future.done() and _bytes_in(cache) == before:
            raise TimeoutError(f"{constants.ENDPOINT} has sent nothing for {_FIRST_BYTES_S:.0f} s")
        return Path(future.result())


def _bytes_in(folder: Path) -> int:
    """Return the size of the files that a download has written so far."""
    with suppress(OSError):  # files are renamed meanwhile
        return sum(file.lstat().st_size for file in folder.glob("[bs]*/**/*"))
    return -1


def model_snapshot(name: str, size: str | None = None) -> Path:
    """Return the folder with a sentence-transformers model from the hub: weights and settings.

    Args:
        name: Name on the hub; the owner is sentence-transformers if it names none.
        size: As for `download`; None to use only the local cache.

    Raises:
        Exception: The model is not in the cache, or cannot be downloaded.
    """
    from huggingface_hub import snapshot_download

    repository = name if "/" in name else f"sentence-transformers/{name}"
    files, other_files = ["*.json", "*.txt", "*.model", "*.safetensors"], ["onnx/*", "openvino/*"]
    if size is not None:
        return download(repository, size, allow_patterns=files, ignore_patterns=other_files)
    folder = snapshot_download(
        repository, local_files_only=True, allow_patterns=files, ignore_patterns=other_files
    )
    return Path(folder)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turn progress bars off inside the block, and restore the host's choice afterwards."""
    constants = importlib.import_module("huggingface_hub.constants")
    hub = importlib.import_module("huggingface_hub.utils")
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:  # the environment has decided
        yield
        return
    were_off = hub.are_progress_bars_disabled()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            hub.enable_progress_bars()
