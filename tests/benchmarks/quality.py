"""Does the gate tell right runs from wrong ones, without verdicts and with some?

    pip install -e '.[bench]'
    python -m tests.benchmarks.quality [FILE ...] [--sources NAME ...] [--every N] [--draws N]

A file holds one run a line, as JSON: `messages` (in OpenAI's form or LangChain's), `success` (true,
false, or null where it is not known), `source`, and if you like `domain` and `task`; it may be
compressed (`.gz`). Lines that are no run are reported and left out. By default the recorded runs
are taken, where they lie beside the checkout: some 20 minutes on two cores. Prints tables in
Markdown.

How it is measured
  Each source stands for itself, as a domain does, and is imported into a store of its own in an
  order shuffled by a fixed seed, with `gate = "worth"` and `pass_rate = 0.1`, and once more with
  the default gate. Runs name their tasks, and retries their thread; the truth is not imported.
  Sources with fewer than 10 right or 10 wrong runs are only in the table of what the gates keep.
  Several times, the tasks of a source are split in halves. The runs of one half are asked about as
  `label next` does, one of each task first, until there are as many verdicts as a column says, or
  the half is used up. A model is fitted to them and installed if `calibrate` would install it.
  Otherwise runs rank by agreement alone, or, where tasks do not repeat, by the documents' score. A
  run with a veto flag ranks last. All figures are of the runs of the other half, ranked by their
  worth, and means of the draws.
  The lift is the share right of the first tenth, over the share right of all. AUC is the chance
  that a right run ranks before a wrong one; 0.50 is a coin; within tasks, only runs of one task are
  compared. Brier scores are those of the models that were installed, beside that of always
  predicting the share of successes among the same verdicts.
  Intervals are of 95 %. The tasks of each source are drawn anew, 1,000 times, with replacement,
  the halves and the models as they are; for means of families, the families are drawn anew as well.
  Random labels are the true ones shuffled between tasks, or drawn for each run.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from kp_langchain.calibration.model import LabelledRun
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.quality_tables import (
    Results,
    ablation_tables,
    flag_table,
    gate_table,
    source_table,
    tables_by_source,
    verdict_table,
)
from tests.benchmarks.ranks import (
    AS_THE_GATE,
    OWN_MODEL_ALONE,
    Way,
    asking_order,
    installed_model,
    learn,
    learned_from,
    measure,
)
from tests.benchmarks.sources import Source, import_source
from tests.benchmarks.workspace import RECORDED, REPEATED, has_both_outcomes, read_runs

VERDICTS = (0, 10, 25, 50, 150)
_ENOUGH = 10  # runs of either outcome
_OF_ABLATIONS = (0, 10, 50)
_OF_LABELS = (10, 15, 25, 50, 100)
_SHARES = (0.5, 0.15, 0.85)  # of successes, in turn, among labels drawn for each run
_GATE, _ALONE = "as the gate ranks", "model without agreement and flags"
_WAYS: dict[str, tuple[Way, Sequence[int]]] = {
    _GATE: (AS_THE_GATE, VERDICTS),
    "without agreement": (AS_THE_GATE._replace(agreement=False), _OF_ABLATIONS),
    "without flags": (AS_THE_GATE._replace(flags=False), _OF_ABLATIONS),
    "without guards": (AS_THE_GATE._replace(guards=False), _OF_ABLATIONS),
    "novelty counts more: confidence x (0.5 + novelty / 2)": (
        AS_THE_GATE._replace(novelty=lambda novelty: 0.5 + novelty / 2),
        _OF_ABLATIONS,
    ),
    "novelty does not count": (AS_THE_GATE._replace(novelty=lambda _: 1.0), _OF_ABLATIONS),
    _ALONE: (OWN_MODEL_ALONE, VERDICTS),
}


def installed_table(sources: Sequence[Source], draws: int) -> str:
    """Return the table of how often a model is installed from true labels and from random ones."""
    relabel: dict[str, Callable[[list[LabelledRun], int, random.Random], list[LabelledRun]]] = {
        "true": lambda runs, seed, drawn: runs,
        "random": _randomly,
    }
    counts = {label: [0, 0] for label in relabel}
    rows = []
    for number in _OF_LABELS:
        row = [str(number)]
        for label, change in relabel.items():
            drawn = installed = 0
            for source in sources:
                if number > len(source.runs):
                    continue
                for seed in range(draws):
                    runs = [learned_from(run) for run in asking_order(source.runs, seed)[:number]]
                    by_chance = random.Random(f"{number} {label} {seed} {source.name}")
                    drawn += 1
                    installed += installed_model(learn(change(runs, seed, by_chance))) is not None
            row += [str(drawn), _share(installed, drawn)]
            counts[label] = [counts[label][0] + drawn, counts[label][1] + installed]
        rows.append(row)
    rows.append(
        [
            "all",
            *(cell for drawn, one in counts.values() for cell in (str(drawn), _share(one, drawn))),
        ]
    )
    head = [
        "verdicts",
        *(f"{one}: {column}" for one in relabel for column in ("draws", "installed")),
    ]
    return table("Models installed, by labels", head, rows)


def _randomly(runs: list[LabelledRun], seed: int, drawn: random.Random) -> list[LabelledRun]:
    """Draw a label for each run, or, for every other seed, shuffle the true ones between tasks."""
    if seed % 2:
        share = _SHARES[seed // 2 % len(_SHARES)]
        return [replace(run, success=drawn.random() < share) for run in runs]
    tasks = sorted({run.task for run in runs})
    drawn.shuffle(tasks)
    order = {task: number for number, task in enumerate(tasks)}
    labels = [run.success for run in sorted(runs, key=lambda run: order[run.task])]
    places = sorted(runs, key=lambda run: run.task)
    return [replace(run, success=label) for run, label in zip(places, labels, strict=True)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    options = parser("tests.benchmarks.quality", __doc__)
    options.add_argument("files", nargs="*", type=Path, default=[RECORDED, REPEATED],
                         metavar="FILE",
                         help="labelled runs (default: the recorded ones)")  # fmt: skip
    options.add_argument("--sources", nargs="+", metavar="NAME",
                         help="by default all with both outcomes")  # fmt: skip
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    options.add_argument("--draws", type=int, default=6, metavar="N",
                         help="how often tasks are split in halves "
                         "(default: %(default)s)")  # fmt: skip
    options.add_argument("--label-draws", type=int, default=20, metavar="N",
                         help="how often labels are drawn for what is installed; 0: not at all "
                         "(default: %(default)s)")  # fmt: skip
    options.add_argument("--no-embedder", action="store_true", help="leave novelty at 0.5")
    chosen = options.parse_args(words)
    if missing := [str(file) for file in chosen.files if not file.is_file()]:
        options.error(f"no such file: {', '.join(missing)}")
    if find_spec("sklearn") is None:
        print("fitting needs scikit-learn: pip install -e '.[bench]'", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    by_source = {
        name: runs
        for name, runs in read_runs(chosen.files, chosen.every).items()
        if has_both_outcomes(runs, 1) and (not chosen.sources or name in chosen.sources)
    }
    measured_names = [name for name, runs in by_source.items() if has_both_outcomes(runs, _ENOUGH)]
    if not measured_names:
        print(f"no source with {_ENOUGH} right and {_ENOUGH} wrong runs", file=sys.stderr)
        return 1
    print(f"{machine()}\n", flush=True)
    sources, figures = [], {}
    with TemporaryDirectory(prefix="kp-quality-") as folder:
        for at, (name, runs) in enumerate(by_source.items()):
            print(f"{name}: {len(runs)} runs", file=sys.stderr, flush=True)
            source = import_source(name, runs, Path(folder) / str(at), embed=not chosen.no_embedder)
            sources.append(source)
            if name in measured_names and (found := measure(source, _WAYS, chosen.draws)):
                figures[name] = found
                lifts = [f"{found[_GATE, number].lift.value:.2f}" for number in VERDICTS]
                print(f"lift by verdicts: {', '.join(lifts)}", file=sys.stderr, flush=True)
    measured = [source for source in sources if source.name in figures]
    results = Results(measured, figures)
    print(source_table(measured))
    print(verdict_table(results, _GATE, _ALONE, VERDICTS))
    print(*tables_by_source(results, _GATE, _ALONE, VERDICTS), sep="\n")
    print(*ablation_tables(results, list(_WAYS), _OF_ABLATIONS), sep="\n")
    print(flag_table(measured))
    print(gate_table(sources, measured), flush=True)
    if chosen.label_draws:
        print(installed_table(measured, chosen.label_draws))
    return 0


if __name__ == "__main__":
    sys.exit(main())
