"""The names of embedding models: the default ones, and whether a name means a path or the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kp_langchain.embedding.packages import DEFAULT_WEIGHTS, is_installed

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"

_HUB_NAME = re.compile(r"[\w.\-]+/[\w.\-]+(?<!\.onnx)")


def model_and_source(name: str | None) -> str:
    """Return in words which model is loaded and from where, without importing what loads it.

    Args:
        name: Name on the hub or path; None for the default model.
    """
    if name is not None and local_path(name) is not None:
        return name
    if name is None and is_installed(DEFAULT_WEIGHTS):
        return f"{DEFAULT_MODEL} from the package {DEFAULT_WEIGHTS} or the local hub cache"
    source = "the local hub cache"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}:
        source += f", else {os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}"
    return f"{name or DEFAULT_MODEL} from {source}"


def local_path(name: str) -> Path | None:
    """Return the path that a model's name means, or None if it is a name on the hub.

    `owner/name` is a name on the hub, whatever the working folder holds; `./owner/name` is a
    folder.
    """
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith((".", "~")):
        return path
    return path if not _HUB_NAME.fullmatch(name) and path.exists() else None
