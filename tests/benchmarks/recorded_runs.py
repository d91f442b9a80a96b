"""Play all recorded runs through real agent loops in every mode and print what was recorded.

python tests/benchmarks/recorded_runs.py [--every N]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.recorded import ERRORS, FOLDER, MODES, load, play, present


def main() -> None:
    """Print one line per mode and error style, then the scores per source."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="play every Nth run")
    options = parser.parse_args()
    if not present():
        sys.exit(f"no recorded runs at {FOLDER}")
    logging.disable(logging.WARNING)
    runs = list(itertools.islice(load(), 0, None, options.every))
    print(f"{len(runs)} runs")
    print(
        f"{'mode':13}{'errors':15}{'loop':7}{'agent err.':>10}{'roots':>7}{'traces':>8}{'empty':>7}"
        f"{'other':>7}{'calls':>8}{'steps':>8}{'errors':>8}{'steps':>7}{'recov.':>8}{'s':>7}"
    )
    for mode, errors, use_async in itertools.product(MODES, ERRORS, (False, True)):
        if mode == "wrapped" and use_async:
            continue  # the replayer has no asynchronous wrapped mode
        began = time.perf_counter()
        seen = play(runs, mode, errors, use_async=use_async)
        print(
            f"{mode:13}{errors:15}{'async' if use_async else 'sync':7}"
            f"{len(seen.agent_errors):10}{seen.roots:7}{seen.traces:8}{seen.empty:7}"
            f"{sum(seen.other_fates.values()):7}{seen.tool_calls:8}{seen.tool_call_steps:8}"
            f"{seen.tool_errors:8}{seen.error_steps:7}{seen.recoveries:8}"
            f"{time.perf_counter() - began:7.0f}",
            flush=True,
        )
        for line in (*seen.agent_errors[:5], *seen.mismatches[:5]):
            print("   ", line)
        if (mode, errors, use_async) == ("conversation", "raise", False):
            scores = seen.scores
    print(f"\n{'source':20}{'runs':>6}{'p5':>7}{'p50':>7}{'p90':>7}{'p95':>7}{'max':>7}{'pass':>7}")
    everything = [pair for pairs in scores.values() for pair in pairs]
    for source, pairs in [*sorted(scores.items()), ("all", everything)]:
        totals = sorted(total for total, _ in pairs)
        cut = (
            statistics.quantiles(totals, n=20, method="inclusive")
            if len(totals) > 1
            else totals * 19
        )
        print(
            f"{source:20}{len(totals):6}{cut[0]:7.3f}{cut[9]:7.3f}{cut[17]:7.3f}{cut[18]:7.3f}"
            f"{totals[-1]:7.3f}{sum(passed for _, passed in pairs) / len(pairs):7.1%}"
        )


if __name__ == "__main__":
    main()
