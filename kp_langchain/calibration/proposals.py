"""Thresholds and weights that a domain's verdicts speak for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kp_langchain.calibration.folds import folds, tasks_with
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import Estimate, auc, auc_gain, share
from kp_langchain.calibration.rescoring import total
from kp_langchain.errors import ConfigError
from kp_langchain.weights import WEIGHT_NAMES, ScoringWeights

# Above the least weights, the rest of 1 is split in eight steps; for four dimensions these are
# tenths, 165 combinations. What 200 verdicts can tell apart is coarser still.
_LEAST_WEIGHT = 0.05
_WEIGHT_STEPS = 8
_SHARES = [percent / 100 for percent in range(5, 100, 5)]


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """What a threshold would let pass of the labelled runs.

    Args:
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
    """A threshold for what was wished, and the curve it was read from.

    Args:
        point: What is proposed; None if the wish cannot be fulfilled.
        curve: All points, the lowest threshold first.
        wish: What was wished, in words.
        refusal: Why nothing is proposed; None if something is.
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

    For a pass rate it is the lowest threshold that no larger share of the runs reaches. For a
    precision it is the lowest one at which the lower end of the precision's interval reaches what
    is wished. The mere share of successes would promise too much, because the luckiest of many
    thresholds looks best. So read, few promises are broken where scores tell good runs from bad
    (simulated, 0.8 from 200 runs: 7 of 140). Where they hardly do, few are given, and most of those
    are broken (17 of 24); and where scores tell nothing, but 0.75 of the runs succeed anyway, 0.8
    is promised to one sample in nine.

    Args:
        runs: The labelled runs.
        scores: Their scores, 0 to 1; with held-out confidences, or the promise is too good.
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes wished among those that pass, above 0, below 1.

    Raises:
        ConfigError: Not exactly one wish was given, it is out of range, or there are no runs.
    """
    if (pass_rate is None) == (precision is None):
        raise ConfigError("give either a pass rate or a precision")
    if not runs:
        raise ConfigError("no labelled runs to read a threshold from; collect verdicts first")
    curve = _curve(runs, scores)
    if pass_rate is not None:
        wished = _checked("pass rate", pass_rate, highest=1.0)
        wish = f"pass rate {wished:.2f}"
        fitting = [point for point in curve if point.pass_rate <= wished]
        refusal = (
            f"no threshold lets as few as {wished:.2f} pass: the highest, "
            f"{curve[-1].threshold:.3f}, is reached by {curve[-1].runs} of {len(runs)} runs"
        )
    else:
        wished = _checked("precision", precision, highest=0.999)
        wish = f"precision {wished:.2f}"
        fitting = [point for point in curve if point.precision.low >= wished]
        best = max(curve, key=lambda point: (point.precision.low, -point.threshold))
        refusal = (
            f"no threshold is sure to give precision {wished:.2f}: the surest, "
            f"{best.threshold:.3f}, gives {best.precision} with {best.runs} of {len(runs)} runs; "
            "wish for less, or collect more verdicts"
        )
    if not fitting:
        return ThresholdProposal(None, curve, wish, refusal)
    return ThresholdProposal(fitting[0], curve, wish, None)


def _curve(runs: Sequence[LabelledRun], scores: Sequence[float]) -> tuple[ThresholdPoint, ...]:
    # Rounded to what is written into a file, so that the figures are those of what is written.
    points = []
    for place in sorted({_thousandths(score) for score in scores}):
        passing = [run for run, score in zip(runs, scores, strict=True) if score >= place / 1000]
        tasks = [run.task for run in passing]
        points.append(
            ThresholdPoint(
                threshold=place / 1000,
                runs=len(passing),
                tasks=len(set(tasks)),
                pass_rate=len(passing) / len(runs),
                precision=share([run.success for run in passing], tasks),
            )
        )
    return tuple(points)


def _thousandths(score: float) -> int:
    """The most thousandths that the score reaches; the product may be rounded up past them."""
    place = math.floor(score * 1000)
    return place if place / 1000 <= score else place - 1


