"""The credit of kept traces: how much better runs ended that were shown them.

A share of the runs is held out: recall finds examples for them, notes which, and does not show
them. So for each trace there are runs that were shown it, and runs for which it was found just as
well and that went without. The credit is the difference of their success rates, shrunk:

    without = (successes held out + K * domain) / (runs held out + K)
    credit  = (successes shown - runs shown * without) / (runs shown + K)

`domain` is the success rate of all held-out runs of the domain, shrunk in the same way to that of
all its runs with examples; K = 8 runs. A trace that was never shown has credit 0. A run whose
success no verdict states counts a quarter, because agents that only look successful are many.

These are the posterior means of binomial rates under beta priors worth K runs each
(empirical Bayes; Efron and Morris, "Data analysis using Stein's estimator and its generalizations",
Journal of the American Statistical Association 70, 1975).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.store.shown_queries import OutcomeCount

PRIOR_RUNS = 8.0
"""How many runs the prior counts for."""

GUESS_WEIGHT = 0.25
"""What a run counts for whose success no verdict states."""

_FEWEST_RUNS = 3


@dataclass(frozen=True, slots=True)
class Credit:
    """What it did for runs to be shown a trace.

    Attributes:
        value: By how much more of them succeeded than without it, -1 to 1, shrunk.
        deviation: The standard deviation of that estimate, 0 to 1.
        shown: How many runs were shown it.
        held_out: How many runs were held out from it.
    """

    value: float = 0.0
    deviation: float = 0.0
    shown: int = 0
    held_out: int = 0

    @property
    def hurts(self) -> bool:
        """Whether runs ended worse with it: three at least, by more than one deviation."""
        return self.shown >= _FEWEST_RUNS and self.value + self.deviation < 0


NO_CREDIT = Credit()
"""The credit of a trace that was never shown."""


@dataclass(slots=True)
class _Tally:
    """Weighted runs and successes, and the plain number of runs."""

    weight: float = 0.0
    successes: float = 0.0
    runs: int = 0

    def add(self, count: OutcomeCount) -> None:
        weight = count.runs * (1.0 if count.is_stated else GUESS_WEIGHT)
        self.weight += weight
        self.successes += weight * count.success
        self.runs += count.runs

    def rate(self, prior: float) -> float:
        """Return the success rate, shrunk to a prior."""
        return (self.successes + PRIOR_RUNS * prior) / (self.weight + PRIOR_RUNS)

    def variance(self, rate: float) -> float:
        """Return the variance of that estimate."""
        return rate * (1 - rate) / (self.weight + PRIOR_RUNS + 1)


def credits_of(counts: Iterable[OutcomeCount]) -> dict[str, Credit]:
    """Return the credit of each trace that was shown, or would have been.

    Args:
        counts: How the runs of one domain ended, by what they were shown or held out from.
    """
    shown: dict[str, _Tally] = {}
    held_out: dict[str, _Tally] = {}
    everything, without = _Tally(), _Tally()
    for count in counts:
        tallies = held_out if count.held_out else shown
        tallies.setdefault(count.shown_id, _Tally()).add(count)
        everything.add(count)
        if count.held_out:
            without.add(count)
    domain = without.rate(everything.rate(0.5))
    return {
        trace_id: _credit(shown.get(trace_id, _Tally()), held_out.get(trace_id, _Tally()), domain)
        for trace_id in shown.keys() | held_out.keys()
    }


def _credit(shown: _Tally, held_out: _Tally, domain: float) -> Credit:
    without = held_out.rate(domain)
    rate = shown.rate(without)
    variance = shown.variance(rate) + held_out.variance(without)
    return Credit(rate - without, variance**0.5, shown.runs, held_out.runs)
