"""How runs rank without verdicts and with some, as the gate ranks them and in other ways."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kp_langchain.calibration.agreement import AGREEMENT
from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.model import (
    ConfidenceModel,
    LabelledRun,
    calibrated_confidence,
    confidence_by_agreement,
    estimated_worth,
)
from kp_langchain.calibration.next_to_label import UnlabelledRun, next_to_label
from tests.benchmarks.intervals import RESAMPLES, Ranking, Sampled, mean
from tests.benchmarks.sources import JudgedRun, Source

KEPT_SHARE = 0.1
_ENOUGH = 5  # runs of either outcome in the half that is ranked
_UNDEFINED = Sampled(float("nan"), np.full(RESAMPLES, np.nan))


class Way(NamedTuple):
    """A way to rank runs: as the gate does, or without a part of that.

    Attributes:
        agreement: Whether agreement with other runs of the task counts.
        guards: Whether it is known which runs are no witnesses.
        flags: Whether a run with a veto flag comes last.
        novelty: What novelty (0 to 1) leaves of the confidence; None for what it does in the worth.
    """

    agreement: bool = True
    guards: bool = True
    flags: bool = True
    novelty: Callable[[float], float] | None = None


AS_THE_GATE = Way()
OWN_MODEL_ALONE = Way(agreement=False, flags=False)
"""The documents' score, until a model of the verdicts alone is installed."""


class Halves(NamedTuple):
    """The tasks of a source in halves.

    Attributes:
        asked: The runs of one half, in the order in which a person is asked about them.
        ranked: Those of the other, in an order that says nothing of them.
    """

    asked: list[JudgedRun]
    ranked: list[JudgedRun]


def asking_order(runs: Iterable[JudgedRun], seed: int) -> list[JudgedRun]:
    """Return runs in the order of `label next`: one of each task first, repeats of it last."""
    # The order among tasks follows from the ids.
    by_id = {f"{seed} {run.id}": run for run in runs}
    unlabelled = (
        UnlabelledRun(id_, "", run.task, run.task_run.digest, run.signs)
        for id_, run in by_id.items()
    )
    return [by_id[offer.run.trace_id] for offer in next_to_label(unlabelled)]


