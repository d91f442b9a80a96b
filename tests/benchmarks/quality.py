"""Does the score mean something? It is held against runs of which the truth is known.

    pip install -e '.[bench]'
    python -m tests.benchmarks.quality [FILE ...] [--verdicts N ...] [--draws N] [--label-draws N]

A file holds one run a line, as JSON: `messages` (in OpenAI's form or LangChain's), `success` (true,
false, or null where it is not known), `source`, and if you like `domain` and `task`; it may be
compressed (`.gz`). Lines that are no run are reported and left out. By default the recorded runs
are taken, where they lie beside the checkout: some minutes for their embeddings, and as many for
the models. Prints tables in Markdown.

How it is measured
  Each source stands for itself, as a domain does, and is imported into a store of its own in an
  order shuffled by a fixed seed, with the outcome that each run looked to have, not the truth. Then
  the truth is recorded as verdicts.
  AUC is the chance that a good run has a higher number than a bad one; 0.50 is a coin. Intervals
  are of 95 %, those of the worth of 80 %, with tasks, not runs, as what was sampled. Sources with
  fewer than 10 good or 10 bad runs are left out.
  Of each source so many verdicts are drawn, several times, and `calibrate` is asked for a model and
  a gate. What it says of them rests on runs of tasks that the model never saw. A model that is
  refused is not used: the score stays as it was. Figures of several draws are means.
  Random labels are the true ones shuffled between tasks, or drawn for each run.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kp_langchain import Settings
from kp_langchain.calibration.calibrate_domain import Calibration, calibrate
from kp_langchain.calibration.measures import Estimate, auc
from kp_langchain.calibration.model import LabelledRun
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.workspace import (
    KEEPS_ALL,
    RECORDED,
    WITHOUT_MODEL,
    Run,
    Workspace,
    has_both_outcomes,
    most_common_domain,
    read_runs,
)

_ENOUGH = 10  # runs of either outcome
_ORDER_SEED = 1
_PASS_RATE = 0.1
_LABELS = ("true", "random")
_SHARES = (0.5, 0.15, 0.85)  # of successes, in turn, among labels drawn for each run


@dataclass(frozen=True)
class Source:
    """The runs of one source as a store has them, with their verdicts.

    Attributes:
        name: Its name.
        domain: The domain of its runs.
        runs: What calibration sees of each.
        as_it_is: The AUC of the scores before the verdicts.
        with_truth: The AUC of the scores after them.
    """

    name: str
    domain: str
    runs: Sequence[LabelledRun]
    as_it_is: Estimate
    with_truth: Estimate


def import_source(name: str, runs: Sequence[Run], folder: Path, *, embed: bool) -> Source:
    """Record the runs of a source, and then the truth about them."""
    order = list(runs)
    random.Random(_ORDER_SEED).shuffle(order)
    domain = most_common_domain(runs)
    workspace = Workspace(folder, domain, **KEEPS_ALL, **({} if embed else WITHOUT_MODEL))
    workspace.record(order)
    with workspace.store() as store:
        before = _scores(store.runs(limit=len(order)))
    workspace.label(order)
    with workspace.store() as store:
        after = _scores(store.runs(limit=len(order)))
        labelled = store.models.labelled(domain)
    known = [run for run in order if run.id in before]
    truth, tasks = [run.success for run in known], [run.task for run in known]
    as_it_is, with_truth = (
        auc(truth, [scores[run.id] for run in known], tasks) for scores in (before, after)
    )
    return Source(name, domain, labelled, as_it_is, with_truth)


def _scores(runs: Iterable[Any]) -> dict[str, float]:
    return {str(run.run_id): run.score for run in runs}


def learn(source: Source, runs: Sequence[LabelledRun]) -> Calibration:
    """Return what `calibrate` says of runs with verdicts."""
    policy = Settings().policy_for(source.domain)
    return calibrate(source.domain, runs, policy, pass_rate=_PASS_RATE)


def draws(source: Source, number: int, times: int) -> list[Calibration]:
    """Draw so many verdicts of a source, several times, and learn from them."""
    number = min(number, len(source.runs))
    seeds = range(1 if number == len(source.runs) else times)
    return [learn(source, random.Random(seed).sample(source.runs, number)) for seed in seeds]


def score_table(sources: Sequence[Source]) -> str:
    """Return the table of the score as it is, and with the truth reported."""
    rows = [
        [one.name, len(one.runs), len({run.task for run in one.runs}),
         f"{statistics.fmean(run.success for run in one.runs):.0%}", one.as_it_is, one.with_truth]
        for one in sources
    ]  # fmt: skip
    both = ([one.as_it_is for one in sources], [one.with_truth for one in sources])
    means = [f"{statistics.fmean(one.value for one in column):.2f}" for column in both]
    head = ["source", "runs", "tasks", "succeeded", "score", "score, true outcome reported"]
    return table("AUC of the score", head, [*rows, ["mean", "", "", "", *means]])


def model_tables(learned: dict[str, list[Calibration]]) -> Iterator[str]:
    """Yield the tables of the models, and of what they make of score and gate."""
    models: list[list[Any]] = []
    aucs: list[list[Any]] = []
    for name, found in learned.items():
        fits = [one.fit for one in found if one.fit.model is not None]
        refused = f"{sum(one.refusal is not None for one in fits)} of {len(found)}"
        if not fits:
            models.append([name, found[0].fit.runs, *["too few"] * 4, refused])
            continue
        briers = [
            (one.model.brier, one.base_brier, one.model.default_brier)
            for one in fits
            if one.model is not None and one.base_brier is not None
        ]
        means = [f"{statistics.fmean(column):.3f}" for column in zip(*briers, strict=True)]
        area = _mean([one.auc for one in fits if one.auc is not None])
        models.append([name, fits[0].runs, area, *means, refused])
        before, model, worth = _stages([one for one in found if one.fit.model is not None])
        aucs.append([name, _mean(before), _mean(model), _mean(worth)])
    head = ["source", "verdicts", "AUC", "Brier", "Brier of the base rate", "Brier by default",
            "models refused"]  # fmt: skip
    areas = [one[2].value for one in models if isinstance(one[2], Estimate)]
    mean = ["mean", "", f"{statistics.fmean(areas):.2f}" if areas else "-", "", "", "", ""]
    yield table("Confidence models, on tasks that they never saw", head, [*models, mean])
    columns = [[row[at] for row in aucs] for at in (1, 2, 3)]
    means = [f"{statistics.fmean(one.value for one in column):.2f}" for column in columns if column]
    head = ["source", "AUC as it is", "AUC with model", "AUC by worth"]
    yield table("The score on the same runs, and the worth", head, [*aucs, ["mean", *means]])


def _stages(found: Sequence[Calibration]) -> tuple[list[Estimate], list[Estimate], list[Estimate]]:
    """Return the AUCs of the score as it is, of that with the model, and of the worth."""
    before, model, worth = [], [], []
    for one in found:
        proposal = one.proposal
        if proposal is not None and proposal.in_force is not None:
            before.append(proposal.in_force.auc)
            model.append((proposal.in_force if one.fit.refusal else proposal.with_model).auc)
            worth.append(proposal.proposed.auc)
    return before, model, worth


def _mean(found: Sequence[Estimate]) -> Estimate:
    return Estimate(
        *(statistics.fmean(getattr(one, end) for one in found) for end in ("value", "low", "high"))
    )


def curve_table(learned: dict[int, dict[str, list[Calibration]]]) -> str:
    """Return the table of the model's AUC by the number of verdicts."""
    rows = []
    for name in next(iter(learned.values())):
        cells = []
        for number, by_source in learned.items():
            fits = [one.fit for one in by_source[name] if one.fit.auc is not None]
            areas = [one.auc.value for one in fits if one.auc is not None]
            refused = sum(one.refusal is not None for one in fits)
            counts = f", {refused} of {len(by_source[name])} refused" if refused else ""
            fewer = f" with {fits[0].runs}" if fits and fits[0].runs < number else ""
            ends = f" ({min(areas):.2f} to {max(areas):.2f})" if len(areas) > 1 else ""
            mean = f"{statistics.fmean(areas):.2f}{fewer}{ends}" if areas else "too few"
            cells.append(f"{mean}{counts}")
        rows.append([name, *cells])
    title = "Learning curve: the model's AUC by the number of verdicts"
    return table(title, ["source", *map(str, learned)], rows)


