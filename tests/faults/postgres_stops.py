"""PostgreSQL stopped at once, many times: `python -m tests.faults.postgres_stops` prints a line.

Writers play on while their server is down, and notice nothing; once it is back, `flush` returns
True again. In the end the store has what they acknowledged, once each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.faults.processes import ended, lines_in, wait_until
from tests.faults.window import Losses, account, writing
from tests.faults.writer import FLUSH, ON_SCORED, STOP
from tests.postgres import running_server, start, stop_at_once

_RUNS_BETWEEN = 5


def stop_and_start(folder: Path, *, stops: int, writers: int = 4) -> Losses:
    """Stop a server of one's own under writers, and start it again; see what it has then.

    Args:
        folder: Where they work.
        stops: How often.
        writers: How many of them write at once.
    """
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Stop PostgreSQL; print what that costs.")
    parser.add_argument("--stops", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        losses = stop_and_start(Path(folder), stops=options.stops)
    print(
        f"stopped {losses.kills} times: {losses.finished} runs finished, "
        f"{sum(losses.lost_at_once)} of them lost; {losses.acknowledged} acknowledged, "
        f"{losses.broken} of them lost; {losses.doubled} doubled; {losses.seconds:.0f} s"
    )
    sys.exit(bool(losses.broken or losses.doubled or any(losses.lost_at_once)))


if __name__ == "__main__":
    main()
