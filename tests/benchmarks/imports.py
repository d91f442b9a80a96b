"""What it costs to import a handler: CPU seconds of fresh interpreters, all statements in turn."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.apart import environment
from tests.benchmarks.candidates import CANDIDATES

_SCRIPT = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


def statements() -> dict[str, str]:
    """What is imported, by statement: the lowest that any handler needs, ours, and the peers'."""
    ours = {
        "import langchain_core.callbacks": "what every handler needs",
        "import kp_langchain": "kp-langchain, the package",
    }
    peers = {
        candidate.imports: candidate.title
        for candidate in CANDIDATES.values()
        if candidate.imports and not candidate.missing
    }
    return {**ours, **peers}


def measure(rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each statement, one figure a round; a first round is not counted."""
    taken: dict[str, list[float]] = {statement: [] for statement in statements()}
    with tempfile.TemporaryDirectory() as name:
        variables = environment(Path(name))
        for counted in [False, *[True] * rounds]:
            for statement, seconds in taken.items():
                one = _one_s(statement, variables, Path(name))
                if counted:
                    seconds.append(one)
    return taken


def _one_s(statement: str, variables: Mapping[str, str], folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(statement)],
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])
