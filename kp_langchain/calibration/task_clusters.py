"""Counts of runs of which some are of one task, and how likely chance alone makes a share so large.

Runs of one task end alike, so that they say less than as many runs of different tasks. Counts are
divided by the design effect (Kish 1965; Rao and Scott 1992, Biometrics 48:577), `1 + (m - 1) r`: m
is how many runs a task has, and r how far the failures of a task are correlated, estimated by an
analysis of variance (Donner 1986, International Statistical Review 54:67).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.calibration.measures import wilson

if TYPE_CHECKING:
    from kp_langchain.calibration.failure_signs import SignedRun
    from kp_langchain.calibration.measures import Estimate

_Z_95 = 1.959964
_NEGLIGIBLE = 1e-12


class CountedRun(NamedTuple):
    """A run, and whether it failed."""

    run: SignedRun
    failed: bool


class Sample:
    """Some runs of a domain, the newest first, and their counts."""

    def __init__(self, runs: Iterable[CountedRun]) -> None:
        self.runs = list(runs)
        self.number = len(self.runs)
        self.failures = sum(one.failed for one in self.runs)
        self.tasks = Counter(one.run.task for one in self.runs)
        self.squares = sum(number * number for number in self.tasks.values())

    @property
    def failed_tasks(self) -> int:
        """How many tasks have a failure."""
        return len({one.run.task for one in self.runs if one.failed})

    def share(self, correlation: float) -> Estimate:
        """Return the share that failed, with its interval of 95 %."""
        number = self.number / _design_effect(self.number, self.squares, correlation)
        return wilson(self.failures / self.number, number, _Z_95)

    def without(self, sample: Sample) -> Sample:
        """Return the runs that are not in another sample."""
        ids = {one.run.trace_id for one in sample.runs}
        return Sample(one for one in self.runs if one.run.trace_id not in ids)

    def squares_without(self, sample: Sample) -> int:
        """Return the sum of the squares of how many runs of each task are not in a part of it."""
        return self.squares - sum(
            number * (2 * self.tasks[task] - number) for task, number in sample.tasks.items()
        )


def _design_effect(number: int, squares: int, correlation: float) -> float:
    """Return how many runs are worth one of a task of its own, at least 1.

    Args:
        number: How many runs there are.
        squares: The sum of the squares of how many each task has.
        correlation: How far the failures of a task are correlated.
    """
    return 1 + (squares / number - 1) * correlation if number else 1.0


def correlation_of(sample: Sample) -> float:
    """Return how far the failures of a task are correlated, 0 to 1."""
    number, tasks = sample.number, len(sample.tasks)
    if tasks < 2 or tasks == number:
        return 0.0
    failures = Counter(one.run.task for one in sample.runs if one.failed)
    mean = sample.failures / number
    between = within = 0.0
    for task, size in sample.tasks.items():
        share = failures[task] / size
        between += size * (share - mean) ** 2
        within += size * share * (1 - share)
    between, within = between / (tasks - 1), within / (number - tasks)
    mean_size = (number - sample.squares / number) / (tasks - 1)
    total = between + (mean_size - 1) * within
    return min(1.0, max(0.0, (between - within) / total)) if total > 0 else 0.0


def excess_of(sample: Sample, whole: Sample) -> float:
    """Return how many failures a part has above what the share of the others would lead to."""
    others = whole.number - sample.number
    usual = (whole.failures - sample.failures) / others if others else 1.0
    return sample.failures - sample.number * usual


def p_value_of(sample: Sample, whole: Sample, correlation: float) -> float:
    """Return how likely chance alone gives a part so many of the failures of the whole.

    The counts are rounded so that it is rather too high.
    """
    if sample.number == 0 or excess_of(sample, whole) <= 0:
        return 1.0
    others = whole.number - sample.number
    effect = _design_effect(sample.number, sample.squares, correlation)
    failures = math.floor(sample.failures / effect)
    number = failures + math.ceil((sample.number - sample.failures) / effect)
    effect = _design_effect(others, whole.squares_without(sample), correlation)
    other_failures = round((whole.failures - sample.failures) / effect)
    others = other_failures + round((others - whole.failures + sample.failures) / effect)
    return _at_least(failures, number, failures + other_failures, number + others)


def _at_least(count: int, draws: int, marked: int, total: int) -> float:
    """Return the probability that at least so many of some draws without replacement are marked."""
    if count * total <= draws * marked:  # not more than expected
        return 1.0
    term = math.exp(
        _log_choices(marked, count)
        + _log_choices(total - marked, draws - count)
        - _log_choices(total, draws)
    )
    probability = 0.0
    for number in range(count, min(draws, marked) + 1):
        probability += term
        term *= (marked - number) * (draws - number)
        term /= (number + 1) * (total - marked - draws + number + 1)
        if term < _NEGLIGIBLE * probability:
            break
    return min(1.0, probability)


def _log_choices(total: int, draws: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(draws + 1) - math.lgamma(total - draws + 1)
