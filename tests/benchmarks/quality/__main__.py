"""Does the score mean something? It is held against runs of which the truth is known.

    pip install -e '.[bench]'
    python -m tests.benchmarks.quality [FILE ...] [--verdicts N] [--curve N ...] [--out FOLDER]

A file holds one run a line, as JSON: `messages` (in OpenAI's form or LangChain's) or `trace` (in
wire form), `success` (true, false, or null where it is not known), `source`, and if you like
`domain` and `task`; it may be compressed (`.gz`). Lines that are no run are reported and left out.
By default the recorded runs are taken, where they lie beside the checkout: some 5 minutes.

Prints tables in Markdown and writes `quality.json` and `quality.svg` into the folder.

How it is measured
  Each source stands for itself, as a domain does. Its runs are scored one after the other, in an
  order shuffled by a fixed seed, with the weights, thresholds and embedding model in force, and
  with the outcome that each run looked to have, not the truth.
  AUC is the chance that a good run has a higher number than a bad one; 0.50 is a coin. Intervals
  are of 95 %, with tasks, not runs, as what was sampled. Sources with fewer than 10 good or 10 bad
  runs are only counted.
  Of each source so many verdicts are drawn, several times, and a model is fitted to them. What is
  said of it, and of the score with it, rests on runs of tasks that the model never saw. A model
  that is refused is not used: the score stays as it was. Figures of several draws are means.
  The top tenth is the success rate among the tenth of runs with the highest scores, over that of
  all. What is refused is not used here, either, except in the column that says so.
  The forms of worth are held against runs that nobody looked at: of each source, so many runs get
  a verdict, and those of other tasks come after them and are ranked; all of that several times.
  There, models are used whether they were refused or not, except in the row that says so.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kp_langchain.config import Settings
from kp_langchain.embedding.embedder_protocol import resolve_embedder
from tests.benchmarks import machine
from tests.benchmarks.quality import (
    drawing,
    draws,
    installed,
    models,
    promises,
    rates,
    runs,
    scores,
    selection,
    selection_tables,
)
from tests.benchmarks.quality.tables import renewed, tables
from tests.recorded import FOLDER

RECORDED = FOLDER / "runs.jsonl.gz"
ENOUGH = 10  # runs of either kind


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE",
                        help="labelled runs (default: the recorded ones)")  # fmt: skip
    parser.add_argument("--task", metavar="FIELD",
                        help="where a line names its task (default: task)")  # fmt: skip
    parser.add_argument("--verdicts", type=int, default=200, metavar="N",
                        help="of a source, at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--curve", nargs="+", type=int, default=[25, 50, 100, 200, 400],
                        metavar="N", help="numbers of verdicts (default: %(default)s)")  # fmt: skip
    parser.add_argument("--draws", type=int, default=5, metavar="N",
                        help="how often verdicts are drawn (default: %(default)s)")  # fmt: skip
    parser.add_argument("--label-draws", type=int, default=20, metavar="N",
                        help="how often labels are drawn for what is installed; 0: not at all "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--no-embedder", action="store_true",
                        help="leave novelty at 0.5")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path(".benchmarks"), metavar="FOLDER",
                        help="where to write (default: %(default)s)")  # fmt: skip
    parser.add_argument("--into", type=Path, metavar="FILE",
                        help="renew tables of the same heads in a Markdown file")  # fmt: skip
    chosen = parser.parse_args()
    if not chosen.files:
        # There, some tasks were reworded between the runs.
        chosen.files, chosen.task = [RECORDED], chosen.task or "meta.task_id"
    for file in [*chosen.files, *filter(None, [chosen.into])]:
        if not file.is_file():
            parser.error(f"{file}: no such file")
    if min(chosen.verdicts, chosen.draws, *chosen.curve) < 1 or chosen.label_draws < 0:
        parser.error(
            "--verdicts, --curve and --draws take numbers above 0, --label-draws 0 or more"
        )
    return chosen


def main() -> int:
    """Measure, print and write; return 1 where there is nothing to measure."""
    chosen = options()
    if find_spec("sklearn") is None:
        print("fitting needs scikit-learn: pip install -e '.[bench]'", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    began_at, began_s = datetime.now(UTC), time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {line}", file=sys.stderr)

    found = runs.read(chosen.files, tell, chosen.task or "task")
    counts = f"{len(found.labelled)} labelled, {found.unlabelled.total()} not, {found.skipped} bad"
    if not found.labelled:
        print(f"no labelled run to measure with: {counts}", file=sys.stderr)
        return 1
    report: dict[str, Any] = {
        "began_at": began_at.isoformat(timespec="seconds"),
        "files": [file.name for file in chosen.files],
        "labelled": len(found.labelled),
        "unlabelled": dict(found.unlabelled),
        "skipped": found.skipped,
        "verdicts": chosen.verdicts,
        "draws": chosen.draws,
        "machine": machine.description(),
        **_measured(found, chosen, tell),
        "took_s": round(time.monotonic() - began_s),
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    written = chosen.out / "quality.json"
    written.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    print(f"Runs: {counts}.\n")
    printed = [*tables(report), *selection_tables.tables(report)]
    if report["installed"]:
        printed += [*installed.tables(report["installed"]), *promises.tables(report["promises"])]
    print("\n".join(printed))
    if chosen.into is not None:
        text = chosen.into.read_text(encoding="utf-8")
        chosen.into.write_text(renewed(text, printed), encoding="utf-8")
    try:
        drawn = drawing.draw(report, chosen.out / "quality.svg")
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install -e '.[bench]'", file=sys.stderr)
    else:
        print(drawn or "no plot: nothing could be learned", file=sys.stderr)
    print(written, file=sys.stderr)
    return 0


def _measured(found: runs.Runs, chosen: argparse.Namespace, tell: Any) -> dict[str, Any]:
    by_source: defaultdict[str, list[runs.Run]] = defaultdict(list)
    for run in found.labelled:
        by_source[run.source].append(run)
    settings = Settings()
    embedder = None if chosen.no_embedder else resolve_embedder("auto")
    numbers = sorted({*chosen.curve, chosen.verdicts})
    figures, gains, pass_rates = {}, {}, {}
    learnable = []
    for name, of_source in sorted(by_source.items(), key=lambda item: (-len(item[1]), item[0])):
        tell(f"{name}: {len(of_source)} runs")
        source = scores.scored(name, of_source, settings, embedder)
        one = scores.figures(source)
        one["enough"] = min(one["successes"], one["runs"] - one["successes"]) >= ENOUGH
        figures[name] = one
        if not one["enough"]:
            continue
        learnable.append(source)
        one["learned"] = models.by_verdicts(source, numbers, chosen.draws, tell)
        if drawn := draws.drawn(source, chosen.draws, tell):
            gains[name] = (drawn, selection.gains(source, drawn))
            pass_rates[name] = rates.rates(source, drawn)
    return {
        "sources": figures,
        "selection": selection.report(gains) if gains else None,
        "pass_rates": pass_rates,
        "installed": installed.figures(learnable, chosen.label_draws, tell)
        if chosen.label_draws
        else {},
        "promises": promises.figures(learnable, chosen.label_draws, tell)
        if chosen.label_draws
        else {},
    }


if __name__ == "__main__":
    sys.exit(main())
