"""What the commands that people wait for cost: the CPU of each in a fresh interpreter.

    python -m tests.benchmarks.commands [--runs N] [--rounds N]

Measures the help, the list of a store of a hundred runs, and the statistics of one of N runs, which
takes a minute to make. Each line is printed as it is measured.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

from kp_langchain import ScoredTrace, TraceStore
from tests.benchmarks.harness import ROOT, machine, parser
from tests.benchmarks.store import made_runs

_BATCH = 1000


def cpu_s(words: Sequence[str], database: Path) -> float:
    """Return the CPU that a command takes in a fresh interpreter, with its children.

    Python's compiled files are kept, as they are for users: without them, it compiles the libraries
    each time, and that takes longer than the command.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "kp_langchain", *words],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "KP_DATABASE_URL": str(database),
            "PYTHONDONTWRITEBYTECODE": "",
        },
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def copies(runs: Sequence[ScoredTrace], days: int) -> Iterator[ScoredTrace]:
    """Yield copies of runs that began so many days earlier, with ids of their own."""
    for run in runs:
        at = run.trace.metadata.created_at - timedelta(days=days)
        metadata = run.trace.metadata.model_copy(update={"created_at": at})
        fields = {"id": f"kp:trace:{uuid.uuid4()}", "metadata": metadata}
        yield replace(run, trace=run.trace.model_copy(update=fields), run_id=uuid.uuid4())


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parser("tests.benchmarks.commands", __doc__)
    options.add_argument("--runs", type=int, default=100_000, help="runs in the large store")
    options.add_argument("--rounds", type=int, default=3, help="interpreters for each")
    chosen = options.parse_args(words)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small.db"), Path(folder, "large.db")
        runs = list(made_runs(min(_BATCH, chosen.runs), words=20))
        with TraceStore(small) as store:
            store.add(*runs[:100])

        def measure(words: str, database: Path, of: str) -> None:
            cpu_s(words.split(), database)  # compiles what it imports
            times = [cpu_s(words.split(), database) for _ in range(chosen.rounds)]
            print(f"{median(times):.2f} s  kp-langchain {words}{of}", flush=True)

        measure("--help", small, "")
        measure("review", small, ", of 100 runs")
        with TraceStore(large) as store:
            for days in range(chosen.runs // len(runs)):
                store.add(*list(copies(runs, days)))
        measure("review stats", large, f", of {chosen.runs:,} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
