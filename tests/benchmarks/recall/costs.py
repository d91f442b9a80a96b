"""What a search costs at 10,000 kept traces, beside the embedding."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kp_langchain import ReasoningTrace, Scorer, TraceStore
from kp_langchain.embedding.embedder_protocol import Embedder
from kp_langchain.gate import ScoredTrace
from kp_langchain.recall import ExampleSearch

TRACES = 10_000
QUERIES = 300
_DOMAIN = "finance"
_DIMENSIONS = 384
_WORDS = [f"{start}{end}" for start in "bcdfghjklmnprstvw" for end in ("ale", "ine", "oan", "une")]
_TOOLS = ("search", "ledger", "mail", "calendar", "browser", "shell")
_BATCH, _LATER = 1000, 20


class ByTopic:
    """Vectors at no cost: texts with the same first word are similar."""

    model = "by topic"

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        rows = [_direction(text.partition(" ")[0]) + 0.8 * _direction(text) for text in texts]
        return np.array(rows, dtype=np.float32)


def _direction(text: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=_DIMENSIONS)


@dataclass(frozen=True)
class Costs:
    """Times in milliseconds, but for those that say seconds.

    Attributes:
        traces: How many kept traces were searched.
        median: Of a search that embeds nothing.
        slowest_of_20: What one search in 20 takes longer than.
        of_three: Of a search for three examples, the median.
        after_one_more: Of the first search after one more run was kept, the median.
        embedding: The median of embedding a task with the model of recall.
        first_s: Seconds of the first search of a store: all is embedded at no cost, and scanned.
        opened_s: Seconds of the first search in another process: all is read.
    """

    traces: int
    median: float
    slowest_of_20: float
    of_three: float
    after_one_more: float
    embedding: float
    first_s: float
    opened_s: float


def costs(embedder: Embedder, traces: int = TRACES, queries: int = QUERIES) -> Costs:
    """Search a new store in a file.

    Args:
        embedder: Its time is measured beside.
        traces: How many traces to keep.
        queries: How many tasks to look up.
    """
    drawn = random.Random(2)
    tasks = [_text(drawn, 20) for _ in range(queries)]
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder) / "kp.db") as store:
        runs = _kept(traces + _LATER)
        while batch := list(islice(runs, min(_BATCH, traces - store.count()))):
            store.add_many(batch)
        first_s = _seconds(ExampleSearch(store, ByTopic()), tasks[0])
        search = ExampleSearch(store, ByTopic())
        opened_s = _seconds(search, tasks[0])
        times = sorted(1000 * _seconds(search, task) for task in tasks)
        of_three = [1000 * _seconds(search, task, limit=3) for task in tasks]
        after_one_more = []
        for run, task in zip(runs, tasks, strict=False):
            store.add(run)
            after_one_more.append(1000 * _seconds(search, task))
    embedder.embed(tasks[:1])
    embeddings = []
    for task in tasks[:50]:
        began = time.perf_counter()
        embedder.embed([task])
        embeddings.append(1000 * (time.perf_counter() - began))
    return Costs(
        traces,
        statistics.median(times),
        times[int(0.95 * len(times))],
        statistics.median(of_three),
        statistics.median(after_one_more),
        statistics.median(embeddings),
        first_s,
        opened_s,
    )


def _seconds(search: ExampleSearch, task: str, limit: int = 1) -> float:
    began = time.perf_counter()
    found = search.find(task, domain=_DOMAIN, floor=0.0, limit=limit)
    took = time.perf_counter() - began
    if not found.found:
        raise RuntimeError(f"nothing was found for {task!r}: {found.reason}")
    return took


def _kept(number: int) -> Iterator[ScoredTrace]:
    drawn, scorer = random.Random(1), Scorer(embedder=None)
    for _ in range(number):
        steps: list[dict[str, Any]] = [{"type": "thought", "content": _text(drawn, 20)}]
        for name in drawn.choices(_TOOLS, k=drawn.randint(1, 4)):
            tool = {"name": name}
            steps += [
                {"type": "tool_call", "tool": tool, "input": {"q": _text(drawn, 8)}},
                {"type": "observation", "tool": tool, "content": _text(drawn, 60)},
            ]
        trace = ReasoningTrace.model_validate(
            {
                "metadata": {"task_domain": _DOMAIN, "success": True},
                "task": {"objective": _text(drawn, 20)},
                "steps": [step | {"step_id": at} for at, step in enumerate(steps)],
                "outcome": {"result_summary": _text(drawn, 20), "confidence": drawn.random()},
            }
        )
        run_id = uuid.UUID(int=drawn.getrandbits(128))
        yield ScoredTrace(trace, scorer.score(trace), "contributed", 0.0, run_id)


def _text(drawn: random.Random, words: int) -> str:
    return " ".join(drawn.choices(_WORDS, k=words))
