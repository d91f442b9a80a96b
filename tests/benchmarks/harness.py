"""What the benchmarks share: processes of their own, quartiles, Markdown tables, the machine.

    in_fresh_process("tests.benchmarks.cost:overhead", {"handler": "inline"})

runs that function in a new interpreter and returns what it returned, by way of JSON, so that no
handler meets what another one left behind. Times are compared within one run of a program: pairs of
calls in turn, as ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# What would make a handler do something else than its defaults, or send runs somewhere.
_SETTINGS = ("KP_", "LANGSMITH_", "LANGCHAIN_", "LANGFUSE_", "MLFLOW_", "OTEL_", "OPENINFERENCE_")
_LONGEST_S = 3600.0


class ChildError(RuntimeError):
    """A measurement failed in its process."""


class Quartiles(NamedTuple):
    """The quartiles of some samples."""

    low: float
    median: float
    high: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of two values or more."""
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Return this process's environment without settings of any handler; `folder` is its home."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    homes = dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(folder))
    return {**plain, "PYTHONPATH": str(ROOT), **homes, "KP_CONFIG": "", **extra}


def in_fresh_process(function: str, arguments: Mapping[str, Any], **settings: str) -> Any:
    """Call `module:function` with `arguments` in a new interpreter; return what it returns.

    Args:
        function: Its module and name, with a colon between.
        arguments: Keyword arguments, as JSON can hold them.
        settings: Environment variables for that process.

    Raises:
        ChildError: It raised; the message is its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run(
            [sys.executable, "-m", __name__, function, json.dumps(arguments), str(answer)],
            cwd=folder,
            env=environment(Path(folder), **settings),
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
        if done.returncode != 0 or not answer.exists():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ChildError(f"{function}: {lines[-1]}")
        return json.loads(answer.read_text())


def median_ms(call: Callable[[], object], rounds: int = 5) -> float:
    """Return the median wall time of a call in milliseconds."""
    times = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        call()
        times.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times)


class _Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns, over all threads' arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def used_bytes() -> int:
    """Return the bytes in use after garbage collection, by Python and by C alike.

    The process must take every byte from the system's allocator (`PYTHONMALLOC=malloc`).
    """
    for _ in range(3):  # what one collection finalises, the next one frees
        gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Allocated
    counts = mallinfo2()
    return int(counts.uordblks + counts.hblkhd)


def machine() -> str:
    """Return the processor, the usable cores and the interpreter."""
    try:
        match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        match = None
    processor = match[1] if match else platform.processor() or platform.machine()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{processor}, {cores} cores, load {load:.1f}, Python {platform.python_version()}"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table under a heading."""
    aligned = ["---", *["---:"] * (len(head) - 1)]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, aligned, *rows)]
    return f"### {title}\n\n" + "\n".join(lines) + "\n"


def parser(module: str, text: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, whose help is its docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main() -> None:
    """Be the fresh process."""
    function, arguments, answer = sys.argv[1:]
    module, name = function.split(":")
    result = getattr(import_module(module), name)(**json.loads(arguments))
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
