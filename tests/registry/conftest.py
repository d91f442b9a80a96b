"""All tests of the registry."""

from __future__ import annotations

import pytest

from kp_langchain.registry import sender as sender_module


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when nothing more is due, however slow the machine is."""
    monkeypatch.setattr(sender_module, "_TURN_S", 600.0)
