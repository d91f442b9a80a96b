"""How long scoring takes on one core, and a novelty memory in a store.

    python -m tests.benchmarks.scoring [--most 1000000] [--store URL]

prints medians of CPU time: of scoring a trace of 30 steps without an embedder, and, up to `--most`
remembered vectors, their memory, a search, and what an evaluation takes beside its embedding. The
last million needs 1.7 GB. Then comes `evaluate_many` beside `evaluate`, in turn, of the same
traces: from objects, from JSON, and from columns that were read before. For the memory in a store
(`--store` takes an empty database; by default it is a SQLite file) the medians are of wall time,
because a server's time counts as well.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from tempfile import TemporaryDirectory

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import numpy as np

from kp_langchain import ReasoningTrace, Scorer, TraceStore, VectorCache
from kp_langchain.scoring import TraceColumns
from tests.benchmarks.harness import machine, parser, quartiles, table

_STEPS, _DIMENSIONS = 30, 384
_TYPES = ("thought", "tool_call", "observation")
_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_BATCH = 256
_ROUNDS = 9
_REMEMBERED, _MANY = 1000, 4096


def trace(number: int = 0) -> ReasoningTrace:
    steps = [
        {
            "step_id": index,
            "type": _TYPES[index % 3],
            "content": f"step {index} looks at the ledger and compares two totals",
            **({"tool": {"name": f"tool_{index % 5}"}} if index % 3 == 1 else {}),
        }
        for index in range(_STEPS)
    ]
    return ReasoningTrace.model_validate(
        {
            "id": f"kp:trace:{number:08x}-0000-4000-8000-000000000000",
            "metadata": {"task_domain": "finance", "success": True},
            "task": {"objective": f"reconcile ledger {number} with the bank statement"},
            "steps": steps,
            "outcome": {"result_summary": "they agree", "confidence": 0.8},
        }
    )


class RandomVectors:
    """An embedder at no cost: what is measured is all of an evaluation but embedding."""

    model = "random vectors"

    def __init__(self) -> None:
        self._at = 0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        drawn = drawn_before()
        first = self._at % (len(drawn) // 2)  # so that many at once are never too many
        self._at += len(texts)
        return drawn[first : first + len(texts)]


@cache
def drawn_before() -> np.ndarray:
    """Return vectors of length 1, drawn once."""
    return np.concatenate(list(itertools.islice(random_vectors(), 32)))


def random_vectors(seed: int = 0) -> Iterator[np.ndarray]:
    """Yield blocks of vectors of length 1."""
    drawn = np.random.default_rng(seed)
    while True:
        block = drawn.standard_normal((_BATCH, _DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def median_us(call: Callable[[], object], *, calls: int, clock: Callable[[], float]) -> float:
    """Return the median over rounds of the mean time of one call, in microseconds."""
    times = []
    call()
    for _ in range(_ROUNDS):
        began_s = clock()
        for _ in range(calls):
            call()
        times.append((clock() - began_s) / calls * 1e6)
    return statistics.median(times)


def filled(size: int) -> VectorCache:
    """Return a cache that is full."""
    cache = VectorCache(max_elements=size, dimensions=_DIMENSIONS)
    for vector in itertools.islice(itertools.chain.from_iterable(random_vectors()), size):
        cache.add(vector, key="key")
    return cache


def searches(sizes: Sequence[int]) -> str:
    """Return the table of searches among remembered vectors."""
    rows = []
    for size in sizes:
        tracemalloc.start()
        cache = filled(size)
        mb = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        query = next(random_vectors(seed=1))[0]
        scorer, numbers = Scorer(embedder=RandomVectors(), cache=cache), itertools.count()
        calls = max(1, 100_000 // size)

        def search(cache: VectorCache = cache, query: np.ndarray = query) -> object:
            return cache.nearest(query)

        def evaluate(scorer: Scorer = scorer, numbers: Iterator[int] = numbers) -> object:
            return scorer.evaluate(trace(next(numbers)))

        search_us, evaluate_us, build_us = (
            median_us(call, calls=calls, clock=time.process_time)
            for call in (search, evaluate, trace)
        )
        rows.append(
            [f"{size:,}", f"{mb:,.1f}", f"{search_us:,.0f}", f"{evaluate_us - build_us:,.0f}"]
        )
    head = ["vectors", "MB", "search, µs", "evaluation without its embedding, µs"]
    return table(f"Searches among vectors of {_DIMENSIONS} dimensions", head, rows)


def many(count: int) -> str:
    """Return the table of `evaluate_many` beside `evaluate`, without the embedding of texts."""
    traces = [trace(number) for number in range(count)]
    texts = [one.model_dump_json() for one in traces]
    columns = TraceColumns.of(traces)
    inputs: dict[str, tuple[Callable[[Scorer], object], Callable[[Scorer], object]]] = {
        "traces": (
            lambda scorer: [scorer.evaluate(one) for one in traces],
            lambda scorer: scorer.evaluate_many(traces),
        ),
        "JSON": (
            lambda scorer: [
                scorer.evaluate(ReasoningTrace.model_validate_json(text)) for text in texts
            ],
            lambda scorer: scorer.evaluate_many(texts),
        ),
        "columns": (
            lambda scorer: [scorer.evaluate(one) for one in traces],
            lambda scorer: scorer.evaluate_many(columns),
        ),
    }
    gc.collect()
    gc.freeze()  # collections would visit all traces again and again
    rows = []
    for remembered in (0, _REMEMBERED):
        for name, ways in inputs.items():
            times: list[list[float]] = []
            for _ in range(_ROUNDS):
                times.append([])
                for evaluate in ways:
                    scorer = Scorer(embedder=RandomVectors() if remembered else None)
                    if remembered:
                        scorer.evaluate_many(
                            [trace(-number) for number in range(1, remembered + 1)]
                        )
                    began_s = time.process_time()
                    evaluate(scorer)
                    times[-1].append((time.process_time() - began_s) / count * 1e6)
            one_us, many_us = (statistics.median(way) for way in zip(*times, strict=True))
            low, ratio, high = quartiles([one / several for one, several in times])
            rows.append(
                [
                    f"{remembered:,}", name, f"{one_us:.0f}", f"{many_us:.1f}",
                    f"{ratio:.1f} ({low:.1f} to {high:.1f})",
                ]
            )  # fmt: skip
    gc.unfreeze()
    head = ["remembered", "from", "`evaluate`, µs", "`evaluate_many`, µs", "times as fast"]
    return table(f"Many traces of {_STEPS} steps, without their embedding", head, rows)


def stored(url: str, size: int) -> str:
    """Return the table of a novelty memory in a store: what a start and a run cost."""
    numbers = itertools.count()
    with TraceStore(url) as store:
        filling = Scorer(embedder=RandomVectors(), cache=store.novelty_memory())
        for number in itertools.islice(numbers, size):
            filling.evaluate(trace(number))

        def load() -> object:
            return Scorer(embedder=RandomVectors(), cache=store.novelty_memory()).score(trace())

        load_us = median_us(load, calls=2, clock=time.perf_counter)
        alone = Scorer(embedder=RandomVectors())
        alone_us, stored_us = (
            median_us(
                lambda scorer=scorer: scorer.evaluate(trace(next(numbers))),  # type: ignore[misc]
                calls=20,
                clock=time.perf_counter,
            )
            for scorer in (alone, filling)
        )
    rows = [
        [f"read {size:,} traces, and compare one", f"{load_us / 1e3:.1f}"],
        ["compare and remember, in the process", f"{alone_us / 1e3:.2f}"],
        ["compare, remember and write", f"{stored_us / 1e3:.2f}"],
    ]
    return table("A novelty memory in a store", ["", "ms"], rows)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parser("tests.benchmarks.scoring", __doc__)
    options.add_argument("--most", type=int, default=100_000, metavar="N", help="vectors at most")
    options.add_argument("--store", metavar="URL", help="an empty database")
    chosen = options.parse_args(words)
    print(f"{machine()}\n")
    example, plain = trace(), Scorer(embedder=None)
    score_us = median_us(lambda: plain.score(example), calls=300, clock=time.process_time)
    print(f"A score of {_STEPS} steps without an embedder: {score_us:.0f} µs of CPU.\n")
    sizes = [size for size in _SIZES if size <= chosen.most]
    print(searches(sizes), flush=True)
    with TemporaryDirectory() as folder:
        print(many(min(_MANY, chosen.most)), flush=True)
        print(stored(chosen.store or f"{folder}/runs.db", min(1000, chosen.most)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
