"""What it costs to import a handler: CPU of fresh interpreters, all statements in turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.apart import environment
from tests.benchmarks.figures import quartiles

_SCRIPT = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


def measure(statements: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """CPU milliseconds of each statement, by its name; a first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in statements}
    with TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(1 + rounds):
            for name, statement in statements.items():
                taken[name].append(_one_s(statement, folder) * 1000)
    return {
        name: {"statement": statements[name], "cpu_ms": quartiles(ms[1:])}
        for name, ms in taken.items()
    }


def _one_s(statement: str, folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(statement)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])
