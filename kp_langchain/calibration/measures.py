"""How well confidences and scores separate successes from failures, with confidence intervals.

Runs of one task are alike, so the intervals treat tasks, not runs, as what was sampled.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DIGITS = 9
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
        scores: Their scores or confidences, compared to nine decimals.
        tasks: Their tasks.
        certainty: The probability that the interval covers the true area, 0 to 1.

    Raises:
        MissingExtraError: scipy, which comes with scikit-learn, is not installed.
    """
    import numpy as np

    is_success = np.asarray(successes, dtype=bool)
    # Processors round differently. Scores that are equal on one must not differ on another.
    rounded = [round(score, _DIGITS) for score in scores]
    placements = _placements(is_success, np.asarray(rounded, dtype=np.float64))
    value = float(placements[is_success].mean())
    rarer = min(_count_tasks(successes, tasks, success=outcome) for outcome in (True, False))
    if not 0.0 < value < 1.0:
        # As wide as that of a share of which all or none succeed (Clopper and Pearson 1934,
        # Biometrika 26:404), with as many draws as the rarer outcome has tasks.
        least = ((1 - certainty) / 2) ** (1 / rarer)
        return Estimate(value, least, 1.0) if value else Estimate(value, 0.0, 1.0 - least)
    counts = np.where(is_success, is_success.sum(), (~is_success).sum())
    by_task = np.bincount(task_numbers(tasks), weights=(placements - value) / counts)
    variance = float((by_task**2).sum()) * len(by_task) / max(1, len(by_task) - 1)
    quantile = import_calibrate_extra("scipy.stats").t.ppf((1 + certainty) / 2, max(1, rarer - 1))
    reach = float(quantile) * math.sqrt(variance) / (value * (1 - value))
    log_odds = math.log(value / (1 - value))
    return Estimate(value, _logistic(log_odds - reach), _logistic(log_odds + reach))


def _placements(is_success: NDArray[np.bool_], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each run the share of the runs of the other outcome that it ranks right against.

    Ties count half. The mean over all successes is the area under the ROC curve.
    """
    import numpy as np

    placements = np.empty(len(scores))
    for group, sign in ((is_success, 1), (~is_success, -1)):
        others = np.sort(sign * scores[~group])
        below = np.searchsorted(others, sign * scores[group], side="left")
        not_above = np.searchsorted(others, sign * scores[group], side="right")
        placements[group] = (below + not_above) / (2 * len(others))
    return placements


def brier(successes: Sequence[bool], confidences: Sequence[float]) -> float:
    """Return the mean squared error of confidences against outcomes (Brier 1950)."""
    errors = [(p - y) ** 2 for y, p in zip(successes, confidences, strict=True)]
    return math.fsum(errors) / len(errors)


def share(successes: Sequence[bool], tasks: Sequence[str]) -> Estimate:
    """Return the share of successes with its 90 % interval (Wilson 1927).

    Repeats of a task count as one run for the width of the interval, which makes it wider rather
    than narrower.

    Args:
        successes: Which runs succeeded; at least one run.
        tasks: Their tasks.
    """
    return wilson(sum(successes) / len(successes), len(set(tasks)), _Z_90)


def wilson(value: float, n: float, z: float) -> Estimate:
    """Return a share with its interval (Wilson 1927).

    Args:
        value: The share, 0 to 1.
        n: Of how many independent draws; more than 0, and perhaps no whole number.
        z: The normal quantile of the interval, such as 1.96 for one of 95 %.
    """
    middle = (value + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    return Estimate(value, max(0.0, middle - reach), min(1.0, middle + reach))


def mean_p_value(values: Sequence[float], tasks: Sequence[str]) -> float:
    """Return how likely chance alone makes the mean of values so large if it is really 0.

    Student's t test, one-sided, of the means of the tasks.

    Args:
        values: One value for each run.
        tasks: The runs' tasks.

    Returns:
        The probability, 0 to 1; 1 if there are fewer than two tasks.

    Raises:
        MissingExtraError: scipy, which comes with scikit-learn, is not installed.
    """
    import numpy as np

    stats = import_calibrate_extra("scipy.stats")
    numbers = task_numbers(tasks)
    means = np.bincount(numbers, weights=values) / np.bincount(numbers)
    if len(means) < 2:
        return 1.0
    if np.ptp(means) == 0.0:  # the test would divide by zero
        return 0.0 if means[0] > 0 else 1.0
    return float(stats.ttest_1samp(means, 0.0, alternative="greater").pvalue)


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


def _count_tasks(successes: Sequence[bool], tasks: Sequence[str], *, success: bool) -> int:
    return len({task for task, one in zip(tasks, successes, strict=True) if one is success})


def _logistic(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(700.0, max(-700.0, log_odds))))
