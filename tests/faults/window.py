"""How long a finished run exists in memory only: `python -m tests.faults.window`.

One process plays runs and notes when each ended; this one watches the database and notes when each
is on disk, scored or not. Then processes are killed at random moments of their lives.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler

from tests.agents import ASK, searching
from tests.faults import ending_programs
from tests.faults.ending_programs import STORE
from tests.faults.endings import ENOUGH_S, UnexpectedEndError, durable_in, finished_in, started

ENDED = Path("ended")
_LOOK_EVERY_S = 0.001


class Ends(BaseCallbackHandler):
    """Notes when each root run ends, by the clock that all processes share."""

    run_inline = True

    def __init__(self) -> None:
        self._file = os.open(ENDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_chain_end(
        self, outputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        if parent_run_id is None:
            os.write(self._file, f"{run_id} {time.monotonic_ns()}\n".encode())


def play(runs: int, pause_s: float) -> None:
    """Play runs with pauses; 0 for no end."""
    ends = Ends()
    for number in count(1):
        options = ending_programs.config()
        searching().invoke(ASK, {**options, "callbacks": [ends, *options["callbacks"]]})
        ending_programs.note(options["run_id"])
        if number == runs:
            return
        time.sleep(random.uniform(0.0, 2 * pause_s))


@contextmanager
def playing(folder: Path, runs: int, pause_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.faults.window", "--play", str(runs), str(pause_s)]
    with started(folder, *command) as process:
        yield process


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep processors busy."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: 1"]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def watch(path: Path, process: subprocess.Popen[str]) -> dict[str, int]:
    """Return when each run was first seen on disk, in nanoseconds, until the process ends."""
    seen: dict[str, int] = {}
    while durable_in(path) == 0 and process.poll() is None:
        time.sleep(_LOOK_EVERY_S)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as connection:
        (has_drafts,) = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'unscored'"
        ).fetchone()
        last, version = 0, None
        over = False
        while not over:
            over = process.poll() is not None
            changed = connection.execute("PRAGMA data_version").fetchone()
            if changed == version and not over:
                time.sleep(_LOOK_EVERY_S)
                continue
            version = changed
            rows = connection.execute("SELECT rowid, run_id FROM runs WHERE rowid > ?", (last,))
            found = rows.fetchall()
            last = max([last, *(row[0] for row in found)])
            ids = [row[1] for row in found]
            if has_drafts:
                ids += [row[0] for row in connection.execute("SELECT run_id FROM unscored")]
            now = time.monotonic_ns()
            for run_id in ids:
                seen.setdefault(run_id, now)
    return seen


def windows_ms(runs: int, pause_s: float) -> list[float]:
    """Return for each run the milliseconds from its end to the disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with playing(folder, runs, pause_s) as process:
            seen = watch(folder / STORE, process)
        lines = [line.split() for line in (folder / ENDED).read_text().splitlines()]
    return [(seen[run_id] - int(ended)) / 1e6 for run_id, ended in lines]


def killed(pause_s: float) -> tuple[int, int, float]:
    """Kill a process at a random moment; return its runs finished and lost, and its life in s."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        life_s = random.uniform(0.2, 4.0)
        with playing(folder, 0, pause_s) as process:
            until = time.monotonic() + ENOUGH_S
            while not durable_in(folder / STORE):
                if process.poll() is not None or time.monotonic() > until:
                    raise UnexpectedEndError((folder / "output").read_text()[-3000:])
                time.sleep(0.01)
            time.sleep(life_s)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with closing(sqlite3.connect(folder / STORE)) as connection:
            rows = connection.execute("SELECT run_id FROM runs").fetchall()
            rows += connection.execute("SELECT run_id FROM unscored").fetchall()
        finished = set(finished_in(folder))
        return len(finished), len(finished - {row[0] for row in rows}), life_s


def report(name: str, times: list[float]) -> None:
    # What comes first opens the store, which happens once.
    first, rest = times[0], times[20:]
    cells = [f"{value:.1f}" for value in (*np.percentile(rest, [50, 90, 99, 100]), first)]
    print(f"| {name} | {len(rest)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long runs are in memory only.")
    parser.add_argument("--runs", type=int, default=500, help="runs for each distribution")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="mean pause between runs")
    parser.add_argument("--embedder", action="store_true", help="with the embedding model")
    parser.add_argument("--play", nargs=2, type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        play(int(options.play[0]), options.play[1])
        return
    if options.embedder:
        os.environ["ENDINGS_EMBEDDER"] = "1"
    pause_s = options.pause_ms / 1000
    if options.runs:
        print("| milliseconds from a run's end to the disk | runs | median | p90 | p99 | max | "
              "first run |")  # fmt: skip
        print(f"| --- |{' ---: |' * 6}")
        for loops in (0, 2):
            where = f"{loops} busy loops beside it" if loops else "idle"
            for pause in (pause_s, 0.0):
                how = f"mean pause {1000 * pause:.0f} ms" if pause else "no pause"
                with busy(loops):
                    report(f"{where}, {how}", windows_ms(options.runs, pause))
    if options.kills:
        finished = lost = touched = most = 0
        for _ in range(options.kills):
            one, gone, _ = killed(pause_s)
            finished, lost = finished + one, lost + gone
            touched, most = touched + (gone > 0), max(most, gone)
        print(
            f"\n{options.kills} kills -9: {finished} runs finished, {lost} lost, "
            f"in {touched} of the kills, at most {most} in one"
        )


if __name__ == "__main__":
    main()