def _checked(name: str, value: float | None, *, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= highest:
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0, at most {highest:g}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Ranking:
    """How good the runs are that scores put first.

    Args:
        weights: The weights of the scores.
        auc: Area under the ROC curve of the scores.
        top_runs: How many runs the top tenth holds.
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
    """Weights for a domain beside those in force, both judged on held-out runs.

    Args:
        in_force: How the weights in force rank the runs.
        proposed: How runs are ranked by weights that were chosen without any run of their task;
            its `weights` are those chosen on all runs.
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

    What is kept should be right, and not all of the same. One figure holds both: how many different
    tasks are solved for each run that is kept. A failure adds nothing to it, nor does a second
    solution of one task. How many runs will be kept is not known here, and the top tenth of 200
    runs is too few to tell weights apart; so the figure is averaged over keeping from 5 % to 95 %.
    Every weight is at least 0.05, for a dimension that counts nothing could not be seen to matter.

    Args:
        runs: The labelled runs.
        confidences: Their held-out confidences, 0 to 1.
        in_force: The weights in force.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        ConfigError: There are no two tasks with a success, or none with a failure.
    """
    fewest = min(tasks_with(runs, success=True), tasks_with(runs, success=False))
    if fewest < 2:
        raise ConfigError(
            f"successes or failures on {fewest} different tasks; weights need two of each, "
            "collect more verdicts"
        )
    candidates = list(_candidates())
    columns = [
        [total(run, weights, one) for run, one in zip(runs, confidences, strict=True)]
        for weights in candidates
    ]
    now = [total(run, in_force, one) for run, one in zip(runs, confidences, strict=True)]
    held_out = [0.0] * len(runs)
    for learned, judged in folds(runs):
        chosen = _best(columns, runs, learned)
        for at in judged:
            held_out[at] = columns[chosen][at]
    before = _ranking(in_force, runs, now)
    after = _ranking(candidates[_best(columns, runs, range(len(runs)))], runs, held_out)
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    gain = auc_gain(truth, held_out, now, tasks)
    return WeightsProposal(
        in_force=before,
        proposed=after,
        auc_gain=gain,
        base_rate=sum(truth) / len(truth),
        refusal=_why_not(before, after, gain),
    )


def _why_not(before: Ranking, after: Ranking, gain: Estimate) -> str | None:
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
    step = (1 - number * _LEAST_WEIGHT) / _WEIGHT_STEPS
    for first in product(range(_WEIGHT_STEPS + 1), repeat=number - 1):
        if sum(first) <= _WEIGHT_STEPS:
            parts = (*first, _WEIGHT_STEPS - sum(first))
            yield ScoringWeights(*(round(_LEAST_WEIGHT + step * n, 6) for n in parts))


def _best(
    columns: Sequence[Sequence[float]], runs: Sequence[LabelledRun], places: Sequence[int]
) -> int:
    """Return which column of scores harvests most from the runs at these places."""
    return max(range(len(columns)), key=lambda at: _harvest(runs, _order(columns[at], places)))


def _order(scores: Sequence[float], places: Sequence[int]) -> list[int]:
    return sorted(places, key=lambda at: -scores[at])


def _harvest(runs: Sequence[LabelledRun], order: Sequence[int]) -> float:
    solved: set[str] = set()
    counts = [0]
    for at in order:
        if runs[at].success:
            solved.add(runs[at].task)
        counts.append(len(solved))
    kept = [max(1, round(part * len(order))) for part in _SHARES]
    return math.fsum(counts[number] / number for number in kept) / len(kept)


def _ranking(
    weights: ScoringWeights, runs: Sequence[LabelledRun], scores: Sequence[float]
) -> Ranking:
    order = _order(scores, range(len(runs)))
    top = [runs[at] for at in order[: max(1, round(len(runs) / 10))]]
    return Ranking(
        weights=weights,
        auc=auc([run.success for run in runs], scores, [run.task for run in runs]),
        top_runs=len(top),
        top_success=share([run.success for run in top], [run.task for run in top]),
        top_tasks=len({run.task for run in top}),
        top_solved=len({run.task for run in top if run.success}),
        harvest=_harvest(runs, order),
    )
