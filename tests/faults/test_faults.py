"""Each fault in small; `python -m tests.faults.scenarios` plays them in the thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs
from tests.faults.clock import shortened_clock
from tests.faults.scenarios import SCENARIOS
from tests.loopback_registry import LoopbackRegistry


@pytest.mark.parametrize("name", SCENARIOS)
def test_everything_arrives_once_and_the_agent_notices_nothing(name: str, tmp_path: Path) -> None:
    with shortened_clock():
        account = SCENARIOS[name](42, tmp_path)
    assert account.clean, account


def test_without_a_registry_nothing_reaches_for_a_network() -> None:
    done = programs.run("-m", "tests.faults.silence", "--runs", "20")
    assert "kept 20, registry None" in done.stdout, done.stderr
    assert "calls that reach for a network: 0" in done.stdout


def test_the_count_of_what_reaches_for_a_network_can_fail() -> None:
    words = ("-m", "tests.faults.silence", "--runs", "3", "--inside", "--registry")
    with LoopbackRegistry() as server:
        done = programs.run(*words, server.url, KP_REGISTRY_URL=server.url, KP_API_KEY="kp_key")
    assert "calls that reach for a network: " in done.stdout, done.stderr
    assert "calls that reach for a network: 0" not in done.stdout
