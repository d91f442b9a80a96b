"""Which form of worth selects best, on runs of tasks that the model never saw."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kp_langchain.calibration.hypothetical_score import hypothetical_worth
from kp_langchain.domain_policy import DomainPolicy
from tests.benchmarks.quality.draws import Draw
from tests.benchmarks.quality.models import model_score
from tests.benchmarks.quality.ranking import TOP_SHARE, highest
from tests.benchmarks.quality.resampling import Array, Sampled, Selection, TaskResamples, mean
from tests.benchmarks.quality.scores import Source

TWINS_FROM = DomainPolicy().twin_similarity
_NOT_NEW = 0.1  # novelty of a run that has a twin
_SUREST = 0.25


@dataclass(frozen=True)
class Candidates:
    """Runs of which a tenth is to be kept.

    Args:
        scores: As they are.
        model_scores: With the model's confidence.
        confidences: By the model.
        worths: By the same.
        novelties: When each was scored.
        tasks: Of each.
        similarities: Of each two.
        gate_values: What the gate holds against its threshold after `calibrate --write`.
    """

    scores: Array
    model_scores: Array
    confidences: Array
    worths: Array
    novelties: Array
    tasks: Sequence[str]
    similarities: Array
    gate_values: Array

    def best(self, values: Array, may_join: Callable[[int, list[int]], bool]) -> list[int]:
        """The tenth with the highest values of those that may join the ones before them."""
        wanted = max(1, round(TOP_SHARE * len(values)))
        kept: list[int] = []
        for at in np.argsort(-values, kind="stable").tolist():
            if len(kept) < wanted and may_join(at, kept):
                kept.append(at)
        return kept

    def has_twin(self, at: int, others: Sequence[int]) -> bool:
        return bool((self.similarities[at, list(others)] >= TWINS_FROM).any())

    def among_the_surest(self) -> Array:
        surest = np.argsort(-self.confidences, kind="stable")
        values = self.scores.copy()
        values[surest[: max(1, round(_SUREST * len(surest)))]] += 1.0
        return values


WORTH = "worth: confidence x (0.5 + novelty / 2)"
IN_USE = "what `calibrate --write` leaves as the gate"

FORMS: Mapping[str, Callable[[Candidates], list[int]]] = {
    "score as it is": lambda runs: highest(runs.scores.tolist()),
    "score with the model": lambda runs: highest(runs.model_scores.tolist()),
    "confidence alone": lambda runs: highest(runs.confidences.tolist()),
    WORTH: lambda runs: highest(runs.worths.tolist()),
    "confidence x (0.25 + 0.75 novelty)": lambda runs: highest(
        (runs.confidences * (0.25 + 0.75 * runs.novelties)).tolist()
    ),
    "confidence x novelty": lambda runs: highest((runs.confidences * runs.novelties).tolist()),
    "score among the surest quarter": lambda runs: highest(runs.among_the_surest().tolist()),
    "worth, a tenth of it for twins": lambda runs: highest(
        (runs.worths * np.where(runs.novelties < _NOT_NEW, 0.1, 1.0)).tolist()
    ),
    "worth, no twin of a kept run": lambda runs: runs.best(
        runs.worths, lambda at, kept: not runs.has_twin(at, kept)
    ),
    "worth, one run a task": lambda runs: runs.best(
        runs.worths, lambda at, kept: runs.tasks[at] not in {runs.tasks[one] for one in kept}
    ),
    IN_USE: lambda runs: highest(runs.gate_values.tolist()),
}


@dataclass(frozen=True)
class Gain:
    """What a form of worth selects of a source.

    Args:
        lift: The share of successes among what it keeps, of the share among all.
        solved: Different tasks solved for each run kept.
        twins: The share of kept runs that have a twin among the kept ones before them.
    """

    lift: Sampled
    solved: Sampled
    twins: float


def gains(source: Source, draws: Sequence[Draw]) -> dict[str, Gain]:
    """What each form selects of the later runs of a source: means over draws.

    Args:
        source: The source.
        draws: At least one.
    """
    resamples = TaskResamples(one.run.task for one in source.runs)
    of_draws: dict[str, list[Gain]] = {form: [] for form in FORMS}
    for draw in draws:
        runs = _candidates(source, draw)
        for form, select in FORMS.items():
            kept = select(runs)
            shares = [0.0] * len(runs.tasks)
            for at in kept:
                shares[at] = 1.0
            successes = [one.run.success for one in draw.further]
            selection = Selection(successes, runs.tasks, shares, resamples)
            twins = [runs.has_twin(at, kept[:number]) for number, at in enumerate(kept)]
            of_draws[form].append(
                Gain(selection.lift(), selection.solved_per_run(), statistics.fmean(twins))
            )
    return {form: _mean(found) for form, found in of_draws.items()}


def report(by_source: Mapping[str, tuple[Sequence[Draw], Mapping[str, Gain]]]) -> dict[str, Any]:
    """The figures as they are written: by form, of each source and their mean.

    Args:
        by_source: By name of a source, its draws and gains; at least one.
    """
    forms = {form: {name: found[form] for name, (_, found) in by_source.items()} for form in FORMS}
    means = {form: _mean(list(found.values())) for form, found in forms.items()}
    best = max(means, key=lambda form: means[form].lift.value)
    return {
        "sources": {
            name: {
                "draws": len(draws),
                "models": Counter(draw.state for draw in draws),
                "gates": sum(draw.has_gate for draw in draws),
                "labelled": statistics.fmean(len(draw.labelled) for draw in draws),
                "further": statistics.fmean(len(draw.further) for draw in draws),
            }
            for name, (draws, _) in by_source.items()
        },
        "best": best,
        "forms": {
            form: {
                "sources": {name: _figures(one) for name, one in found.items()},
                "mean": _figures(means[form]),
                "behind_best": (means[best].lift - means[form].lift).estimate,
            }
            for form, found in forms.items()
        },
    }


def _candidates(source: Source, draw: Draw) -> Candidates:
    runs, confidences = draw.further, draw.confidences
    pairs = list(zip(runs, confidences, strict=True))
    scores = np.array([one.breakdown.total for one in runs])
    model_scores = np.array([model_score(one, chance) for one, chance in pairs])
    worths = np.array([hypothetical_worth(one.labelled, chance) for one, chance in pairs])
    in_use = scores
    if draw.state != "refused":
        may_pass = np.array(confidences) >= draw.model.base_rate
        in_use = np.where(may_pass, worths if draw.has_gate else model_scores, -1.0)
    return Candidates(
        scores=scores,
        model_scores=model_scores,
        confidences=np.array(confidences),
        worths=worths,
        novelties=np.array([one.breakdown.novelty.value for one in runs]),
        tasks=[one.run.task for one in runs],
        similarities=source.similarities(runs),
        gate_values=in_use,
    )


def _mean(found: Sequence[Gain]) -> Gain:
    return Gain(
        mean(one.lift for one in found),
        mean(one.solved for one in found),
        statistics.fmean(one.twins for one in found),
    )


def _figures(gain: Gain) -> dict[str, Any]:
    return {
        "lift": gain.lift.estimate,
        "solved_per_run": gain.solved.estimate,
        "twins": gain.twins,
    }
