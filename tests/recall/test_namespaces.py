"""Namespaces: whose traces a run is shown, and who is shown what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent

from kp_langchain import TraceStore
from tests.recall.words import EURO, Listening, answers, keep, middleware, rates, texts


class Tenant(Enum):
    A = "tenant-a"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "kp.db") as store:
        yield store


def is_shown(store: TraceStore, **metadata: Any) -> bool:
    """Return whether a run with these metadata is shown an example."""
    model = Listening(answers(), asked=[])
    agent = create_agent(model, [rates], middleware=[middleware(store)])
    config: Any = {"metadata": metadata}
    agent.invoke({"messages": [("user", EURO)]}, config)
    return any("earlier runs" in text for text in texts(model.asked[0]))


class TestUnusable:
    @pytest.mark.parametrize(
        "value", ["", " \n", b"tenant-a", 7.0, Decimal(7), Tenant.A, ("a",), True, {}, object()]
    )
    def test_it_is_shared_with_nobody(
        self, store: TraceStore, value: object, caplog: pytest.LogCaptureFixture
    ) -> None:
        keep(store, metadata={"kp_namespace": value})
        (stored,) = store.runs()
        assert stored.namespace is not None
        assert stored.namespace.startswith("unknown:")
        assert not is_shown(store)
        assert not is_shown(store, kp_namespace="tenant-a")
        assert not is_shown(store, kp_namespace=value)
        (warning,) = [one for one in caplog.messages if "kp_namespace" in one]
        assert "tenant-a" not in warning

    def test_a_run_with_one_is_shown_only_what_all_are_shown(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": "tenant-a"})
        assert not is_shown(store, kp_namespace=b"tenant-a")
        keep(store, EURO.replace("euro", "yen"), "JPYUSD")
        assert is_shown(store, kp_namespace=b"tenant-a")

    def test_none_names_no_namespace(self, store: TraceStore) -> None:
        keep(store, metadata={"kp_namespace": None})
        assert [run.namespace for run in store.runs()] == [None]
        assert is_shown(store, kp_namespace="tenant-a")
