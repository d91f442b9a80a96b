"""Each fault in small; `python -m tests.faults.scenarios` plays them in the thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.clock import shortened_clock
from tests.faults.scenarios import SCENARIOS
from tests.loopback_registry import LoopbackRegistry

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_everything_arrives_once_and_the_agent_notices_nothing(name: str, tmp_path: Path) -> None:
    with shortened_clock():
        account = SCENARIOS[name](42, tmp_path)
    assert account.clean, account


def test_without_a_registry_nothing_reaches_for_a_network() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.faults.silence", "--runs", "20"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "contributed 20, registry None" in done.stdout
    assert "calls that reach for a network: 0" in done.stdout


def test_the_count_of_what_reaches_for_a_network_can_fail() -> None:
    with LoopbackRegistry() as server:
        done = subprocess.run(
            [
                sys.executable, "-W", "ignore", "-m", "tests.faults.silence", "--runs", "3",
                "--inside", "--registry", server.url,
            ],
            cwd=ROOT,
            env={**os.environ, "KP_REGISTRY_URL": server.url, "KP_API_KEY": "kp_key"},
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
    assert "calls that reach for a network: 0" not in done.stdout
