"""Where the default thresholds must be so that about one recorded run in ten passes.

    python -m tests.benchmarks.thresholds [--every N]

Recorded runs, which must lie beside the checkout, are scored under every profile with default
outcomes, with the embedding model and without. The order is shuffled by a fixed seed, because
novelty depends on what came before.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import islice

from kp_langchain import ReasoningTrace, Scorer, trace_from_messages
from kp_langchain.gate import DEFAULT_THRESHOLDS
from kp_langchain.scoring import PROFILES, resolve_embedder
from tests.benchmarks.harness import parser, table
from tests.benchmarks.workspace import KnownEmbeddings
from tests.recorded import DOMAINS, FOLDER, load, present

ENOUGH_RUNS = 50


def scores(traces: Sequence[ReasoningTrace], profile: str, embedder: object) -> list[float]:
    """Return the scores of traces, one after the other, as if all were of one domain."""
    scorer = Scorer(embedder=embedder)
    found = []
    for trace in traces:
        metadata = trace.metadata.model_copy(update={"task_domain": profile})
        found.append(scorer.evaluate(trace.model_copy(update={"metadata": metadata})).total)
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print the table of thresholds; return 1 where there are no recorded runs."""
    options = parser("tests.benchmarks.thresholds", __doc__)
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    every = options.parse_args(words).every
    if not present():
        print(f"no recorded runs at {FOLDER}", file=sys.stderr)
        return 1
    runs = list(islice(load(), 0, None, every))
    random.Random(1).shuffle(runs)
    domains = [DOMAINS.get(run["domain"], run["domain"]) for run in runs]
    traces = [trace_from_messages(run["messages"]) for run in runs]
    known = KnownEmbeddings(resolve_embedder("auto"))
    rows = []
    for profile in PROFILES:
        for embedder, threshold in (
            (known, DEFAULT_THRESHOLDS[profile].measured),
            (None, DEFAULT_THRESHOLDS[profile].unmeasured),
        ):
            totals = scores(traces, profile, embedder)
            own = [
                total for total, domain in zip(totals, domains, strict=True) if domain == profile
            ]
            passed = sum(total >= threshold for total in totals) / len(totals)
            rows.append(
                [
                    profile,
                    "not measured" if embedder is None else "measured",
                    len(own),
                    f"{statistics.median(own):.2f}" if own else "-",
                    f"{_p90(own):.3f}" if len(own) >= ENOUGH_RUNS else "too few",
                    f"{_p90(totals):.3f}",
                    f"{threshold:.2f}",
                    f"{passed:.0%}",
                ]
            )
    head = ["domain", "novelty", "runs of the domain", "their median", "their 90th percentile",
            f"of all {len(runs):,} runs", "threshold", "of all runs pass"]  # fmt: skip
    print(table("Thresholds", head, rows))
    return 0


def _p90(totals: list[float]) -> float:
    return statistics.quantiles(totals, n=10, method="inclusive")[8]


if __name__ == "__main__":
    sys.exit(main())
