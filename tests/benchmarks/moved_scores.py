"""Show which scores of the recorded runs differ between two versions, and why.

python tests/benchmarks/moved_scores.py record FILE      with each version: one line a run
python tests/benchmarks/moved_scores.py compare OLD NEW

Run `record` of the older version with its own checkout first on PYTHONPATH. Runs are scored in
order with all-MiniLM-L6-v2 and one memory, as a fresh process would.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from kp_langchain import Scorer
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from tests.agents import shape
from tests.recorded import load, play


def record(file: Path) -> None:
    """Play all recorded runs and write what came of each."""
    logging.disable(logging.WARNING)
    scorer = Scorer()
    scorer.load()
    kept: list[Any] = []
    seen = play(load(), "conversation", "raise", scorer=scorer, keep=kept)
    print(f"{seen.runs} runs, {len(seen.agent_errors)} exceptions, {seen.roots} root runs, "
          f"{seen.traces} traces, {seen.empty} empty")  # fmt: skip
    with file.open("w") as out:
        for run, scored in kept:
            breakdown = scored.breakdown
            line = {
                "run_id": run["run_id"],
                "source": run["source"],
                "label": run["success"],
                "success": scored.trace.metadata.success,
                "steps": shape(scored.trace),
                "total": breakdown.total,
                "decision": scored.decision,
                **{name: getattr(breakdown, name).value for name in DIMENSION_NAMES},
            }
            out.write(json.dumps(line) + "\n")


def compare(old: Path, new: Path) -> None:
    """Print by source and cause how many scores moved, and by how much."""
    before, after = (
        {line["run_id"]: line for line in map(json.loads, file.read_text().splitlines())}
        for file in (old, new)
    )
    moved: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    decisions: defaultdict[tuple[str, str], int] = defaultdict(int)
    for run_id, one in before.items():
        other = after[run_id]
        change = other["total"] - one["total"]
        if abs(change) < 1e-9:
            continue
        causes = []
        if one["success"] != other["success"]:
            causes.append("success")
        if one["steps"] != other["steps"]:
            causes.append("steps")
        if abs(one["novelty"] - other["novelty"]) > 1e-9:
            causes.append("novelty")
        cause = " and ".join(causes) or "other"
        for source in (one["source"], "all"):
            moved[source, cause].append(change)
        if one["decision"] != other["decision"]:
            decisions[one["decision"], other["decision"]] += 1
    print(f"{len(before)} runs before, {len(after)} after")
    print(f"{'source':20}{'cause':24}{'runs':>6}{'mean':>9}{'median':>9}{'min':>9}{'max':>9}")
    for (source, cause), changes in sorted(moved.items()):
        print(
            f"{source:20}{cause:24}{len(changes):6}{statistics.mean(changes):+9.3f}"
            f"{statistics.median(changes):+9.3f}{min(changes):+9.3f}{max(changes):+9.3f}"
        )
    for (earlier, later), count in sorted(decisions.items()):
        print(f"{count} runs: {earlier} -> {later}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.file)
    else:
        compare(options.old, options.new)


if __name__ == "__main__":
    main()
