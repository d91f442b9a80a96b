"""Measure where the default thresholds must stand so that about one real run in ten passes.

    python tests/benchmarks/thresholds.py [--every N]

Recorded runs are played through real agent loops with the handler attached and default outcomes;
each trace is then scored under every profile, with the embedding model and without. The order is
shuffled by a fixed seed, because novelty depends on what came before.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain import Scorer
from kp_langchain.gate import DEFAULT_THRESHOLDS, ScoredTrace
from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.scoring.weighted_sum import combine
from kp_langchain.weights import PROFILES
from tests.recorded import DOMAINS, FOLDER, load, play, present

ENOUGH_RUNS = 50


def total_under(profile: str, scored: ScoredTrace) -> float:
    """The score of an evaluated trace had it been weighed with another profile."""
    weights = PROFILES[profile]
    contributions = [
        dimension.value * getattr(weights, name)
        for name, dimension in scored.breakdown.dimensions.items()
    ]
    trace = scored.trace
    return combine(contributions, TraceShape.of(trace), success=trace.metadata.success).total


def main() -> None:
    """Print the table of thresholds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="play every Nth run")
    options = parser.parse_args()
    if not present():
        sys.exit(f"no recorded runs at {FOLDER}")
    logging.disable(logging.WARNING)
    runs = list(itertools.islice(load(), 0, None, options.every))
    random.Random(1).shuffle(runs)
    scored: dict[bool, dict[str, list[tuple[str, float]]]] = {}
    for embedded in (True, False):
        kept: list = []
        scorer = Scorer(embedder="auto" if embedded else None)
        play(runs, "conversation", "raise", scorer=scorer, keep=kept)
        scored[embedded] = {
            profile: [
                (
                    DOMAINS.get(run["domain"], run["domain"]),
                    total_under(profile, one),
                )
                for run, one in kept
            ]
            for profile in PROFILES
        }
    print(f"{len(runs)} runs\n")
    print(
        "| profile | novelty | runs of it | median | 90th percentile | of all runs | default "
        "| pass | pass, all runs |"
    )
    print("| --- | --- |" + " ---: |" * 7)
    for profile in PROFILES:
        for embedded in (True, False):
            pairs = scored[embedded][profile]
            own = [total for domain, total in pairs if domain == profile]
            everything = [total for _, total in pairs]
            default = DEFAULT_THRESHOLDS[profile]
            threshold = default.measured if embedded else default.unmeasured
            cells = [
                profile,
                "measured" if embedded else "not measured",
                str(len(own)),
                f"{statistics.median(own):.2f}",
                f"{_p90(own):.3f}" if len(own) >= ENOUGH_RUNS else "too few",
                f"{_p90(everything):.3f}",
                f"{threshold:.2f}",
                _share(own, threshold),
                _share(everything, threshold),
            ]
            print("| " + " | ".join(cells) + " |")


def _p90(totals: list[float]) -> float:
    return statistics.quantiles(totals, n=10, method="inclusive")[8]


def _share(totals: list[float], threshold: float) -> str:
    return f"{sum(t >= threshold for t in totals) / len(totals):.0%}" if totals else "-"


if __name__ == "__main__":
    main()
