"""What happens to a run after it ended: how soon it is on disk, and what each part of that costs.

    python -m tests.benchmarks.background [--runs 200]

An agent of 30 steps runs, one run after the other, with everything on but an embedding model. Its
texts are those of `tests.benchmarks`, first the short ones, then such as real agents have. Of each
run are measured

- the time from the end of the run until its row was committed, and until it was judged and settled;
- the CPU that its parts took on the engine's thread: the redacted steps (build), the first
  transaction (record), the score and the gate (judge), and the second transaction (settle).
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer
from kp_langchain.recording import engine
from kp_langchain.recording.run_builder import RunBuilder
from kp_langchain.store.journal import Journal
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.workload import TURNS, Player, Texts, config_of, make_agent

_WARM_UP = 20
_PARTS: dict[str, tuple[Any, str]] = {
    "build": (RunBuilder, "build"),
    "record": (Journal, "record"),
    "judge": (engine, "judge_run"),
    "settle": (Journal, "settle"),
}


def measure(
    runs: int, texts: Texts | None
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the CPU seconds of the parts of each run, and the seconds until it was written.

    Args:
        runs: How many runs.
        texts: What the model and the tool say; None for short texts.
    """
    cpu_s: dict[str, list[float]] = defaultdict(list)
    ended_at: dict[str, list[float]] = defaultdict(list)
    originals = {part: getattr(owner, name) for part, (owner, name) in _PARTS.items()}
    for part, (owner, name) in _PARTS.items():
        setattr(owner, name, _timed(originals[part], cpu_s[part], ended_at[part]))
    delays: dict[str, list[float]] = {"record": [], "settle": []}
    try:
        with TemporaryDirectory() as folder:
            handler = KPCallbackHandler(
                store=Path(folder) / "traces.db",
                scorer=Scorer(embedder=None),
                policy=DomainPolicy(threshold=0.0, twin_similarity=1.0),
            )
            player = Player(make_agent(TURNS, texts))
            for _ in range(_WARM_UP + runs):
                player.invoke(config_of([handler]))
                returned_at = time.perf_counter()
                handler.flush()
                for part, samples in delays.items():
                    samples.append(max(0.0, ended_at[part][-1] - returned_at))
            player.close()
            handler.close()
    finally:
        for part, (owner, name) in _PARTS.items():
            setattr(owner, name, originals[part])
    return (
        {part: samples[_WARM_UP:] for part, samples in cpu_s.items()},
        {part: samples[_WARM_UP:] for part, samples in delays.items()},
    )


def _timed(
    function: Callable[..., Any], cpu_s: list[float], ended_at: list[float]
) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        result = function(*args, **kwargs)
        cpu_s.append(time.thread_time() - began)
        ended_at.append(time.perf_counter())
        return result

    return timed


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parser("tests.benchmarks.background", __doc__)
    options.add_argument("--runs", type=int, default=200)
    runs = options.parse_args(words).runs
    logging.disable(logging.CRITICAL)
    print(machine(), "\n")
    costs, delays = [], []
    for title, texts in (("short", None), ("as of real agents", Texts(seed=1))):
        cpu_s, delay_s = measure(runs, texts)
        medians = [1e3 * median(cpu_s[part]) for part in _PARTS]
        costs.append([title, *(f"{one:.2f}" for one in medians), f"{sum(medians):.2f}"])
        for part, samples in delay_s.items():
            cuts = quantiles([1e3 * one for one in samples], n=100)
            delays.append([title, part, f"{cuts[49]:.1f}", f"{cuts[98]:.1f}"])
    print(table("CPU of a run on the engine's thread, ms", ["texts", *_PARTS, "in all"], costs))
    head = ["texts", "transaction", "median", "p99"]
    print(table("From the end of a run until it was committed, ms", head, delays))
    return 0


if __name__ == "__main__":
    sys.exit(main())
