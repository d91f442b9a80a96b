"""Measures in processes of their own, so that no handler meets what another one left behind.

    in_fresh_process("tests.benchmarks.overhead:measure", {"handler": "inline"})

runs that function in a new interpreter and returns what it returned, by way of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What would make a handler do something else than its defaults, or talk to somebody.
_SETTINGS = ("KP_", "LANGSMITH_", "LANGCHAIN_", "LANGFUSE_", "MLFLOW_", "OTEL_", "OPENINFERENCE_")
_LONGEST_S = 900.0


class ChildError(RuntimeError):
    """A measurement failed in its process."""


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of any handler, and with `folder` as its home."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    return {
        **plain,
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(folder),
        "KP_CONFIG": "",
        **(extra or {}),
    }


def in_fresh_process(
    function: str, arguments: Mapping[str, Any], *, settings: Mapping[str, str] | None = None
) -> Any:
    """Call `module:function` with `arguments` in a new interpreter; return what it returns.

    Args:
        function: Its module and name, with a colon between.
        arguments: Keyword arguments, as JSON can hold them.
        settings: Environment variables for that process.

    Raises:
        ChildError: It raised; the message is its last line.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = folder / "answer.json"
        done = subprocess.run(
            [sys.executable, "-m", __name__, function, json.dumps(arguments), str(answer)],
            cwd=folder,
            env=environment(folder, settings),
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
        if done.returncode != 0 or not answer.exists():
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ChildError(said[-1])
        return json.loads(answer.read_text())


def main() -> None:
    """Be that process."""
    function, arguments, answer = sys.argv[1:]
    module, name = function.split(":")
    result = getattr(import_module(module), name)(**json.loads(arguments))
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
