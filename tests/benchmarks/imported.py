"""Record real agent runs by the handler and by tracers at once, import, and print what is equal.

    python -m tests.benchmarks.imported [--every N]

It needs the folder of recorded runs beside the checkout. By default every seventh run is played.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
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


def main() -> None:
    """Print, by mode and format, how many runs have equal traces, and what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=7, help="play every Nth run")
    options = parser.parse_args()
    if not present():
        sys.exit(f"no recorded runs at {FOLDER}")
    logging.disable(logging.WARNING)
    runs = list(itertools.islice(load(), 0, None, options.every))
    print(f"{len(runs)} runs")
    for mode, errors in MODES:
        equal: Counter[str] = Counter()
        reordered: Counter[str] = Counter()
        shown: list[str] = []
        traces = 0
        for run in runs:
            scored, files = play(run, mode, errors)
            traces += len(scored)
            for name in FORMATS:
                found = found_differences(files[name], scored)
                equal[name] += not found
                if found and not found_differences(files[name], scored, any_order=True):
                    reordered[name] += 1
                    continue
                shown += [f"  {name} {run['run_id']}: {one[:300]}" for one in found[:1]]
        print(f"{mode}, {errors}: {traces} traces of {len(runs)} runs")
        for name in FORMATS:
            print(f"  {name:15}{equal[name]:5} equal{reordered[name]:5} but for parallel tools")
        print("\n".join(shown), flush=True)


if __name__ == "__main__":
    main()
