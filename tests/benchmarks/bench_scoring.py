"""How long scoring takes on this machine: `python tests/benchmarks/bench_scoring.py`.

Prints medians. Nothing here passes or fails; times depend on the machine.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import Scorer, SentenceTransformerEmbedder, VectorCache

STEPS = 30
ROWS, DIMENSIONS = 1000, 384
TYPES = ("thought", "tool_call", "observation")


def trace() -> ReasoningTrace:
    steps = [
        {
            "step_id": index,
            "type": TYPES[index % 3],
            "content": f"step {index} looks at the ledger and compares two totals",
            **({"tool": {"name": f"tool_{index % 5}"}} if index % 3 == 1 else {}),
        }
        for index in range(STEPS)
    ]
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": True},
            "task": {"objective": "reconcile the ledger with the bank statement"},
            "steps": steps,
            "outcome": {"result_summary": "they agree", "confidence": 0.8},
        }
    )


def median_us(call: Callable[[], object], *, calls: int, rounds: int = 15) -> float:
    """Median over rounds of the mean time of one call, in microseconds."""
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) / calls * 1e6)
    return statistics.median(times)


def rows() -> list[tuple[str, float, str]]:
    example = trace()
    plain = Scorer(embedder=None)
    breakdown = plain.score(example)

    vectors = np.random.default_rng(0).normal(size=(ROWS, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cache = VectorCache(max_elements=ROWS, dimensions=DIMENSIONS)
    for number, vector in enumerate(vectors):
        cache.add(vector, key=str(number))
    query = vectors[7]

    product = median_us(lambda: vectors @ query, calls=1000)
    scan = median_us(lambda: cache.max_cosine_similarity(query), calls=1000)
    shape = f"{ROWS} x {DIMENSIONS}"
    table = [
        (f"score a trace of {STEPS} steps, no embedder", _of(plain.score, example), "goal 50"),
        ("its line()", median_us(breakdown.line, calls=1000), ""),
        ("its text()", median_us(breakdown.text, calls=1000), ""),
        ("its to_dict()", median_us(breakdown.to_dict, calls=1000), ""),
        (f"bare numpy product {shape}", product, ""),
        (f"VectorCache scan {shape}", scan, f"goal 50; {scan / product:.2f} x the bare product"),
        ("VectorCache.add", median_us(lambda: cache.add(query), calls=1000), ""),
    ]
    if importlib.util.find_spec("sentence_transformers") is not None:
        started = time.perf_counter()
        embedder = SentenceTransformerEmbedder()
        embedder.embed(["first"])
        table.append(("load MiniLM, once", (time.perf_counter() - started) * 1e6, ""))
        scorer = Scorer(embedder=embedder)
        table.append(
            (
                f"evaluate a trace of {STEPS} steps with MiniLM",
                median_us(lambda: scorer.evaluate(example), calls=3, rounds=5),
                "limit 100,000",
            )
        )
    return table


def _of(call: Callable[[ReasoningTrace], object], example: ReasoningTrace) -> float:
    return median_us(lambda: call(example), calls=1000)


if __name__ == "__main__":
    print(f"{'what':<50}{'median us':>14}  note")
    for what, microseconds, note in rows():
        print(f"{what:<50}{microseconds:>14,.1f}  {note}".rstrip())
