"""Record real agent runs by the handler and by tracers at once, import, and print what is equal.

    python -m tests.benchmarks.imported [--every N]

It needs the folder of recorded runs beside the checkout. By default every seventh run is played.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
from tests.benchmarks.harness import parser, table
from tests.importing.ways import differences, import_values, traced
from tests.recorded import FOLDER, load, present, replayer

FORMATS = ("langsmith", "openinference", "genai")
MODES = (("conversation", "raise"), ("turns", "tool_exception"), ("wrapped", "return"))


def play(run: dict[str, Any], mode: str, errors: str) -> tuple[list[ScoredTrace], dict[str, Any]]:
    """Replay a run; return what the handler scored, and what the tracers wrote."""
    scored: list[ScoredTrace] = []
    handler = KPCallbackHandler(scorer=Scorer(embedder=None), store=None, on_scored=scored.append)
    with traced() as files:
        replayer().replay(run, [handler], mode, errors)
    assert handler.flush(60)
    return scored, {name: getattr(files, name) for name in FORMATS}


def found_differences(
    values: Any, scored: list[ScoredTrace], *, any_order: bool = False
) -> list[str]:
    """Import what a tracer wrote; return in words what differs from the handler's traces.

    Args:
        values: What the tracer wrote.
        scored: What the handler scored.
        any_order: Whether the order of tools at once may differ: each tracer hears of it as the
            threads of the tools come by.
    """
    with tempfile.TemporaryDirectory() as folder:
        imported = import_values(values, Path(folder))
    traces = [one.scored for one in imported if one.scored is not None]
    return differences(scored, traces, any_order=any_order)


def main(words: Sequence[str] | None = None) -> int:
    """Print how many runs have equal traces; return 1 where there are no recorded runs."""
    options = parser("tests.benchmarks.imported", __doc__)
    options.add_argument("--every", type=int, default=7, metavar="N", help="play every Nth run")
    every = options.parse_args(words).every
    if not present():
        print(f"no recorded runs at {FOLDER}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    runs = list(itertools.islice(load(), 0, None, every))
    rows = []
    for mode, errors in MODES:
        equal, but_for_order = Counter[str](), Counter[str]()
        for run in runs:
            scored, files = play(run, mode, errors)
            for name in FORMATS:
                is_equal = not found_differences(files[name], scored)
                equal[name] += is_equal
                differences = found_differences(files[name], scored, any_order=True)
                but_for_order[name] += not differences
                for difference in differences[:1]:
                    print(f"{name} {run['run_id']}: {difference[:300]}")
        cells = (f"{equal[name]}, {but_for_order[name]}" for name in FORMATS)
        rows.append([f"{mode}, {errors}", *cells])
    title = f"Of {len(runs)} runs, equal, and equal but for the order of tools that run at once"
    print(table(title, ["loop", *FORMATS], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
