from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from kp_langchain.embedding.local_models import AutoEmbedder
from tests.cli.made_runs import KEY
from tests.loopback_registry import LoopbackRegistry


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the embedding model, which starts at once."""
    for package in ("sentence_transformers", "fastembed"):
        monkeypatch.setitem(sys.modules, package, None)
    # Not the one of this process, which may have found a model before.
    monkeypatch.setattr("kp_langchain.embedding.local_models._default_embedder", AutoEmbedder)


@pytest.fixture
def server() -> Iterator[LoopbackRegistry]:
    with LoopbackRegistry(keys={KEY}) as server:
        yield server


@pytest.fixture
def here(server: LoopbackRegistry) -> dict[str, str]:
    """What the environment says: a registry, a key, a store."""
    return {"KP_REGISTRY_URL": server.url, "KP_API_KEY": KEY, "KP_DATABASE_URL": "runs.db"}
