"""What is asked of a store with many runs, and what it takes to delete some.

    python -m tests.benchmarks.store [--runs 100000]

Runs of about 10 KB are written into a new SQLite file. Each question that `review` asks is asked
five times: the first page of 30 runs, and the number of all that match. Then come the statistics of
every domain, what recall counts of a domain (each run was shown an example or held out, and each
fifth has a verdict), the deletion of a tenth of the runs, and the compaction of the file.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kp_langchain import ReasoningTrace, ScoredTrace, Scorer, TraceStore, Verdict
from kp_langchain.gate import ShownTrace, decide
from kp_langchain.review import domain_stats
from kp_langchain.run_keys import RunKeys
from tests.benchmarks.harness import machine, median_ms, parser, table

_BATCH = 1000
_THRESHOLD = 0.6
_EXAMPLES = 300
_WORDS = [f"{start}{end}" for start in "bcdfghjklmnprstvw" for end in ("ale", "ine", "oan", "une")]
_TOOLS = ("search", "ledger", "mail", "calendar", "browser", "shell")
QUESTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "of a domain": {"domain": "finance"},
    "that were kept": {"decision": "kept"},
    "of the last day": {"since": datetime.now(UTC) - timedelta(days=1)},
    "that a rule applied to": {"rule": "single_tool"},
    "that used a tool": {"tool": "shell"},
    "that used a tool nobody used": {"tool": "nothing"},
    "that recovered from errors": {"recovered_errors": True},
    "of a session": {"session": "session 7"},
    "with a tag": {"tag": "nightly"},
    "with two words in the objective": {"search": "bale cine"},
    "with a word that no run has": {"search": "nothing"},
}


def made_runs(
    count: int, *, words: int = 600, domain: str = "", with_examples: bool = False
) -> Iterator[ScoredTrace]:
    """Yield scored runs, the oldest first, one a minute.

    Args:
        count: How many.
        words: Of what a tool returned.
        domain: Of all runs; "" for several domains.
        with_examples: Whether each was shown an example or held out, and each fifth has a verdict.
    """
    drawn, scorer, now = random.Random(1), Scorer(embedder=None), datetime.now(UTC)
    for number in range(count):
        names = drawn.choices(_TOOLS[: drawn.randint(1, 6)], k=drawn.randint(1, 3))
        steps: list[dict[str, Any]] = [{"type": "thought", "content": text(drawn, 40)}]
        for name in names:
            kind = "error_recovery" if drawn.random() < 0.1 else "observation"
            tool = {"name": name}
            steps += [
                {"type": "tool_call", "tool": tool, "input": {"q": text(drawn, 8)}},
                {"type": kind, "tool": tool, "content": text(drawn, words)},
            ]
        of_several = drawn.choices(["finance", "code", "other", "medical"], [40, 30, 29, 1])[0]
        trace = ReasoningTrace.model_validate(
            {
                "metadata": {
                    "task_domain": domain or of_several,
                    "success": True,
                    "created_at": now - timedelta(minutes=count - number),
                },
                "task": {"objective": text(drawn, 20)},
                "steps": [step | {"step_id": at} for at, step in enumerate(steps)],
                "outcome": {"result_summary": text(drawn, 40), "confidence": drawn.random()},
            }
        )
        breakdown = scorer.score(trace)
        threshold = 0.0 if domain else _THRESHOLD
        example = ShownTrace(f"kp:trace:{number % _EXAMPLES}", 1, 0.8, number % 10 == 0, True)
        yield ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decide(breakdown.total, threshold),
            threshold=threshold,
            run_id=uuid.UUID(int=drawn.getrandbits(128)),
            keys=RunKeys(
                session=f"session {number // 10}",
                tags=("nightly",) if drawn.random() < 0.2 else (),
            ),
            shown=(example,) if with_examples else (),
            verdict=Verdict(success=True) if with_examples and number % 5 == 0 else None,
        )


def text(drawn: random.Random, words: int) -> str:
    """Return so many random words."""
    return " ".join(drawn.choices(_WORDS, k=words))


def fill(store: TraceStore, runs: Iterator[ScoredTrace]) -> None:
    """Write runs in batches."""
    while batch := list(itertools.islice(runs, _BATCH)):
        store.add(*batch)


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of a call."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each question."""
    options = parser("tests.benchmarks.store", __doc__)
    options.add_argument("--runs", type=int, default=100_000, metavar="N")
    count = options.parse_args(words).runs
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with TraceStore(path) as store:
            took_s = seconds(lambda: fill(store, made_runs(count, with_examples=True)))
            size_mb = path.stat().st_size / 1e6
            print(f"{count:,} runs, {size_mb:,.0f} MB, written in {took_s:.0f} s\n", flush=True)
            rows = []
            for name, filters in QUESTIONS.items():

                def page(sort: Any, which: dict[str, Any] = filters) -> Callable[[], object]:
                    return lambda: store.runs(limit=30, sort=sort, **which)

                asked = [page("time"), page("score"), lambda which=filters: store.count(**which)]
                cells = (f"{median_ms(one):.1f}" for one in asked)
                rows.append([name, f"{store.count(**filters):,}", *cells])
            head = ["runs", "match", "first page by time", "by score", "count"]
            print(table("Milliseconds of what `review` asks", head, rows))
            stats_s = seconds(lambda: domain_stats(store.figures()))
            print(f"Statistics of all domains: {stats_s:.1f} s", flush=True)
            effect_ms = median_ms(lambda: store.effects.counts("finance"))
            credits_ms = median_ms(lambda: store.shown.outcome_counts("finance"))
            print(f"Counts of a domain: effect {effect_ms:.0f} ms, credits {credits_ms:.0f} ms")
            until = datetime.now(UTC) - timedelta(minutes=count - count // 10)
            delete_s = seconds(lambda: store.delete(until=until))
            print(f"{count - store.count():,} runs deleted in {delete_s:.1f} s")
            print(f"the file compacted in {seconds(store.compact):.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
