"""The names of embedding models: the default ones, and whether a name means a path or the hub."""

from __future__ import annotations

import re
from pathlib import Path

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"

_HUB_NAME = re.compile(r"[\w.\-]+/[\w.\-]+(?<!\.onnx)")


def local_path(name: str) -> Path | None:
    """Return the path that a model's name means, or None if it is a name on the hub.

    `owner/name` is a name on the hub, whatever the working folder holds; `./owner/name` is a
    folder.
    """
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith((".", "~")):
        return path
    return path if not _HUB_NAME.fullmatch(name) and path.exists() else None
