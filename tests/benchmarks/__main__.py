"""What this project's handler costs an agent, side by side with nothing and with its peers.

    pip install -e '.[bench]'
    python -m tests.benchmarks [--only CASE ...] [--handlers NAME ...] [--quick] [--out FOLDER]

prints tables and writes `results.json` (the figures with their quartiles, the machine, the
versions) and `plot.svg` into the folder. Everything takes about 20 minutes, without peers about 8.

What is measured
  invoke, ainvoke, batch, gather, stream
      The same `create_agent` agent with a scripted model, run without and with a handler in turn:
      CPU of the whole process (threads and the handler's flush included) and wall time until the
      agent returns, as ratios of the two calls of a pair. `none` is the agent against itself: the
      noise. See overhead.py and workload.py.
  event
      One event of our recorder, without LangChain around it (by_hand.py).
  memory
      What stays in use per finished run; what is left of cancelled runs and half-read streams;
      what is held of a 5 MB tool output (memory.py, large_output.py).
  import
      CPU of imports in fresh interpreters (imports.py).
  worker
      Finished runs of 30 steps through redaction, scoring and SQLite on one core (throughput.py).

Every handler is measured in a process of its own. `recording` is ours with what happens after a run
left out, `everything` is ours with redaction, scoring and a SQLite file that keeps every run, but
without an embedding model. Peers are set up as they document, but send to a server on loopback that
is a process of its own and takes all; whoever sends nothing, or loses runs, has failed. Times are
medians, with quartiles; what others did on the machine meanwhile stands in the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import machine, plot
from tests.benchmarks.candidates import CANDIDATES
from tests.benchmarks.suite import CASES, FULL, QUICK, Suite
from tests.benchmarks.tables import tables

_WIDTH = 130  # where the output is no terminal


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE",
                        help=f"measure only these: {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--handlers", nargs="+", choices=CANDIDATES, default=list(CANDIDATES),
                        metavar="NAME", help=f"only these: {', '.join(CANDIDATES)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="whether everything works; the figures mean nothing")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path(".benchmarks"), metavar="FOLDER",
                        help="where to write (default: %(default)s)")  # fmt: skip
    return parser.parse_args()


def main() -> int:
    """Measure, print and write; return 1 when something could not be measured."""
    chosen = options()
    width = None if sys.stdout.isatty() else _WIDTH
    console, progress = Console(width=width), Console(stderr=True)
    began_at, began_s = datetime.now(UTC), time.monotonic()
    others = machine.OthersBusy()
    suite = Suite(
        chosen.only,
        chosen.handlers,
        QUICK if chosen.quick else FULL,
        lambda line: progress.print(f"{time.monotonic() - began_s:6.0f} s  {line}", style="dim"),
    )
    results = suite.measure()
    took_s = time.monotonic() - began_s
    report: dict[str, Any] = {
        "quick": chosen.quick,
        "began_at": began_at.isoformat(timespec="seconds"),
        "took_s": round(took_s),
        "machine": machine.description(),
        "cores_busy_with_others": others.cores(took_s),
        "versions": machine.versions(),
        "failures": suite.failures,
        **results,
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    written = chosen.out / "results.json"
    written.write_text(json.dumps(report, indent=1) + "\n")
    for table in tables(report):
        console.print(table)
    console.print(_about(report))
    for failure in suite.failures:
        console.print(f"[red]failed:[/red] {failure}")
    console.print(f"written: {written}")
    try:
        drawn = plot.draw(report, chosen.out / "plot.svg")
    except ModuleNotFoundError as error:
        console.print(f"no plot: {error}; pip install -e '.[bench]'", markup=False)
    else:
        console.print(f"drawn: {drawn}" if drawn else "no plot: none of these cases is in it")
    return 1 if suite.failures else 0


def _about(report: dict[str, Any]) -> str:
    about, busy = report["machine"], report["cores_busy_with_others"]
    return (
        f"{about['processor']}, {about['usable_cores']} cores, {about['python']}, "
        f"{', '.join(f'{name} {number}' for name, number in report['versions'].items())}; "
        f"{report['took_s']} s; others kept {'?' if busy is None else busy} cores busy"
    )


if __name__ == "__main__":
    sys.exit(main())
