"""The credit of kept traces: how much better runs ended that were shown them.

A share of the runs is held out: recall finds examples for them, notes which, and does not show
them. So for each trace there are runs that were shown it, and runs for which it was found just as
well and that went without. The credit is the difference of their success rates, shrunk:

    without = (successes held out + 20 * domain) / (runs held out + 20)
    credit  = (successes shown - runs shown * without) / (runs shown + 8)

`domain` is the success rate of all held-out runs of the domain, shrunk in the same way to that of
all its runs with examples. A run whose success no verdict states counts a quarter, because many
runs only look successful. It changes the rank of a trace, and never makes it hurt.

A trace *hurts* if at least five runs with a verdict were shown it, and their success rate is lower
by more than two deviations and 0.2. This must also hold without the runs of each one namespace: no
namespace alone takes a shared trace from others. The runs of the namespace that the trace belongs
to are never left out. Runs without a namespace are the host's own, and count. A trace that hurts is
no longer shown, until later verdicts on these runs say otherwise.

The rule is applied after each run. How often it calls a trace harmful at any time, if all runs have
a verdict, a tenth is held out, and the domain has 360 runs with other traces, by
`python -m tests.benchmarks.credit`:

    the trace changes nothing, whether 0.5, 0.7 or 0.9 succeed, 300 runs      4, 2, 0 %
    0.4 succeed with it instead of 0.7, 100 runs, and 300 runs                90, 98 %
    the same, but only one run in five has a verdict, 300 runs                77 %
    0.6 succeed with it instead of 0.7, 300 runs                              26 %
    it changes nothing, but its tasks are hard: 0.5 in a domain at 0.7        36 %

The last is the price of a decision after 100 runs, of which ten are held out.

These are the posterior means of binomial rates under beta priors worth 20 and 8 runs (empirical
Bayes; Efron and Morris, "Data analysis using Stein's estimator and its generalizations", Journal of
the American Statistical Association 70, 1975).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kp_langchain.store.side_tables import OutcomeCount

PRIOR_RUNS = 8.0
"""How many runs the prior counts for, of a trace that was shown."""

PRIOR_RUNS_WITHOUT = 20.0
"""How many runs it counts for without a trace; what differs then are only the tasks."""

GUESS_WEIGHT = 0.25
"""What a run counts for whose success no verdict states."""

_FEWEST_RUNS = 5
_DEVIATIONS = 2.0
_LEAST_LOSS = 0.2


@dataclass(frozen=True, slots=True)
class Credit:
    """How a trace changed the runs shown it.

    Attributes:
        value: By how much more of them succeeded than without it, -1 to 1, shrunk.
        deviation: The standard deviation of that estimate, 0 to 1.
        shown: How many runs were shown it.
        held_out: How many runs were held out from it.
        hurts: Whether runs ended so much worse with it, by their verdicts, that it is not shown.
    """

    value: float = 0.0
    deviation: float = 0.0
    shown: int = 0
    held_out: int = 0
    hurts: bool = False


NO_CREDIT = Credit()
"""The credit of a trace that no run was shown or held out from."""


class RunCount(Protocol):
    """How many runs with examples, or held out from them, ended in one way."""

    @property
    def held_out(self) -> bool:
        """Whether they were held out."""

    @property
    def success(self) -> bool:
        """Whether they succeeded."""

    @property
    def is_stated(self) -> bool:
        """Whether a verdict says so, and not just the look of the run."""

    @property
    def runs(self) -> int:
        """Their number."""

    @property
    def namespace(self) -> str | None:
        """Their namespace; None for runs that are never left out."""


@dataclass(slots=True)
class Tally:
    """Weighted runs and successes, and the plain number of runs."""

    weight: float = 0.0
    successes: float = 0.0
    runs: int = 0

    def add(self, count: RunCount) -> None:
        """Add runs; those whose success no verdict states weigh less."""
        weight = count.runs * (1.0 if count.is_stated else GUESS_WEIGHT)
        self.weight += weight
        self.successes += weight * count.success
        self.runs += count.runs

    def without(self, part: Tally) -> Tally:
        """Return the runs that are not in a part of them."""
        return Tally(
            self.weight - part.weight, self.successes - part.successes, self.runs - part.runs
        )

    def rate(self, prior: float, prior_runs: float) -> float:
        """Return the success rate, shrunk to a prior."""
        return (self.successes + prior_runs * prior) / (self.weight + prior_runs)

    def variance(self, rate: float, prior_runs: float) -> float:
        """Return the variance of that estimate."""
        return rate * (1 - rate) / (self.weight + prior_runs + 1)


class Arms(NamedTuple):
    """The runs that were shown examples, and those that were held out from them."""

    shown: Tally
    held_out: Tally

    def without(self, part: Arms) -> Arms:
        """Return the runs that are not in a part of them."""
        return Arms(self.shown.without(part.shown), self.held_out.without(part.held_out))


def arms_of(counts: Iterable[RunCount]) -> Arms:
    """Return runs by whether they were held out."""
    arms = Arms(Tally(), Tally())
    for count in counts:
        (arms.held_out if count.held_out else arms.shown).add(count)
    return arms


def holds_without_each(counts: Sequence[RunCount], holds: Callable[[Arms], bool]) -> bool:
    """Return whether a rule holds, and still does whichever one namespace is left out.

    Args:
        counts: How runs ended.
        holds: The rule.
    """
    arms = arms_of(counts)
    if not holds(arms):
        return False
    by_namespace: dict[str, list[RunCount]] = {}
    for count in counts:
        if count.namespace is not None:
            by_namespace.setdefault(count.namespace, []).append(count)
    return all(holds(arms.without(arms_of(part))) for part in by_namespace.values())


def credits_of(counts: Iterable[OutcomeCount]) -> dict[str, Credit]:
    """Return the credit of each trace that was shown, or would have been.

    Args:
        counts: How the runs of one domain ended, by what they were shown or held out from.
    """
    by_trace: dict[str, list[OutcomeCount]] = {}
    judged_by_trace: dict[str, list[OutcomeCount]] = {}
    for count in counts:
        by_trace.setdefault(count.shown_id, []).append(count)
        if count.is_stated:
            judged_by_trace.setdefault(count.shown_id, []).append(count)
    domain, judged_domain = _rate_without(by_trace), _rate_without(judged_by_trace)
    return {
        trace_id: replace(
            _credit(arms_of(of_trace), domain),
            hurts=holds_without_each(
                judged_by_trace.get(trace_id, ()),
                lambda arms: _is_loss(_credit(arms, judged_domain)),
            ),
        )
        for trace_id, of_trace in by_trace.items()
    }


def _rate_without(by_trace: Mapping[str, Sequence[OutcomeCount]]) -> float:
    """Return the success rate of a domain's runs without examples."""
    everything, without = Tally(), Tally()
    for of_trace in by_trace.values():
        for count in of_trace:
            everything.add(count)
            if count.held_out:
                without.add(count)
    return without.rate(everything.rate(0.5, PRIOR_RUNS_WITHOUT), PRIOR_RUNS_WITHOUT)


def _credit(arms: Arms, domain: float) -> Credit:
    shown, held_out = arms
    without = held_out.rate(domain, PRIOR_RUNS_WITHOUT)
    rate = shown.rate(without, PRIOR_RUNS)
    variance = shown.variance(rate, PRIOR_RUNS) + held_out.variance(without, PRIOR_RUNS_WITHOUT)
    return Credit(rate - without, variance**0.5, shown.runs, held_out.runs)


def _is_loss(credit: Credit) -> bool:
    least = max(_LEAST_LOSS, _DEVIATIONS * credit.deviation)
    return credit.shown >= _FEWEST_RUNS and credit.value < -least
