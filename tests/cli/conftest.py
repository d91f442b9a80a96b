from __future__ import annotations

import sys

import pytest

from kp_langchain.embedding.auto_embedder import AutoEmbedder


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the embedding model, which starts at once."""
    for package in ("sentence_transformers", "fastembed"):
        monkeypatch.setitem(sys.modules, package, None)
    # Not the one of this process, which may have found a model before.
    monkeypatch.setattr("kp_langchain.embedding.embedder_protocol._default_embedder", AutoEmbedder)
