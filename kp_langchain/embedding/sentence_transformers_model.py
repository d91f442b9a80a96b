"""Loads embedding models on sentence-transformers, that is torch.

sentence-transformers and transformers import what a folder's settings name: a Python file beside
them, or an installed module. Some versions do so without being asked, so `refuse_code` checks a
folder before they see it: it may hold weights and settings, and nothing more.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kp_langchain.embedding.model_files import (
    DEFAULT_MODEL,
    DEFAULT_WEIGHTS,
    SENTENCE_TRANSFORMERS_HINT,
    LoadedModel,
    download,
    is_installed,
    load_error,
    local_path,
)
from kp_langchain.errors import MissingExtraError, ModelLoadError

_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_OTHER_FILES = ["onnx/*", "openvino/*"]
# Passed to the constructor: no code, and no pickled weights.
_NO_CODE: dict[str, Any] = {
    "trust_remote_code": False,
    "model_kwargs": {"use_safetensors": True},
}

_MODULE = re.compile(
    r"sentence_transformers(?:\.\w+)*\."
    r"(?:Transformer|Pooling|Normalize|Dense|LayerNorm|Dropout|StaticEmbedding|WeightedLayerPooling)"
)
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(?:activation|linear)\.\w+")
# Settings that transformers passes on, under the names that its several versions use.
_OPTIONS = (
    "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args",
    "config_kwargs",
)  # fmt: skip
_HARMLESS_OPTIONS = frozenset(
    "add_pooling_layer attn_implementation do_lower_case dtype max_length model_max_length padding "
    "padding_side torch_dtype truncation truncation_side use_fast".split()
)
_ATTENTION = frozenset(["eager", "sdpa", "flash_attention_2", "flex_attention", None])
_CODE_KEYS = ("auto_map", "trust_remote_code", "quantization_config", "custom_pipelines")
_LARGEST_BYTES = 16 << 20
_DEEPEST = 50


def load(name: str | None) -> LoadedModel:
    """Load a model, or the default one, in this process; see `SentenceTransformerEmbedder`.

    It sets torch to one thread for all of the process.

    Args:
        name: Name on the hub or path; None for the default model.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        ModelLoadError: The model cannot be found, downloaded or loaded.
    """
    if not is_installed("sentence_transformers"):
        raise MissingExtraError(
            f"this embedding model needs sentence-transformers: {SENTENCE_TRANSFORMERS_HINT}"
        )
    is_default, name = name is None, name or DEFAULT_MODEL
    try:
        if is_default and is_installed(DEFAULT_WEIGHTS):
            name = str(importlib.import_module(DEFAULT_WEIGHTS).get_model_path())
        path = local_path(name)
        # Before the imports, which take seconds: a download is announced at once.
        folder = _snapshot(name) if path is None else path
        try:
            model = _open(folder)
        except ModelLoadError:
            raise
        except Exception:
            if path is not None:
                raise
            folder = _download(name)  # the cache may hold a part only
            model = _open(folder)
    except ModelLoadError:
        raise
    except Exception as error:
        raise load_error(name, error) from error

    # Tokenisers written in Python have no backend and do not report the offsets of their tokens.
    tokeniser: Any = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    window: int | None = None if tokeniser is None else model.max_seq_length

    def run(texts: list[str]) -> object:
        return model.encode(
            texts,
            batch_size=1,  # as in `fastembed_model`
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )

    return LoadedModel(run, tokeniser, window, name, "sentence-transformers", folder)


def _snapshot(name: str) -> Path:
    """Return the folder of a model on the hub: in the local cache if it is there."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            _repository(name),
            local_files_only=True,
            allow_patterns=_FILES,
            ignore_patterns=_OTHER_FILES,
        )
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the hub may have it
        return _download(name)
    return Path(folder)


def _download(name: str) -> Path:
    size = "about 90 MB" if name == DEFAULT_MODEL else "size unknown"
    return download(_repository(name), size, allow_patterns=_FILES, ignore_patterns=_OTHER_FILES)


def _repository(name: str) -> str:
    """Return a model's full name on the hub; the owner is sentence-transformers if it has none."""
    return name if "/" in name else f"sentence-transformers/{name}"


def _open(folder: Path) -> Any:
    refuse_code(folder)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **_NO_CODE)


# ------------------------------------------------------------------ what a folder may hold


def refuse_code(folder: Path) -> None:
    """Check that loading a model's folder runs no code that the folder brings or names.

    Args:
        folder: The folder.

    Raises:
        ModelLoadError: The folder brings or names code, or a file of it cannot be read; the
            message names the file and the setting.
    """
    modules = _modules(folder)
    for place in dict.fromkeys([folder, *modules]):
        if (place / "adapter_config.json").exists():
            raise _refusal(place / "adapter_config.json", "adapters bring a model of their own")
        pickled = sorted(path.name for path in place.glob("pytorch_model*.bin"))
        if pickled and not any(place.glob("*.safetensors")):
            raise _refusal(
                place / pickled[0],
                "pickled weights can run code; save them as model.safetensors: "
                "SentenceTransformer(...).save(folder)",
            )
        for file in sorted(place.glob("*config*.json")):
            _check_config(file, _read(file))


def _modules(folder: Path) -> list[Path]:
    """Return the folders of a model's modules, all of known types."""
    file = folder / "modules.json"
    if not file.exists():
        return []
    modules = _read(file)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise _refusal(file, "it is not a list of modules")
    places = []
    for module in modules:
        kind, path = module.get("type"), module.get("path")
        if not isinstance(kind, str) or not _MODULE.fullmatch(kind):
            raise _refusal(file, f"its module {kind!r:.200} is none of those that are known here")
        if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
            raise _refusal(file, f"its path {path!r:.200} leads out of the folder")
        places.append(folder / path)
    return places


def _check_config(file: Path, config: Any) -> None:
    if not isinstance(config, dict):
        return
    for key, value in _entries(config):
        if key in _CODE_KEYS and value:
            raise _refusal(file, f"its {key} asks for code")
        if key in ("attn_implementation", "_attn_implementation") and not _is_known(value):
            raise _refusal(file, f"its {key} {value!r:.200} is none of those that are known here")
    for key in _OPTIONS:
        options = config.get(key) or {}
        if not isinstance(options, dict) or not _HARMLESS_OPTIONS.issuperset(options):
            raise _refusal(file, f"its {key} hold more than is known here to be harmless")
    activation = config.get("activation_function", "")
    # A name without a dot is one of transformers' own.
    if not isinstance(activation, str) or (
        "." in activation and not _ACTIVATION.fullmatch(activation)
    ):
        raise _refusal(
            file, f"its activation_function {activation!r:.200} is none of torch's activations"
        )


def _is_known(attention: object) -> bool:
    values = attention.values() if isinstance(attention, dict) else [attention]
    return all(isinstance(value, str | None) and value in _ATTENTION for value in values)


def _entries(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, at any depth."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _entries(part, depth + 1)


def _read(file: Path) -> Any:
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise _refusal(file, f"it is larger than {_LARGEST_BYTES >> 20} MB")
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(file, f"it cannot be read ({type(error).__name__})") from None


def _refusal(file: Path, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"the embedding model in {file.parent} is not loaded, because of {file.name}: {why}. "
        "Models are loaded from weights and settings alone, and no code is run for them"
    )
