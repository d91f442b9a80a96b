"""What a command costs to start, side by side with what it has to import.

    python -m tests.benchmarks.commands [--runs N] [--rounds N]

makes a store of N runs, and prints the CPU of each command in a fresh interpreter, as the median of
the rounds in seconds and as a multiple of an interpreter that imports typer.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kp_langchain import TraceStore
from tests.benchmarks.harness import ROOT, machine, parser, quartiles, table
from tests.benchmarks.store import fill, made_runs

_YARDSTICK = "import typer"
_STATEMENTS = ("pass", _YARDSTICK, "import pydantic_settings", "import sqlalchemy", "import numpy")
_COMMANDS = ("--help", "schema", "review", "review stats", "label next --json")


def cpu_s(words: Sequence[str], folder: Path) -> float:
    """Return the CPU that a fresh interpreter takes, with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KP_DATABASE_URL": str(folder / "runs.db")}
    subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parser("tests.benchmarks.commands", __doc__)
    options.add_argument("--runs", type=int, default=100_000, help="runs in the store")
    options.add_argument("--rounds", type=int, default=5, help="interpreters for each")
    chosen = options.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with TraceStore(folder / "runs.db") as store:
            fill(store, made_runs(chosen.runs, words=20))
        programs = {f"`{one}`": ["-c", one] for one in _STATEMENTS}
        programs |= {
            f"`kp-langchain {one}`": ["-m", "kp_langchain", *one.split()] for one in _COMMANDS
        }
        seconds = {
            label: quartiles([cpu_s(program, folder) for _ in range(chosen.rounds)]).median
            for label, program in programs.items()
        }
    yardstick = seconds[f"`{_YARDSTICK}`"]
    rows = [(label, f"{one:.2f}", f"{one / yardstick:.1f}") for label, one in seconds.items()]
    title = f"Commands on {chosen.runs:,} runs, {machine()}"
    print(table(title, ("program", "CPU s", "times"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
