"""What is promised to be on disk is there, whoever is killed; see `window` and `postgres_stops`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.window import Losses, kill_writers

posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks of POSIX systems")


def assert_promises_hold(losses: Losses) -> None:
    assert losses.acknowledged > 0
    assert (losses.broken, losses.doubled) == (0, 0), losses


@posix
def test_what_was_acknowledged_survives_kills_of_four_writers(tmp_path: Path) -> None:
    assert_promises_hold(kill_writers(tmp_path, writers=4, kills=2))


@posix
@pytest.mark.slow
def test_3000_acknowledged_runs_survive_400_kills_of_four_writers(tmp_path: Path) -> None:
    losses = kill_writers(tmp_path, writers=4, kills=100)
    assert_promises_hold(losses)
    assert losses.acknowledged >= 3000


@posix
@pytest.mark.parametrize("stops", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_doubled_while_postgresql_stops_at_once(
    stops: int, tmp_path: Path
) -> None:
    postgres_stops = pytest.importorskip("tests.faults.postgres_stops")
    losses = postgres_stops.stop_and_start(tmp_path, stops=stops)
    assert_promises_hold(losses)
    assert not any(losses.lost_at_once), losses
