from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when nothing more is due, however slow the machine is."""
    monkeypatch.setattr("kp_langchain.registry.sender._TURN_S", 600.0)
