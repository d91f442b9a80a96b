"""What a kill costs: `python -m tests.faults.window` prints the table.

Processes that write into one store are killed at random moments and started again, many times.
What was acknowledged (`flush()` returned True, or `on_scored` was called) must be stored then, and
nothing twice. What merely finished may be lost, if it finished in the last milliseconds.

`--postgres-stops 8` stops a PostgreSQL server at once so many times instead. Writers play on while
it is down, and notice nothing; once it is back, `flush` returns True again. In the end the store
has what they acknowledged, once each.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests import programs
from tests.faults.processes import ended, lines_in, shortened_clock, started, stored_in, wait_until
from tests.faults.writer import FLUSH, NEITHER, ON_SCORED, STOP

STORE = "runs.db"
_RUNS_BETWEEN = 5
_LONGEST_START_S = 0.6
# Upper ends of the ages, in ms, by which runs are counted.
_AGES_MS = (5, 20, 100)


@dataclass
class Losses:
    """What came of processes that were killed.

    Args:
        kills: How many of them were killed.
        finished: Runs whose `invoke` returned.
        acknowledged: Runs that were promised to be on disk.
        broken: Of these, runs that are not stored.
        doubled: Runs with more than one trace.
        lost_at_once: For each kill, finished runs that are not stored.
        finished_by_age: Finished runs by their age at the kill; see `age_names`.
        lost_by_age: Of these, the runs that are not stored.
        seconds: How long it took.
    """

    kills: int = 0
    finished: int = 0
    acknowledged: int = 0
    broken: int = 0
    doubled: int = 0
    lost_at_once: list[int] = field(default_factory=list)
    finished_by_age: Counter[int] = field(default_factory=Counter)
    lost_by_age: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0


def age_names() -> list[str]:
    ends = ["0", *map(str, _AGES_MS)]
    return [*(f"{a} to {b} ms" for a, b in pairwise(ends)), f"{ends[-1]} ms on"]


def writing(
    folder: Path, url: str, name: str, way: str, pause_s: float = 0.0, kill_after: int = 0
) -> AbstractContextManager[programs.Program]:
    """Run a writer; its output is in `output.NAME`."""
    words = ("-m", "tests.faults.writer", url, name, way, str(pause_s), str(kill_after))
    return started(folder, *words, output=f"output.{name}")


def kill_once(folder: Path, name: str, way: str, pause_s: float, most_runs: int) -> int:
    """Start a writer that is killed; return when.

    Half of those that acknowledge are killed as they have just done so; all others a moment after
    some runs, or in their start.
    """
    finished, output = folder / f"finished.{name}", folder / f"output.{name}"
    if way != NEITHER and random.random() < 0.5:
        kill_after = random.randint(1, most_runs // (5 if way == FLUSH else 1))
        with writing(folder, STORE, name, way, pause_s, kill_after) as program:
            ended(program, output, -signal.SIGKILL)
            return time.monotonic_ns()
    enough = random.randint(0, most_runs)
    with writing(folder, STORE, name, way, pause_s) as program:
        wait_until(lambda: len(lines_in(finished)) >= enough, "it plays", output, program)
        time.sleep(random.uniform(0.0, 0.02 if enough else _LONGEST_START_S))
        at = time.monotonic_ns()
        program.kill()
        return at


def kill_writers(
    folder: Path,
    *,
    writers: int,
    kills: int,
    ways: Sequence[str] = (FLUSH, ON_SCORED),
    pause_s: float = 0.0,
    most_runs: int = 20,
) -> Losses:
    """Kill each of some writers so many times, side by side; see what the store has then.

    Args:
        folder: Where they work.
        writers: How many of them write at once.
        kills: How often each is killed.
        ways: How their runs are acknowledged, in turn.
        pause_s: Mean pause between runs.
        most_runs: Each plays up to so many before it is killed.
    """
    began = time.perf_counter()
    killed_at: dict[str, int] = {}

    def live_and_die(writer: int) -> None:
        for life in range(kills):
            name = f"{writer}.{life}"
            way = ways[(writer + life) % len(ways)]
            killed_at[name] = kill_once(folder, name, way, pause_s, most_runs)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(live_and_die, range(writers)))
    losses = account(folder, folder / STORE, killed_at)
    losses.seconds = time.perf_counter() - began
    return losses


def account(folder: Path, url: Path | str, killed_at: Mapping[str, int]) -> Losses:
    """Draw up the account of writers by name, given when each was killed."""
    with shortened_clock():
        stored = stored_in(url)
    promised = acknowledged_in(folder)
    losses = Losses(
        kills=len(killed_at),
        acknowledged=len(promised),
        broken=len(promised - stored.keys()),
        doubled=sum(count > 1 for count in stored.values()),
    )
    for name, at in killed_at.items():
        lost = 0
        for line in lines_in(folder / f"finished.{name}"):
            run_id, ended_at = line.split()
            age = bisect(_AGES_MS, (at - int(ended_at)) / 1e6)
            losses.finished_by_age[age] += 1
            losses.lost_by_age[age] += run_id not in stored
            lost += run_id not in stored
        losses.lost_at_once.append(lost)
    losses.finished = losses.finished_by_age.total()
    return losses


def acknowledged_in(folder: Path) -> set[str]:
    """Return the ids of all runs that writers noted as acknowledged."""
    return {
        run_id
        for path in folder.glob("acknowledged.*")
        for line in lines_in(path)
        for run_id in line.split()
    }


def stop_and_start(folder: Path, *, stops: int, writers: int = 4) -> Losses:
    """Stop a server of one's own under writers, and start it again; see what it has then.

    Args:
        folder: Where they work.
        stops: How often.
        writers: How many of them write at once.
    """
    from tests.postgres import running_server, start, stop_at_once

    began = time.perf_counter()
    names = [str(number) for number in range(writers)]
    with running_server(folder / "lock") as server, ExitStack() as stack:
        playing = {
            name: stack.enter_context(
                writing(folder, server.get_uri(), name, (FLUSH, ON_SCORED)[number % 2])
            )
            for number, name in enumerate(names)
        }

        def wait_for_all(kind: str, what: str) -> None:
            paths = [folder / f"{kind}.{name}" for name in names]
            grown = [
                partial(has_grown, path, len(lines_in(path)) + _RUNS_BETWEEN) for path in paths
            ]
            for name, done in zip(names, grown, strict=True):
                wait_until(done, what, folder / f"output.{name}", *playing.values())

        wait_for_all("acknowledged", "runs are acknowledged")
        for _ in range(stops):
            stop_at_once(server)
            wait_for_all("finished", "runs finish without the server")
            start(server)
            wait_for_all("acknowledged", "runs are acknowledged again")
        (folder / STOP).touch()
        for name, program in playing.items():
            ended(program, folder / f"output.{name}", 0)
        losses = account(folder, server.get_uri(), dict.fromkeys(names, time.monotonic_ns()))
    losses.kills, losses.seconds = stops, time.perf_counter() - began
    return losses


def has_grown(path: Path, lines: int) -> bool:
    return len(lines_in(path)) >= lines


def report(name: str, losses: Losses) -> None:
    ages = [
        f"{losses.lost_by_age[age]} of {losses.finished_by_age[age]}"
        for age in range(len(_AGES_MS) + 1)
    ]
    cells = [
        name, losses.kills, losses.acknowledged, losses.broken, losses.doubled, losses.finished,
        sum(losses.lost_at_once), max(losses.lost_at_once), *ages, f"{losses.seconds:.0f}",
    ]  # fmt: skip
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill processes; print what that costs.")
    parser.add_argument("--kills", type=int, default=100, help="of each writer")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="mean pause between runs")
    parser.add_argument("--postgres-stops", type=int, default=0, help="stop a server, kill nobody")
    options = parser.parse_args()
    heads = [
        "writers", "kills", "acknowledged", "of these lost", "doubled", "finished",
        "of these lost", "most at once", *(f"lost, {age}" for age in age_names()), "s",
    ]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}", flush=True)
    series: dict[str, dict[str, Any]] = {
        "4, no pause": {"writers": 4},
        f"1, {options.pause_ms:.0f} ms between runs": {
            "writers": 1, "ways": (NEITHER,), "pause_s": options.pause_ms / 1000, "most_runs": 100,
        },
        "1, no pause": {"writers": 1, "ways": (NEITHER,), "most_runs": 200},
    }  # fmt: skip
    if options.postgres_stops:
        series = {"4, PostgreSQL stops": {"stops": options.postgres_stops}}
    bad = 0
    for name, how in series.items():
        with tempfile.TemporaryDirectory() as folder:
            if "stops" in how:
                losses = stop_and_start(Path(folder), **how)
                bad += sum(losses.lost_at_once)
            else:
                losses = kill_writers(Path(folder), kills=options.kills, **how)
        report(name, losses)
        bad += losses.broken + losses.doubled
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
