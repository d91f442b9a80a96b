"""How long scoring takes on this machine, on one core.

    python tests/benchmarks/bench_scoring.py            scores, searches, and many traces at once
    python tests/benchmarks/bench_scoring.py --curve    searches and insertions up to 1,000,000
    python tests/benchmarks/bench_scoring.py --store URL    a memory in a store: loading and saving

Prints medians of CPU time, so that other processes count little; for a memory in a store, of wall
time, because a server's time counts as well. Nothing here passes or fails; times depend on the
machine. The curve needs 1.6 GB. Give `--store` an empty database, or `sqlite` for a file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain import TraceStore
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import MemoryEntry, Scorer, SentenceTransformerEmbedder, VectorCache
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.store.remembered import Remembered
from kp_langchain.store.stored_memory import StoredMemory

STEPS = 30
ROWS, DIMENSIONS = 1000, 384
TYPES = ("thought", "tool_call", "observation")
WINDOWS = (1_000, 10_000, 100_000)
CURVE = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 256
POOL = 8192


def trace(number: int = 0) -> ReasoningTrace:
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
            "id": f"kp:trace:{number:08x}-0000-4000-8000-000000000000",
            "metadata": {"task_domain": "finance", "success": True},
            "task": {"objective": "reconcile the ledger with the bank statement"},
            "steps": steps,
            "outcome": {"result_summary": "they agree", "confidence": 0.8},
        }
    )


def median_us(call: Callable[[], object], *, calls: int, rounds: int = 15) -> float:
    """Median over rounds of the mean CPU time of one call, in microseconds."""
    return medians_us(call, calls=calls, rounds=rounds)[0]


def medians_us(*called: Callable[[], object], calls: int, rounds: int = 15) -> list[float]:
    """The same for several, in turns, so that what slows the machine slows all of them."""
    times: list[list[float]] = [[] for _ in called]
    for _ in range(rounds):
        for call, measured in zip(called, times, strict=True):
            call()
            started = time.process_time()
            for _ in range(calls):
                call()
            measured.append((time.process_time() - started) / calls * 1e6)
    return [statistics.median(measured) for measured in times]


def random_vectors(seed: int = 0) -> Iterator[np.ndarray]:
    """Blocks of vectors of length 1, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        block = rng.standard_normal((BATCH, DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def filled(size: int) -> VectorCache:
    """A full cache."""
    cache = VectorCache(max_elements=size, dimensions=DIMENSIONS)
    blocks = random_vectors()
    while cache.size < size:
        for vector in next(blocks):
            cache.add(vector, key="key")
    return cache


def rows() -> Iterator[tuple[str, float, str]]:
    example = trace()
    plain = Scorer(embedder=None)
    breakdown = plain.score(example)
    yield f"score a trace of {STEPS} steps, no embedder", _of(plain.score, example), ""
    yield "its line()", median_us(breakdown.line, calls=1000), ""
    yield "its text()", median_us(breakdown.text, calls=1000), ""
    yield "its to_dict()", median_us(breakdown.to_dict, calls=1000), ""

    cache = filled(ROWS)
    vectors = cache._rows[:ROWS]
    query = next(random_vectors())[7]
    shape = f"{ROWS} x {DIMENSIONS}"
    absent = frozenset({"a", "b"})
    product, scan, ignoring = medians_us(
        lambda: vectors @ query,
        lambda: cache.nearest(query),
        lambda: cache.nearest(query, ignore=absent),
        calls=500,
    )
    yield f"bare numpy product {shape}", product, ""
    yield f"VectorCache scan {shape}", scan, f"{scan / product:.2f} x the bare product"
    yield "the same, two keys ignored", ignoring, f"{ignoring / product:.2f} x the bare product"
    yield "VectorCache.add", median_us(lambda: cache.add(query), calls=1000), ""
    yield from many_rows()
    if importlib.util.find_spec("sentence_transformers") is not None:
        started = time.perf_counter()
        embedder = SentenceTransformerEmbedder()
        embedder.embed(["first"])
        yield "load MiniLM, once", (time.perf_counter() - started) * 1e6, ""
        scorer = Scorer(embedder=embedder)
        evaluate = median_us(lambda: scorer.evaluate(example), calls=3, rounds=5)
        yield f"evaluate a trace of {STEPS} steps with MiniLM", evaluate, "limit 100,000"


class Ready:
    """Vectors that need no model: what is measured is all of an evaluation but embedding."""

    def __init__(self) -> None:
        self._rows = np.concatenate(list(itertools.islice(random_vectors(seed=1), POOL // BATCH)))
        self._at = 0

    def embed(self, texts: list[str]) -> np.ndarray:
        start = self._at if self._at + len(texts) <= POOL else 0
        self._at = start + len(texts)
        return self._rows[start : self._at]


def many_rows() -> Iterator[tuple[str, float, str]]:
    """Evaluation one by one and many at once, by the size of the memory."""
    traces = [trace(number) for number in range(BATCH)]
    cases: list[tuple[str, Callable[[], Scorer]]] = [
        ("no embedder", lambda: Scorer(embedder=None)),
        *(
            (
                f"memory of {window:,}",
                lambda window=window: Scorer(embedder=Ready(), cache=filled(window)),
            )
            for window in WINDOWS
        ),
    ]
    for name, made in cases:
        scorer = made()
        taken = traces[:32] if name == f"memory of {WINDOWS[-1]:,}" else traces

        def one_by_one(scorer: Scorer = scorer, taken: list[ReasoningTrace] = taken) -> None:
            for one in taken:
                scorer.evaluate(one)

        def at_once(scorer: Scorer = scorer) -> None:
            for _ in scorer.evaluate_many(traces):
                pass

        single, many = medians_us(one_by_one, at_once, calls=1, rounds=9)
        single, many = single / len(taken), many / len(traces)
        yield f"evaluate, {name}", single, "embedding not counted"
        yield f"evaluate_many, {name}", many, f"{single / many:.1f} x the rate"
        del scorer, one_by_one, at_once
        gc.collect()


def stored_rows(url: str) -> Iterator[tuple[str, float, str]]:
    """A novelty memory in a store: what a start and a run cost."""
    blocks = itertools.chain.from_iterable(random_vectors(seed=2))
    identity = EmbedderIdentity("benchmark")
    entries = (
        MemoryEntry(f"kp:trace:{number:08x}", str(number).encode() * 4, vector, identity, "finance")
        for number, vector in enumerate(blocks)
    )
    with TraceStore(url) as store:
        full = store.novelty_memory()
        full.compare_then_add(list(itertools.islice(entries, ROWS)))
        query = next(entries)
        began = time.process_time()
        loading = _wall_us(lambda: store.novelty_memory().compare(query), calls=21)
        cpu_us = (time.process_time() - began) / len(loading) * 1e6
        note = f"limit 50,000; {cpu_us:,.0f} of CPU in this process"
        yield f"load a memory of {ROWS} x {DIMENSIONS}", statistics.median(loading), note
        for name, memory in (
            ("compare and remember, in the process", InProcessMemory()),
            (
                "compare and remember, to be written later",
                StoredMemory(Remembered(store.database), write=lambda _: None),
            ),
            ("compare, remember and write", full),
        ):
            memory.compare(query)
            remembering = _wall_us(
                lambda memory=memory: memory.compare_then_add([next(entries)]), calls=900
            )
            yield name, statistics.median(remembering), ""


def _wall_us(call: Callable[[], object], *, calls: int) -> list[float]:
    """Wall times of single calls, in microseconds."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def _of(call: Callable[[ReasoningTrace], object], example: ReasoningTrace) -> float:
    return median_us(lambda: call(example), calls=1000)


def curve() -> None:
    """Print what a search and an insertion cost, next to what this machine allows."""
    print(
        f"{'vectors':>9}{'MB':>8}{'scan us':>12}{'product us':>12}{'ratio':>7}"
        f"{'read us':>12}{'ratio':>7}{'GB/s':>7}{'add us':>9}"
    )
    query = next(random_vectors())[7]
    for size in CURVE:
        cache = filled(size)
        vectors = cache._rows[:size]
        flat = vectors.reshape(-1)
        scan, product, read = medians_us(
            lambda cache=cache: cache.nearest(query),
            lambda vectors=vectors: vectors @ query,
            # The scalar product of a long vector with itself: it does nothing but read.
            lambda flat=flat: flat @ flat,
            calls=max(1, 300_000 // size),
        )
        added = median_us(lambda cache=cache: cache.add(query), calls=1000)
        print(
            f"{size:>9,}{vectors.nbytes / 1e6:>8,.1f}{scan:>12,.1f}{product:>12,.1f}"
            f"{scan / product:>7.2f}{read:>12,.1f}{scan / read:>7.2f}"
            f"{vectors.nbytes / read / 1e3:>7.1f}{added:>9.1f}"
        )
        del cache, vectors, flat


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curve", action="store_true", help="searches up to 1,000,000 vectors")
    parser.add_argument("--store", metavar="URL", help="a memory in an empty database, or `sqlite`")
    arguments = parser.parse_args()
    if arguments.curve:
        curve()
        sys.exit()
    with TemporaryDirectory() as folder:
        url = f"{folder}/runs.db" if arguments.store == "sqlite" else arguments.store
        print(f"{'what':<50}{'median us':>14}  note")
        for what, microseconds, note in stored_rows(url) if url else rows():
            print(f"{what:<50}{microseconds:>14,.1f}  {note}".rstrip())
