"""How often a model is installed: from the truth, from random labels, from the answer's length."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import auc_value
from tests.benchmarks.quality.scores import Source
from tests.benchmarks.quality.tables import titled

VERDICTS = (30, 50, 100, 200)
LABELS = ("true", "random", "length")
_AT_MOST = 0.99  # of a source's runs are drawn
_FEWEST_LEFT = 3  # runs of either outcome, to measure a model on
_NOISE = 0.1
# Of random labels, half are the true ones, shuffled between tasks; the others are drawn for each
# run, with these shares of successes in turn.
_SHARES = (0.5, 0.15, 0.85)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one draw of runs with labels."""

    fitted: Fit
    true_auc: float | None = None

    @property
    def is_installed(self) -> bool:
        return self.fitted.model is not None and self.fitted.refusal is None


def figures(
    sources: Sequence[Source], draws: int, tell: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """What was installed, by number of verdicts and by labels.

    Args:
        sources: The sources.
        draws: How often verdicts are drawn from each source; random labels are drawn twice as
            often, those that follow a length half as often.
        tell: Called with a line for whoever waits.
    """
    found: dict[str, dict[str, Any]] = {}
    for number in VERDICTS:
        able = [source for source in sources if number <= _AT_MOST * len(source.runs)]
        tell(f"models of {number} verdicts, installed or refused")
        times = {"true": draws, "random": 2 * draws, "length": (draws + 1) // 2}
        outcomes = {
            labels: [_drawn(source, number, labels, seed)
                     for source in able for seed in range(times[labels])]
            for labels in LABELS
        }  # fmt: skip
        if able:
            found[str(number)] = {name: _summary(some) for name, some in outcomes.items()}
    return found


def _drawn(source: Source, number: int, labels: str, seed: int) -> _Outcome:
    draw = random.Random(f"{number} {labels} {seed}")
    every = [one.labelled for one in source.runs]
    runs = draw.sample(every, number)
    if labels == "random":
        shares = (None, _SHARES[seed // 2 % len(_SHARES)])
        runs = _randomly(runs, shares[seed % 2], draw)
    elif labels == "length":
        runs = _by_length(runs, draw)
    fitted = fit(source.name, runs)
    tasks = {run.task for run in runs}
    others = [run for run in every if run.task not in tasks] if labels == "true" else []
    return _Outcome(fitted, _auc_on(fitted, others))


def _randomly(
    runs: Sequence[LabelledRun], share: float | None, draw: random.Random
) -> list[LabelledRun]:
    """Label at random with a share of successes; None shuffles the labels between the tasks."""
    if share is not None:
        return [replace(run, success=draw.random() < share) for run in runs]
    tasks = sorted({run.task for run in runs})
    places = sorted(runs, key=lambda run: run.task)
    draw.shuffle(tasks)
    order = {task: number for number, task in enumerate(tasks)}
    labels = [run.success for run in sorted(runs, key=lambda run: order[run.task])]
    return [replace(run, success=label) for run, label in zip(places, labels, strict=True)]


def _by_length(runs: Sequence[LabelledRun], draw: random.Random) -> list[LabelledRun]:
    """Label the runs with the shorter answers as successes, but for a tenth."""
    middle = statistics.median(run.features["answer_chars"] for run in runs)
    return [
        replace(
            run, success=(run.features["answer_chars"] < middle) != (draw.random() < _NOISE)
        )
        for run in runs
    ]  # fmt: skip


def _auc_on(fitted: Fit, others: Sequence[LabelledRun]) -> float | None:
    """The model's AUC on runs of tasks that it never saw; None where there are too few."""
    successes = [run.success for run in others]
    if fitted.model is None or min(sum(successes), len(others) - sum(successes)) < _FEWEST_LEFT:
        return None
    return auc_value(successes, [fitted.model.confidence(run.features) for run in others])


def _summary(outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    installed = [one for one in outcomes if one.is_installed]
    refused = [one for one in outcomes if not one.is_installed]
    return {
        "draws": len(outcomes),
        "installed": len(installed),
        "provisional": sum(one.fitted.provisional for one in installed),
        "too_few": sum(one.fitted.model is None for one in outcomes),
        "warned": sum(one.fitted.warning is not None for one in installed),
        "auc_of_installed": _mean_auc(installed),
        "auc_of_refused": _mean_auc(refused),
    }


def _mean_auc(outcomes: Sequence[_Outcome]) -> float | None:
    areas = [one.true_auc for one in outcomes if one.true_auc is not None]
    return statistics.fmean(areas) if areas else None


def tables(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table, under a heading."""
    yield titled(
        "Models installed from true and from random labels, by number of verdicts",
        ["verdicts", "true: draws", "too few of an outcome", "installed", "of these provisional",
         "their AUC on other tasks", "AUC of those refused", "random: draws", "installed",
         "of these provisional", "by length: installed", "of these warned", "true: warned"],
        [_row(number, one) for number, one in found.items()],
    )  # fmt: skip


def _row(number: str, one: dict[str, Any]) -> list[str]:
    true, chance, length = (one[labels] for labels in LABELS)
    return [
        number,
        str(true["draws"]),
        _share(true["too_few"], true["draws"]),
        _share(true["installed"], true["draws"]),
        _share(true["provisional"], true["installed"]),
        _plain(true["auc_of_installed"]),
        _plain(true["auc_of_refused"]),
        str(chance["draws"]),
        _share(chance["installed"], chance["draws"], places=1),
        _share(chance["provisional"], chance["installed"]),
        _share(length["installed"], length["draws"]),
        _share(length["warned"], length["installed"]),
        _share(true["warned"], true["installed"]),
    ]


def _share(part: int, whole: int, places: int = 0) -> str:
    return f"{part / whole:.{places}%}" if whole else "-"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
