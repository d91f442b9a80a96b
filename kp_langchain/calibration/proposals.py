"""Thresholds and weights proposed from a domain's verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kp_langchain.calibration.folds import folds, tasks_with
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import Estimate, auc, auc_gain, share
from kp_langchain.errors import ConfigError
from kp_langchain.weights import WEIGHT_NAMES, ScoringWeights

# Above the smallest weights, the rest of 1 is split in eight steps. For four dimensions these are
# tenths, 165 combinations, which is already finer than what 200 verdicts can distinguish.
_SMALLEST_WEIGHT = 0.05
_WEIGHT_STEPS = 8
_SHARES = [percent / 100 for percent in range(5, 100, 5)]


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """The labelled runs that pass at one threshold.

    Attributes:
        threshold: The score from which a run passes, 0 to 1, in thousandths.
        runs: How many runs pass.
        tasks: How many different tasks they have.
        pass_rate: The share of all runs that passes, 0 to 1.
        precision: The share of successes among those that pass, with a 90 % interval.
    """

    threshold: float
    runs: int
    tasks: int
    pass_rate: float
    precision: Estimate


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """A threshold for a target, and the curve it was read from.

    Attributes:
        point: The proposed threshold; None if no threshold reaches the target.
        curve: All thresholds, the lowest first.
        wish: The target, in words.
        refusal: Why no threshold is proposed; None if one is.
    """

    point: ThresholdPoint | None
    curve: tuple[ThresholdPoint, ...]
    wish: str
    refusal: str | None


def propose_threshold(
    runs: Sequence[LabelledRun],
    scores: Sequence[float],
    *,
    pass_rate: float | None = None,
    precision: float | None = None,
) -> ThresholdProposal:
    """Read a threshold from the scores of labelled runs.

    For a pass rate it is the lowest threshold that at most this share of the runs reaches. For a
    precision it is the lowest one whose interval lies above the target; see `_at_precision`.

    Args:
        runs: The labelled runs.
        scores: Their scores, 0 to 1, with held-out confidences: others would look too good.
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes among the runs that pass, above 0, below 1.

    Raises:
        ConfigError: Both targets are given, or neither; it is out of range; or there are no runs.
    """
    if (pass_rate is None) == (precision is None):
        raise ConfigError("give either a pass rate or a precision")
    if not runs:
        raise ConfigError("no labelled runs to read a threshold from; collect verdicts first")
    curve = _curve(runs, scores)
    if pass_rate is not None:
        return _at_pass_rate(curve, _check("pass rate", pass_rate, may_be_1=True), len(runs))
    return _at_precision(curve, _check("precision", precision, may_be_1=False), len(runs))


def point_at(curve: Sequence[ThresholdPoint], threshold: float) -> ThresholdPoint | None:
    """Return which runs pass at any threshold, 0 to 1; None if none does."""
    return next((point for point in curve if point.threshold >= threshold), None)


def _at_pass_rate(curve: tuple[ThresholdPoint, ...], target: float, runs: int) -> ThresholdProposal:
    refusal = (
        f"no threshold lets as few as {target:.2f} pass: the highest, "
        f"{curve[-1].threshold:.3f}, is reached by {curve[-1].runs} of {runs} runs"
    )
    point = next((point for point in curve if point.pass_rate <= target), None)
    return ThresholdProposal(point, curve, f"pass rate {target:.2f}", None if point else refusal)


def _at_precision(curve: tuple[ThresholdPoint, ...], target: float, runs: int) -> ThresholdProposal:
    """Propose the lowest threshold at which the lower end of the precision's interval is enough.

    The share of successes itself would be too optimistic, because the luckiest of many thresholds
    looks best. Simulated with samples of 200 runs and a target of 0.8: if scores separate good runs
    from bad, 7 of 140 proposed thresholds missed the target. If they barely do, few thresholds are
    proposed, and most miss it (17 of 24). If they carry no information, but 0.75 of the runs
    succeed anyway, a threshold is proposed for one sample in nine.
    """
    best = max(curve, key=lambda point: (point.precision.low, -point.threshold))
    refusal = (
        f"no threshold is sure to give precision {target:.2f}: the surest, "
        f"{best.threshold:.3f}, gives {best.precision} with {best.runs} of {runs} runs; "
        "lower the target, or collect more verdicts"
    )
    point = next((point for point in curve if point.precision.low >= target), None)
    return ThresholdProposal(point, curve, f"precision {target:.2f}", None if point else refusal)


def _curve(runs: Sequence[LabelledRun], scores: Sequence[float]) -> tuple[ThresholdPoint, ...]:
    # Rounded as thresholds are written into a file, so that the figures hold for the written one.
    points = []
    for thousandths in sorted({_thousandths(score) for score in scores}):
        threshold = thousandths / 1000
        passing = [run for run, score in zip(runs, scores, strict=True) if score >= threshold]
        tasks = [run.task for run in passing]
        points.append(
            ThresholdPoint(
                threshold=threshold,
                runs=len(passing),
                tasks=len(set(tasks)),
                pass_rate=len(passing) / len(runs),
                precision=share([run.success for run in passing], tasks),
            )
        )
    return tuple(points)


def _thousandths(score: float) -> int:
    """Return the largest number of thousandths that the score reaches."""
    thousandths = math.floor(score * 1000)
    # The product may have been rounded up beyond the score.
    return thousandths if thousandths / 1000 <= score else thousandths - 1


def _check(name: str, value: float | None, *, may_be_1: bool) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= 1
        or (value == 1 and not may_be_1)
    ):
        limit = "at most 1" if may_be_1 else "below 1"
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0, {limit}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Ranking:
    """How good the runs with the highest scores are.

    Attributes:
        weights: The weights of the scores.
        auc: Area under the ROC curve of the scores.
        top_runs: How many runs the top tenth has.
        top_success: The share of successes among them, with a 90 % interval.
        top_tasks: How many different tasks they have.
        top_solved: How many different tasks their successes have.
        harvest: Different tasks solved for each run kept, 0 to 1: the mean over keeping the best
            5 %, 10 %, ... 95 % of the runs.
    """

    weights: ScoringWeights
    auc: Estimate
    top_runs: int
    top_success: Estimate
    top_tasks: int
    top_solved: int
    harvest: float


@dataclass(frozen=True, slots=True)
class WeightsProposal:
    """The best weights for a domain and those in force, both evaluated on held-out runs.

    Attributes:
        in_force: The ranking by the weights in force.
        proposed: The ranking by chosen weights: each run is scored with weights that were chosen
            without any run of its task. Its `weights` are those chosen on all runs.
        auc_gain: How much higher the proposed weights' AUC is, with a 95 % interval, -1 to 1.
        base_rate: The share of successes among all runs.
        refusal: Why the weights in force should stay; None if the proposed ones may replace them.
    """

    in_force: Ranking
    proposed: Ranking
    auc_gain: Estimate
    base_rate: float
    refusal: str | None


def propose_weights(
    runs: Sequence[LabelledRun], confidences: Sequence[float], in_force: ScoringWeights
) -> WeightsProposal:
    """Choose weights by which the best-scored runs solve the most different tasks.

    The runs that are kept should be successes, and not all of one task. One figure measures both:
    how many different tasks are solved for each run that is kept. A failure adds nothing to it, nor
    does a second solution of one task. How many runs will be kept is not known here, and the top
    tenth of 200 runs is too small to compare weights by; so the figure is averaged over keeping
    from 5 % to 95 %. Every weight is at least 0.05, because a dimension that does not count could
    never show whether it matters.

    Args:
        runs: The labelled runs.
        confidences: Their held-out confidences, 0 to 1.
        in_force: The weights in force.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        ConfigError: The successes, or the failures, are of fewer than two tasks.
    """
    fewest = min(tasks_with(runs, success=True), tasks_with(runs, success=False))
    if fewest < 2:
        raise ConfigError(
            f"successes or failures on {fewest} different tasks; weights need two of each, "
            "collect more verdicts"
        )
    candidates = list(_candidates())
    columns = [_scores(runs, weights, confidences) for weights in candidates]
    current = _scores(runs, in_force, confidences)
    held_out = [0.0] * len(runs)
    for training, test in folds(runs):
        best = _best(columns, runs, training)
        for index in test:
            held_out[index] = columns[best][index]
    before = _ranking(in_force, runs, current)
    after = _ranking(candidates[_best(columns, runs, range(len(runs)))], runs, held_out)
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    gain = auc_gain(truth, held_out, current, tasks)
    return WeightsProposal(
        in_force=before,
        proposed=after,
        auc_gain=gain,
        base_rate=sum(truth) / len(truth),
        refusal=_refusal(before, after, gain),
    )


def _scores(
    runs: Sequence[LabelledRun], weights: ScoringWeights, confidences: Sequence[float]
) -> list[float]:
    return [
        hypothetical_score(run, weights, one) for run, one in zip(runs, confidences, strict=True)
    ]


def _refusal(before: Ranking, after: Ranking, gain: Estimate) -> str | None:
    """Return why the weights in force should stay; None if the chosen ones may replace them."""
    if after.harvest <= before.harvest:
        return (
            f"keep the weights in force: chosen weights solve {after.harvest:.3f} different tasks "
            f"for each run kept on held-out tasks, those in force {before.harvest:.3f}"
        )
    if gain.high < 0:
        return f"keep the weights in force: the AUC would change by {gain} on held-out tasks"
    if after.top_success.high < before.top_success.value:
        return (
            f"keep the weights in force: of the top tenth {after.top_success} would be successes "
            f"on held-out tasks, and {before.top_success.value:.2f} are"
        )
    return None


def _candidates() -> Iterator[ScoringWeights]:
    number = len(WEIGHT_NAMES)
    step = (1 - number * _SMALLEST_WEIGHT) / _WEIGHT_STEPS
    for first in product(range(_WEIGHT_STEPS + 1), repeat=number - 1):
        if sum(first) <= _WEIGHT_STEPS:
            parts = (*first, _WEIGHT_STEPS - sum(first))
            yield ScoringWeights(*(round(_SMALLEST_WEIGHT + step * n, 6) for n in parts))


def _best(
    columns: Sequence[Sequence[float]], runs: Sequence[LabelledRun], indices: Sequence[int]
) -> int:
    """Return the column of scores with the highest harvest from the runs at these indices."""
    return max(
        range(len(columns)), key=lambda column: _harvest(runs, _order(columns[column], indices))
    )


def _order(scores: Sequence[float], indices: Sequence[int]) -> list[int]:
    return sorted(indices, key=lambda index: -scores[index])


def _harvest(runs: Sequence[LabelledRun], order: Sequence[int]) -> float:
    """Return the harvest (see `Ranking`) of runs, given their indices from best to worst score."""
    tasks: set[str] = set()
    counts = [0]
    for index in order:
        if runs[index].success:
            tasks.add(runs[index].task)
        counts.append(len(tasks))
    sizes = [max(1, round(part * len(order))) for part in _SHARES]
    return math.fsum(counts[size] / size for size in sizes) / len(sizes)


def _ranking(
    weights: ScoringWeights, runs: Sequence[LabelledRun], scores: Sequence[float]
) -> Ranking:
    order = _order(scores, range(len(runs)))
    top = [runs[index] for index in order[: max(1, round(len(runs) / 10))]]
    return Ranking(
        weights=weights,
        auc=auc([run.success for run in runs], scores, [run.task for run in runs]),
        top_runs=len(top),
        top_success=share([run.success for run in top], [run.task for run in top]),
        top_tasks=len({run.task for run in top}),
        top_solved=len({run.task for run in top if run.success}),
        harvest=_harvest(runs, order),
    )
