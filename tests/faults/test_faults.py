"""Each fault in small; `scenarios`, `window`, `endings` and `silence` play them in thousands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import programs
from tests.faults import window
from tests.faults.endings import missing_packages, play_end
from tests.faults.processes import shortened_clock
from tests.faults.scenarios import SCENARIOS
from tests.loopback_registry import LoopbackRegistry

ENDS = [
    "script end",
    "exception",
    "Ctrl-C in a tool",
    "SIGTERM, handler calls sys.exit",
    "asyncio.run, tasks cancelled",
    "threads, not waited for",
    "Process, fork",
    "Pool closed and joined, fork",
    "ProcessPoolExecutor, spawn",
    "os.fork, child ends by sys.exit",
    "fork in mid-run, both sides go on",
    "uvicorn, 4 workers, mid-load",
    "gunicorn sync, max_requests",
    "gunicorn UvicornWorker, idle",
    "Celery prefork, max_tasks_per_child",
    "pytest-xdist",
    pytest.param("Pool closed and joined, forkserver", marks=pytest.mark.slow),
    pytest.param("joblib (loky)", marks=pytest.mark.slow),
]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks of POSIX systems")


@pytest.mark.parametrize("name", SCENARIOS)
def test_everything_arrives_once_and_the_agent_notices_nothing(name: str, tmp_path: Path) -> None:
    with shortened_clock():
        account = SCENARIOS[name](42, tmp_path)
    assert account.clean, account


@posix
@pytest.mark.parametrize("name", ENDS)
def test_what_finished_is_stored_however_the_process_ends(name: str, tmp_path: Path) -> None:
    if missing := missing_packages(name):
        pytest.skip(f"{name!r} needs: pip install {' '.join(missing)}")
    runs = play_end(name, tmp_path)
    assert runs["finished"] > 0
    assert (runs["lost"], runs["doubled"]) == (0, 0), runs


@posix
@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_what_was_acknowledged_survives_kills_of_four_writers(kills: int, tmp_path: Path) -> None:
    losses = window.kill_writers(tmp_path, writers=4, kills=kills)
    assert losses.acknowledged >= kills
    assert (losses.broken, losses.doubled) == (0, 0), losses


@posix
@pytest.mark.parametrize("stops", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_doubled_while_postgresql_stops_at_once(
    stops: int, tmp_path: Path
) -> None:
    pytest.importorskip("tests.postgres")
    losses = window.stop_and_start(tmp_path, stops=stops)
    assert losses.acknowledged > 0
    assert (losses.broken, losses.doubled, sum(losses.lost_at_once)) == (0, 0, 0), losses


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
