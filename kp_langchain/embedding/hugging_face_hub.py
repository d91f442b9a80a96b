"""Embedding models from the Hugging Face hub: its cache, its downloads, its progress bars."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kp_langchain._logging import warn_once
from kp_langchain.embedding.model_names import MODEL_VARIABLE

_TIMEOUT_S = 10.0


def announce_download(repository: str, size: str) -> None:
    """Check that the hub has a model, and log that its download is about to start.

    Args:
        repository: Name on the hub.
        size: Its size in words, for the message.

    Raises:
        Exception: The hub does not answer or does not know the model. One request with a timeout
            shows this at once; the download's own retries would take a minute.
    """
    from huggingface_hub import HfApi

    HfApi().model_info(repository, timeout=_TIMEOUT_S)
    warn_once(
        f"download {repository}",
        "downloading the embedding model %s from the Hugging Face hub (%s), once; to avoid it, "
        "set %s to a local folder, or pass embedder=None",
        repository,
        size,
        MODEL_VARIABLE,
    )


def model_snapshot(name: str, *, local: bool) -> Path:
    """Return the folder with a sentence-transformers model from the hub: weights and settings.

    Args:
        name: Name on the hub; the owner is sentence-transformers if it names none.
        local: Whether to use only the local cache, without a download.

    Raises:
        Exception: The model is not in the cache, or cannot be downloaded.
    """
    from huggingface_hub import snapshot_download

    repository = name if "/" in name else f"sentence-transformers/{name}"
    patterns = ["*.json", "*.txt", "*.model", "*.safetensors"]
    folder = snapshot_download(
        repository,
        local_files_only=local,
        allow_patterns=patterns,
        ignore_patterns=["onnx/*", "openvino/*"],
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