def installed_table(sources: Sequence[Source], numbers: Sequence[int], times: int) -> str:
    """Return the table of how often a model is installed from true labels and from others."""
    relabel: dict[str, Callable[[list[LabelledRun], int, random.Random], list[LabelledRun]]] = {
        "true": lambda runs, seed, drawn: runs,
        "random": _randomly,
    }
    rows, random_models, random_installed = [], 0, 0
    for number in numbers:
        cells: list[str] = []
        for labels in _LABELS:
            found = []
            for source in sources:
                if number >= len(source.runs):
                    continue
                for seed in range(2 * times if labels == "random" else times):
                    drawn = random.Random(f"{number} {labels} {seed}")
                    runs = drawn.sample(source.runs, number)
                    found.append(learn(source, relabel[labels](runs, seed, drawn)).fit)
            installed = [one for one in found if one.model is not None and one.refusal is None]
            if labels == "random":
                random_models += len(found)
                random_installed += len(installed)
            cells += [
                str(len(found)),
                _share(len(installed), len(found)),
            ]
        rows.append([str(number), *cells])
    columns = ("draws", "installed")
    head = ["verdicts", *(f"{labels}: {column}" for labels in _LABELS for column in columns)]
    share = _share(random_installed, random_models)
    total = f"Of all {random_models} models of random labels, {random_installed}: {share}"
    return f"{table('Models installed, by labels', head, rows)}\n{total}\n"


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
    options.add_argument("files", nargs="*", type=Path, default=[RECORDED], metavar="FILE",
                         help="labelled runs (default: the recorded ones)")  # fmt: skip
    options.add_argument("--verdicts", nargs="+", type=int, default=[25, 50, 100, 200, 400],
                         metavar="N", help="how many are drawn (default: %(default)s)")  # fmt: skip
    options.add_argument("--draws", type=int, default=5, metavar="N",
                         help="how often verdicts are drawn (default: %(default)s)")  # fmt: skip
    options.add_argument("--label-draws", type=int, default=20, metavar="N",
                         help="how often labels are drawn for what is installed; 0: not at all "
                         "(default: %(default)s)")  # fmt: skip
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
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
        if has_both_outcomes(runs, _ENOUGH)
    }
    if not by_source:
        print(f"no source with {_ENOUGH} successes and {_ENOUGH} failures", file=sys.stderr)
        return 1
    print(f"{machine()}\n", flush=True)
    with TemporaryDirectory() as folder:
        sources = [
            import_source(name, runs, Path(folder) / str(at), embed=not chosen.no_embedder)
            for at, (name, runs) in enumerate(by_source.items())
        ]
    print(score_table(sources), flush=True)
    learned = {
        number: {source.name: draws(source, number, chosen.draws) for source in sources}
        for number in sorted(chosen.verdicts)
    }
    usual = max([number for number in learned if number <= 200] or learned)
    print(*model_tables(learned[usual]), curve_table(learned), sep="\n", flush=True)
    if chosen.label_draws:
        numbers = [number for number in (30, 50, 100, 200) if number <= max(chosen.verdicts)]
        print(installed_table(sources, numbers, chosen.label_draws))
    return 0


if __name__ == "__main__":
    sys.exit(main())
