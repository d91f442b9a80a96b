"""What passes at every threshold of a score or worth, and the threshold for a target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import Estimate, share_of
from kp_langchain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """The labelled runs that pass at one threshold.

    Attributes:
        threshold: The score or worth from which a run passes, 0 to 1, in thousandths.
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
        refusal: Why no threshold is proposed; None if one is.
    """

    point: ThresholdPoint | None
    curve: tuple[ThresholdPoint, ...]
    refusal: str | None


def propose_threshold(
    runs: Sequence[LabelledRun],
    scores: Sequence[float],
    *,
    pass_rate: float | None = None,
    precision: float | None = None,
    may_pass: Sequence[bool] | None = None,
) -> ThresholdProposal:
    """Read a threshold from the scores or worths of labelled runs.

    For a pass rate it is the lowest threshold that at most this share of the runs reaches. For a
    precision it is the lowest one whose interval lies above the target; see `_at_precision`.

    Args:
        runs: The labelled runs.
        scores: Their scores or worths, 0 to 1, with held-out confidences: others would look too
            good.
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes among the runs that pass, above 0, below 1.
        may_pass: For a pass rate, which runs it lets pass at all; all by default.

    Raises:
        ConfigError: Both targets are given, or neither; it is out of range; or there are no runs.
    """
    if (pass_rate is None) == (precision is None):
        raise ConfigError("give either a pass rate or a precision")
    if not runs:
        raise ConfigError("no labelled runs to read a threshold from; collect verdicts first")
    if pass_rate is not None:
        curve = threshold_curve(runs, scores, may_pass)
        return _at_pass_rate(curve, _check("pass rate", pass_rate, may_be_1=True), len(runs))
    curve = threshold_curve(runs, scores)
    return _at_precision(curve, _check("precision", precision, may_be_1=False), len(runs))


def _at_pass_rate(curve: tuple[ThresholdPoint, ...], target: float, runs: int) -> ThresholdProposal:
    point, refusal = point_at(curve, target), None
    if not curve:
        refusal = "no run has a confidence that reaches the share of successes among all"
    elif point is None:
        refusal = (
            f"no threshold lets as few as {target:g} pass: the highest, "
            f"{curve[-1].threshold:.3f}, is reached by {curve[-1].runs} of {runs} runs"
        )
    return ThresholdProposal(point, curve, refusal)


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
        f"no threshold is sure to give precision {target:g}: the surest, "
        f"{best.threshold:.3f}, gives {best.precision} with {best.runs} of {runs} runs; "
        "lower the target, or collect more verdicts"
    )
    point = next((point for point in curve if point.precision.low >= target), None)
    return ThresholdProposal(point, curve, None if point else refusal)


def threshold_curve(
    runs: Sequence[LabelledRun],
    scores: Sequence[float],
    may_pass: Sequence[bool] | None = None,
) -> tuple[ThresholdPoint, ...]:
    """Return which runs pass at every threshold, the lowest first.

    Args:
        runs: The labelled runs.
        scores: Their scores or worths, 0 to 1.
        may_pass: Which runs may pass at all; all by default.
    """
    # Rounded as thresholds are written into a file, so that the figures hold for the written one.
    by_thousandths: defaultdict[int, list[LabelledRun]] = defaultdict(list)
    for run, score, may in zip(runs, scores, may_pass or repeat(True, len(runs)), strict=True):
        if may:
            by_thousandths[_thousandths(score)].append(run)
    points = []
    passing = successes = 0
    tasks: set[str] = set()
    for thousandths in sorted(by_thousandths, reverse=True):
        more = by_thousandths[thousandths]
        passing += len(more)
        successes += sum(run.success for run in more)
        tasks.update(run.task for run in more)
        points.append(
            ThresholdPoint(
                threshold=thousandths / 1000,
                runs=passing,
                tasks=len(tasks),
                pass_rate=passing / len(runs),
                precision=share_of(successes, passing, tasks=len(tasks)),
            )
        )
    return tuple(reversed(points))


def point_at(curve: Sequence[ThresholdPoint], pass_rate: float) -> ThresholdPoint | None:
    """Return the lowest threshold that at most a share of the runs reaches; None if none does.

    Args:
        curve: All thresholds, the lowest first.
        pass_rate: The share, 0 to 1.
    """
    return next((point for point in curve if point.pass_rate <= pass_rate), None)


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
