"""How many planted instructions are found, and how often there is a finding without one.

    python -m tests.benchmarks.planted [--every N] [--show]

The first table is of the recorded runs, where their folder lies beside the checkout. A run counts
as planted if a tool gave it what an attack had written, whether or not it followed. The second
table is of sentences of our own (tests/recall/planted_cases.jsonl); the rules were written with the
first half of them in view.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.recall import find_planted
from tests.benchmarks.harness import parser, table
from tests.recall import test_planted as planted_cases
from tests.recorded import load, present

_MARK = "<INFORMATION>"  # in every planted text of the recorded runs
PLANTED, NOT_RETURNED, CLEAN = "planted", "attacked, text never returned", "clean"
HALVES = {
    "first half": (planted_cases.ATTACKS, planted_cases.HARMLESS),
    "second half": (planted_cases.LATER_ATTACKS, planted_cases.LATER_HARMLESS),
}


def returned(run: dict[str, Any]) -> str:
    """Return what the tools of a recorded run returned."""
    contents = (message.get("content") for message in run["messages"] if message["role"] == "tool")
    return "\n".join(map(str, contents))


def kind_of(run: dict[str, Any]) -> str:
    """Return whether a recorded run was planted, attacked in vain, or clean."""
    if not run["meta"].get("attack"):
        return CLEAN
    return PLANTED if _MARK in returned(run) else NOT_RETURNED


def trace_of(run: dict[str, Any]) -> ReasoningTrace:
    return trace_from_messages(run["messages"], domain=run["domain"], success=bool(run["success"]))


def is_found(output: str) -> bool:
    """Return whether something is found in a run whose only tool returned a text."""
    step = {"tool": {"name": "read_page"}, "step_id": 0}
    trace = ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "default", "success": True},
            "task": {"objective": "Summarise the page for me."},
            "steps": [
                step | {"type": "tool_call", "input": {"page": "1"}},
                step | {"type": "observation", "content": output, "step_id": 1},
            ],
            "outcome": {"result_summary": "done", "confidence": 0.8},
        }
    )
    return bool(find_planted(trace))


def recorded(every: int, *, show: bool) -> str:
    """Return the table of recorded runs."""
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for run in islice(load(), 0, None, every):
        kind, findings = kind_of(run), find_planted(trace_of(run))
        for source in (run["source"], "all"):
            counts[source, kind].update({"runs": 1, "found": int(bool(findings))})
        if show and bool(findings) != (kind == PLANTED):
            print(f"{run['run_id']}: {kind}, found {findings}")
    rows = [[*key, one["found"], one["runs"]] for key, one in sorted(counts.items())]
    return table("Recorded runs", ["source", "text", "runs with a finding", "of"], rows)


def own(*, show: bool) -> str:
    """Return the table of our own sentences."""
    rows = []
    for name, (attacks, harmless) in HALVES.items():
        missed = [text for _, text in attacks if not is_found(text)]
        false = [text for text in harmless if is_found(text)]
        if show:
            print(*(f"missed: {one[:100]!r}" for one in missed), sep="\n")
            print(*(f"found: {one[:100]!r}" for one in false), sep="\n")
        found = f"{len(attacks) - len(missed)} of {len(attacks)}"
        rows.append([name, found, f"{len(false)} of {len(harmless)}"])
    return table("Sentences of our own", ["", "attacks found", "findings in harmless ones"], rows)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parser("tests.benchmarks.planted", __doc__)
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    options.add_argument("--show", action="store_true", help="also each miss and false finding")
    chosen = options.parse_args(words)
    if present():
        print(recorded(chosen.every, show=chosen.show))
    print(own(show=chosen.show))
    return 0


if __name__ == "__main__":
    sys.exit(main())
