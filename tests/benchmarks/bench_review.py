"""Measure what `review` asks of a store with many runs.

    python tests/benchmarks/bench_review.py [--runs N] [--database FILE]

Runs of about 10 KB are written into a new file, or are taken from an existing one. Then each
question is asked five times: the first page of 30 runs, the number of all that match, and the
statistics of every domain.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain import ReasoningTrace, Scorer, TraceStore
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.review import domain_stats
from kp_langchain.run_keys import RunKeys

BATCH = 1000
REPETITIONS = 5
WORDS = [f"{start}{end}" for start in "bcdfghjklmnprstvw" for end in ("ale", "ine", "oan", "une")]
TOOLS = ["search", "ledger", "mail", "calendar", "browser", "shell"]
QUESTIONS: dict[str, dict[str, Any]] = {
    "all runs": {},
    "of a domain": {"domain": "finance"},
    "of a rare domain": {"domain": "medical"},
    "that were kept": {"decision": "contributed"},
    "of the last day": {"since": datetime.now(UTC) - timedelta(days=1)},
    "that a rule applied to": {"rule": "single_tool"},
    "that used a tool": {"tool": "shell"},
    "that used a tool nobody used": {"tool": "nothing"},
    "that recovered from errors": {"recovered_errors": True},
    "of a session": {"session": "session 7"},
    "with a tag": {"tag": "nightly"},
    "with a frequent word": {"search": "bale"},
    "with two words": {"search": "bale cine"},
    "with a word that no run has": {"search": "nothing"},
}


def runs(count: int) -> Iterator[ScoredTrace]:
    """Yield scored runs, the oldest first, one a minute."""
    drawn, scorer, now = random.Random(1), Scorer(embedder=None), datetime.now(UTC)
    for number in range(count):
        domain = drawn.choices(["finance", "code", "other", "medical"], [40, 30, 29, 1])[0]
        names = drawn.choices(TOOLS[: drawn.randint(1, 6)], k=drawn.randint(1, 3))
        steps: list[dict[str, Any]] = [{"type": "thought", "content": text(drawn, 40)}]
        for name in names:
            steps += [
                {"type": "tool_call", "tool": {"name": name}, "input": {"q": text(drawn, 8)}},
                {
                    "type": "error_recovery" if drawn.random() < 0.1 else "observation",
                    "tool": {"name": name},
                    "content": text(drawn, 600),
                },
            ]
        trace = ReasoningTrace.model_validate(
            {
                "metadata": {
                    "task_domain": domain,
                    "success": True,
                    "created_at": now - timedelta(minutes=count - number),
                },
                "task": {"objective": text(drawn, 20)},
                "steps": [step | {"step_id": at} for at, step in enumerate(steps)],
                "outcome": {"result_summary": text(drawn, 40), "confidence": drawn.random()},
            }
        )
        breakdown = scorer.score(trace)
        yield ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decide(breakdown.total, 0.6),
            threshold=0.6,
            run_id=uuid.UUID(int=drawn.getrandbits(128)),
            keys=RunKeys(
                session=f"session {number // 10}",
                tags=("nightly",) if drawn.random() < 0.2 else (),
            ),
        )


def text(drawn: random.Random, words: int) -> str:
    """Return so many random words."""
    return " ".join(drawn.choices(WORDS, k=words))


def fill(store: TraceStore, count: int) -> None:
    """Write runs in batches."""
    batch: list[ScoredTrace] = []
    for one in runs(count):
        batch.append(one)
        if len(batch) == BATCH:
            store.add_many(batch)
            batch = []
    store.add_many(batch)


def milliseconds(ask: Callable[[], object]) -> float:
    """Return the median time of a question."""
    times = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return sorted(times)[REPETITIONS // 2] * 1000


def main() -> None:
    """Print a line for each question."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--database", type=Path, help="a store to ask, in place of a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.database or Path(folder) / "runs.db"
        with TraceStore(path) as store:
            if options.database is None:
                began = time.perf_counter()
                fill(store, options.runs)
                print(f"written in {time.perf_counter() - began:.0f} s")
            print(f"{store.count():,} runs, {path.stat().st_size / 1e6:,.0f} MB\n")
            print(f"{'runs':32}{'match':>9}{'by time':>10}{'by score':>10}{'count':>8}   ms")
            for name, filters in QUESTIONS.items():
                print(f"{name:32}{store.count(**filters):9,}", end="")
                for sort in ("time", "score"):
                    print(f"{milliseconds(page(store, sort, filters)):10.1f}", end="")
                print(f"{milliseconds(lambda which=filters: store.count(**which)):8.1f}")
            began = time.perf_counter()
            domain_stats(store.summaries())
            print(f"\nstatistics of all domains: {time.perf_counter() - began:.1f} s")


def page(store: TraceStore, sort: Any, filters: dict[str, Any]) -> Callable[[], object]:
    """Return what asks for the first page."""
    return lambda: store.runs(limit=30, sort=sort, **filters)


if __name__ == "__main__":
    main()