def halves(source: Source, seed: int) -> Halves | None:
    """Draw halves of a source's tasks; None if too few runs of an outcome are to be ranked."""
    tasks = sorted({run.task for run in source.runs})
    random.Random(seed).shuffle(tasks)
    asked = set(tasks[: len(tasks) // 2])
    ranked = sorted((run for run in source.runs if run.task not in asked), key=lambda run: run.id)
    successes = sum(run.success for run in ranked)
    if min(successes, len(ranked) - successes) < _ENOUGH:
        return None
    return Halves(asking_order((run for run in source.runs if run.task in asked), seed), ranked)


def learned_from(run: JudgedRun, way: Way = AS_THE_GATE) -> LabelledRun:
    """Return what a model learns from a run."""
    agreement = run.agreement_with(guards=way.guards) if way.agreement else None
    if agreement is None:
        return run.labelled
    return replace(run.labelled, features={**run.labelled.features, AGREEMENT: agreement.value})


def learn(runs: Iterable[LabelledRun]) -> Fit:
    """Return what `calibrate` fits to runs with verdicts."""
    return fit("default", list(runs))


def installed_model(result: Fit) -> ConfidenceModel | None:
    """Return the model that `calibrate` would install; None if it refuses to."""
    return result.model if result.refusal is None else None


def confidence(
    source: Source, run: JudgedRun, model: ConfidenceModel | None, way: Way
) -> float | None:
    """Return the confidence of a run's worth; None where the gate goes by the score."""
    agreement = run.agreement_with(guards=way.guards) if way.agreement else None
    evidence = None if agreement is None else agreement.evidence
    if model is not None:
        known = {} if evidence is None else {AGREEMENT: evidence}
        estimate = model.confidence({**run.labelled.features, **known})
    elif way.agreement and source.tasks_repeat:
        estimate = confidence_by_agreement(evidence, source.last(guards=way.guards).scale)
    else:
        return None
    return calibrated_confidence(run.labelled, estimate)


def rank(source: Source, run: JudgedRun, model: ConfidenceModel | None, way: Way) -> float:
    """Return the number that a run is ranked by; a vetoed one comes after all others."""
    estimate = confidence(source, run, model, way)
    if estimate is None:
        value = run.breakdown.total
    elif way.novelty is None:
        value = estimated_worth(run.labelled, estimate)
    else:
        value = estimate * way.novelty(run.novelty)
    return value - (way.flags and bool(run.breakdown.flags))


@dataclass(frozen=True)
class Figures:
    """Figures of one draw, or the means of those of several.

    Attributes:
        lift: The share right of the first tenth, over that of all.
        auc: The chance that a right run ranks before a wrong one.
        within: The same among runs of one task.
        installed: Whether a model was installed, or how often, 0 to 1.
        brier: The Brier score of the installed model; not defined without one.
        base_brier: That of the share of the verdicts that are successes, where one was installed.
    """

    lift: Sampled
    auc: Sampled
    within: Sampled
    installed: float
    brier: Sampled
    base_brier: Sampled

    @property
    def brier_difference(self) -> Sampled:
        """By how much the model's Brier score is higher; below 0 if the model is better."""
        return self.brier - self.base_brier

    @classmethod
    def mean(cls, figures: Sequence[Figures]) -> Figures:
        """Return the means over draws; those of the Brier scores over draws with a model."""
        return cls(
            mean(one.lift for one in figures),
            mean(one.auc for one in figures),
            mean(one.within for one in figures),
            sum(one.installed for one in figures) / len(figures),
            mean(one.brier for one in figures),
            mean(one.base_brier for one in figures),
        )


def figures(source: Source, runs: Sequence[JudgedRun], way: Way, result: Fit | None) -> Figures:
    """Return the figures of one draw.

    Args:
        source: The source.
        runs: Those that are ranked.
        way: How they are ranked.
        result: What was fitted to verdicts on others; None without verdicts.
    """
    model = None if result is None else installed_model(result)
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    values = [rank(source, run, model, way) for run in runs]
    ranking = Ranking(truth, tasks, values, source.resamples)
    briers = [_UNDEFINED, _UNDEFINED]
    if model is not None:
        estimates = [confidence(source, run, model, way) or 0.0 for run in runs]
        briers = [
            source.resamples.mean_of_runs(
                tasks, [(one - success) ** 2 for one, success in zip(of_runs, truth, strict=True)]
            )
            for of_runs in (estimates, [model.base_rate] * len(runs))
        ]
    return Figures(
        ranking.first(KEPT_SHARE).lift(),
        ranking.auc(),
        ranking.auc_within_tasks(),
        float(model is not None),
        *briers,
    )


def measure(
    source: Source, ways: Mapping[str, tuple[Way, Sequence[int]]], draws: int
) -> dict[tuple[str, int], Figures]:
    """Return the figures of a source, by the name of each way and the number of verdicts.

    Args:
        source: The source.
        ways: The ways to rank runs, each with the numbers of verdicts.
        draws: How often its tasks are split in halves.
    """
    found: defaultdict[tuple[str, int], list[Figures]] = defaultdict(list)
    for drawn in filter(None, (halves(source, seed) for seed in range(draws))):
        fits: dict[tuple[int, bool, bool], Fit] = {}
        for name, (way, numbers) in ways.items():
            for number in numbers:
                key = (number, way.agreement, way.guards)
                if number and key not in fits:
                    fits[key] = learn(learned_from(run, way) for run in drawn.asked[:number])
                found[name, number].append(figures(source, drawn.ranked, way, fits.get(key)))
    return {case: Figures.mean(of_draws) for case, of_draws in found.items()}
