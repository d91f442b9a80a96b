"""How well confidences and scores separate successes from failures, with confidence intervals.

Runs of one task are alike, so the intervals treat tasks, not runs, as what was sampled.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Z_90 = 1.644854  # normal quantile of a two-sided interval of 90 %


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """A row of a reliability table: runs of about equal confidence, and how many succeeded.

    Attributes:
        runs: How many runs.
        confidence: Their mean confidence, 0 to 1.
        success_rate: The share of them that succeeded, with a 90 % interval.
    """

    runs: int
    confidence: float
    success_rate: Estimate


def auc(
    successes: Sequence[bool],
    scores: Sequence[float],
    tasks: Sequence[str],
    *,
    certainty: float = 0.95,
) -> Estimate:
    """Return the area under the ROC curve with its confidence interval.

    The variance is that of Obuchowski (1997, Biometrics 53:567) for clustered data: each run's
    placement value among the runs of the other outcome, summed by task. The interval is symmetric
    in log-odds; its width follows Student's t for as many tasks as the rarer outcome has.

    Args:
        successes: Which runs succeeded; both outcomes must occur.
        scores: Their scores or confidences.
        tasks: Their tasks.
        certainty: The probability that the interval covers the true area, 0 to 1.
    """
    value, influence = _placements(successes, scores)
    error = _clustered_error(influence, tasks)
    if not 0.0 < value < 1.0:
        return Estimate(value, value, value)
    middle = math.log(value / (1 - value))
    reach = _reach(successes, tasks, certainty) * error / (value * (1 - value))
    return Estimate(value, _logistic(middle - reach), _logistic(middle + reach))


def auc_value(successes: Sequence[bool], scores: Sequence[float]) -> float:
    """Return the area under the ROC curve alone; both outcomes must occur."""
    return _placements(successes, scores)[0]


def auc_gain(
    successes: Sequence[bool],
    scores: Sequence[float],
    others: Sequence[float],
    tasks: Sequence[str],
    *,
    certainty: float = 0.95,
) -> Estimate:
    """Return how much higher the AUC of `scores` is than that of `others`, -1 to 1.

    Both are for the same runs, so errors that they share do not widen the interval.

    Args:
        successes: Which runs succeeded; both outcomes must occur.
        scores: Their scores or confidences.
        others: Those to compare with.
        tasks: Their tasks.
        certainty: The probability that the interval covers the true gain, 0 to 1.
    """
    value, influence = _placements(successes, scores)
    other_value, other_influence = _placements(successes, others)
    gain = value - other_value
    reach = _reach(successes, tasks, certainty) * _clustered_error(
        influence - other_influence, tasks
    )
    return Estimate(gain, max(-1.0, gain - reach), min(1.0, gain + reach))


def brier(successes: Sequence[bool], confidences: Sequence[float]) -> float:
    """Return the mean squared error of confidences against outcomes (Brier 1950)."""
    return _mean([(p - y) ** 2 for y, p in zip(successes, confidences, strict=True)])


def mean_p_value(values: Sequence[float], tasks: Sequence[str]) -> float:
    """Return how likely chance alone makes the mean of values so large if it is really 0.

    Student's t test, one-sided, with the sums of the tasks as what was sampled.

    Args:
        values: One value for each run.
        tasks: The runs' tasks.

    Returns:
        The probability, 0 to 1; 1 if there are fewer than two tasks.
    """
    import numpy as np

    middle, number = _mean(values), len(set(tasks))
    error = _clustered_error((np.asarray(values) - middle) / len(values), tasks)
    if number < 2:
        return 1.0
    if error == 0.0:
        return 0.0 if middle > 0 else 1.0
    return float(import_calibrate_extra("scipy.stats").t.sf(middle / error, number - 1))


def reliability(
    successes: Sequence[bool], confidences: Sequence[float], tasks: Sequence[str], bins: int = 5
) -> tuple[ReliabilityBin, ...]:
    """Return how often runs of about equal confidence succeeded, in bins of equally many runs."""
    order = sorted(range(len(successes)), key=lambda index: confidences[index])
    edges = [round(len(order) * number / bins) for number in range(bins + 1)]
    rows = (order[low:high] for low, high in pairwise(edges))
    return tuple(
        ReliabilityBin(
            len(row),
            _mean([confidences[index] for index in row]),
            share([successes[index] for index in row], [tasks[index] for index in row]),
        )
        for row in rows
        if row
    )


def share(successes: Sequence[bool], tasks: Sequence[str]) -> Estimate:
    """Return the share of successes with its 90 % interval (Wilson 1927).

    Its lower end is also the lower bound with 95 % confidence. Repeats of a task count as one run
    for the width of the interval, which makes it wider rather than narrower.

    Args:
        successes: Which runs succeeded; at least one run.
        tasks: Their tasks.
    """
    return share_of(sum(successes), len(successes), tasks=len(set(tasks)))


def share_of(successes: int, runs: int, *, tasks: int) -> Estimate:
    """Return the same as `share`, from numbers.

    Args:
        successes: How many runs succeeded.
        runs: How many runs there are; at least one.
        tasks: How many different tasks they have.
    """
    value, n, z = successes / runs, tasks, _Z_90
    middle = (value + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    return Estimate(value, max(0.0, middle - reach), min(1.0, middle + reach))


def _placements(
    successes: Sequence[bool], scores: Sequence[float]
) -> tuple[float, NDArray[np.float64]]:
    """Return the AUC, and the influence of each run on it."""
    import numpy as np

    is_success = np.asarray(successes, dtype=bool)
    values = np.asarray(scores, dtype=np.float64)
    placement = np.empty(len(values))
    for group, sign in ((is_success, 1), (~is_success, -1)):
        others = np.sort(sign * values[~group])
        below = np.searchsorted(others, sign * values[group], side="left")
        not_above = np.searchsorted(others, sign * values[group], side="right")
        placement[group] = (below + not_above) / (2 * len(others))
    value = float(placement[is_success].mean())
    counts = np.where(is_success, is_success.sum(), (~is_success).sum())
    return value, (placement - value) / counts


def _reach(successes: Sequence[bool], tasks: Sequence[str], certainty: float) -> float:
    """Return how many standard errors a two-sided interval reaches on each side."""
    counts = [
        len({task for task, success in zip(tasks, successes, strict=True) if success is outcome})
        for outcome in (True, False)
    ]
    return float(
        import_calibrate_extra("scipy.stats").t.ppf((1 + certainty) / 2, max(1, min(counts) - 1))
    )


def _clustered_error(influence: NDArray[np.float64], tasks: Sequence[str]) -> float:
    import numpy as np

    sums = np.bincount(task_numbers(tasks), weights=influence)
    if len(sums) < 2:
        return math.inf
    return math.sqrt(float((sums**2).sum()) * len(sums) / (len(sums) - 1))


def _logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(700.0, max(-700.0, log_odds))))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def task_numbers(tasks: Sequence[str]) -> list[int]:
    """Return a number for each task, equal where tasks are; NumPy is slow with long texts."""
    numbers = {task: number for number, task in enumerate(sorted(set(tasks)))}
    return [numbers[task] for task in tasks]


def import_calibrate_extra(module: str) -> Any:
    """Import and return a module of scikit-learn, or of scipy, which comes with it.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "learning from verdicts needs scikit-learn: pip install 'kp-langchain[calibrate]'"
        ) from error
