"""Runs embedding models with fastembed: ONNX Runtime, without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from kp_langchain.embedding.hugging_face_hub import announce_download, without_progress_bars
from kp_langchain.embedding.legibility import unreadable_share
from kp_langchain.embedding.local_models import (
    DEFAULT_MODEL,
    FASTEMBED_HINT,
    Loaded,
    LocalModel,
    cannot_load,
    installed,
    local_path,
    revision_of,
)
from kp_langchain.embedding.window import fit
from kp_langchain.errors import MissingExtraError

# Short batches: padding costs more than a batch saves on one thread, and attention takes memory.
_BATCH_TEXTS = 8
_DEFAULT_WINDOW_TOKENS = 256  # as sentence-transformers has it; the model's tokeniser says 512
_TOKENISER_FILES = (
    "config.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


class FastembedEmbedder(LocalModel):
    """Embeds with fastembed: ONNX Runtime on one thread of the CPU, vectors of length 1.

    `model` may be a folder with `tokenizer.json`, `tokenizer_config.json` and `model.onnx` (or
    `onnx/model.onnx`, or one other `.onnx` file), such a file itself (one of several in a folder,
    quantised for instance), or a name that fastembed knows, such as
    `sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2`. A file's tokens are averaged
    (mean pooling). Names come from the local hub cache, else from the hub, and one warning on the
    logger `kp_langchain` says so before a download starts.
    """

    def _open(self, wanted: str | None) -> Loaded:
        return load(wanted)


def can_run(wanted: str) -> bool:
    """Tell whether the model `wanted` (path, or name on the hub) is one for fastembed."""
    path = local_path(wanted)
    return wanted in _known() if path is None else _onnx_file(path) is not None


def downloaded() -> bool:
    """Tell whether the default model's ONNX files are in the local hub cache."""
    return _cached(_known()[DEFAULT_MODEL]) is not None


def load(wanted: str | None) -> Loaded:
    """Load the model `wanted`, or the default one; see `FastembedEmbedder`.

    Raises:
        MissingExtraError: fastembed is not installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    if not installed("fastembed"):
        raise MissingExtraError(f"ONNX embeddings need fastembed: {FASTEMBED_HINT}")
    name = wanted or DEFAULT_MODEL
    try:
        path = local_path(name)
        model, folder = _from_hub(name) if path is None else _from_path(path)
        return _open(model, folder)
    except Exception as error:
        raise cannot_load(name, error) from error


def _open(model: str, folder: Path) -> Loaded:
    import json

    import numpy as np
    from fastembed import TextEmbedding

    embedding = TextEmbedding(
        model, threads=1, specific_model_path=str(folder), providers=["CPUExecutionProvider"]
    )
    window: int | None = _DEFAULT_WINDOW_TOKENS if model == DEFAULT_MODEL else None
    with_limit = folder / "sentence_bert_config.json"
    if with_limit.is_file():
        window = json.loads(with_limit.read_text()).get("max_seq_length", window)
    tokeniser: Any = embedding.model.tokenizer  # type: ignore[attr-defined]
    if window:
        tokeniser.enable_truncation(max_length=window)
    elif tokeniser.truncation:
        window = tokeniser.truncation["max_length"]

    def encode(texts: list[str]) -> object:
        if window:
            texts = [fit(text, tokeniser, window) for text in texts]
        vectors = np.array(list(embedding.embed(texts, batch_size=_BATCH_TEXTS)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths == 0, 1, lengths)

    encode([""])  # the first run prepares buffers
    share = partial(unreadable_share, tokeniser, window=window)
    return Loaded(encode, share, model, "fastembed", revision_of(folder))


def _from_path(path: Path) -> tuple[str, Path]:
    """Return fastembed's name for the model in a folder or file, and the folder."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    file = _onnx_file(path)
    if file is None:
        raise FileNotFoundError(f"no .onnx file, or several, in {path}")
    folder = file.parent if (file.parent / "tokenizer.json").exists() else file.parent.parent
    name = str(file.resolve())
    if name.lower() not in {known.lower() for known in _known()}:
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.MEAN,
            normalization=True,
            sources=ModelSource(url=file.resolve().as_uri()),
            dim=1,  # not used: vectors have the length that the model gives them
            model_file=str(file.relative_to(folder)),
        )
    return name, folder


def _onnx_file(path: Path) -> Path | None:
    if path.suffix == ".onnx":
        return path
    for usual in ("model.onnx", "onnx/model.onnx"):
        if (path / usual).is_file():
            return path / usual
    files = [*path.glob("*.onnx"), *path.glob("onnx/*.onnx")]
    return files[0] if len(files) == 1 else None


def _from_hub(name: str) -> tuple[str, Path]:
    """Return `name` and the folder that holds its files, downloaded if need be."""
    from huggingface_hub import snapshot_download

    description = _known()[name]
    folder = _cached(description)
    if folder is None:
        repository = description["sources"]["hf"]
        announce_download(repository, f"about {description['size_in_GB'] * 1000:.0f} MB")
        with without_progress_bars():
            folder = Path(snapshot_download(repository, allow_patterns=_files(description)))
    return name, folder


def _cached(description: dict[str, Any]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    file = description["model_file"]
    found = try_to_load_from_cache(description["sources"]["hf"], file)
    if not isinstance(found, str):
        return None
    return Path(found).parents[len(Path(file).parts) - 1]


def _files(description: dict[str, Any]) -> list[str]:
    model_file = description["model_file"]
    return [*_TOKENISER_FILES, model_file, f"{model_file}_data", *description["additional_files"]]


def _known() -> dict[str, dict[str, Any]]:
    from fastembed import TextEmbedding

    return {
        description["model"]: description
        for description in TextEmbedding.list_supported_models()
        if description["sources"]["hf"] or description["model"].endswith(".onnx")
    }
