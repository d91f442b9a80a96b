"""What a scored run is compared with: a fixed threshold, or one that holds a pass rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.scoring.dimensions import SINGLE_THOUGHT
from kp_langchain.scoring.evidence import novelty_factor

if TYPE_CHECKING:
    from kp_langchain.policy import DomainPolicy, Gate
    from kp_langchain.scoring.breakdown import ScoreBreakdown

DEFAULT_PASS_RATE = 0.1
"""The share of runs that passes in a domain with a model whose policy states neither a pass rate
nor a threshold: that of the built-in thresholds, which are made for confidences without a model."""

WINDOW = 300
"""So many of the last runs count."""

FEWEST_VALUES: Mapping[Gate, int] = MappingProxyType({"score": 30, "worth": 10})
"""Of fewer values, a quantile says too little. Before that, the documents' formula decides, which
tells less than a few worths do."""
NONE_PASSES = math.nextafter(1.0, 2.0)
"""The threshold of a domain that is to be gated by worth, until its first 30 runs have shown
whether its tasks repeat: agreement tells more than the score, and they are judged again by it."""


def tasks_repeat(compared: int, last: int) -> bool:
    """Return whether tasks repeat: a fifth of the last runs was compared with others of theirs."""
    return 5 * compared >= last


def waits(gate: str, threshold: float) -> bool:
    """Return whether a run that was held against this waits for others of its task."""
    return gate == "score" and threshold >= NONE_PASSES


# A surplus or deficit of passes is made up for within about so many runs. Of 20, 30, 40 and 100, 20
# kept the share of each 100 recorded runs closest to the promised one, and what was kept was as
# often right.
_CATCH_UP_RUNS = 20
# The share is at most so many times the promised one: otherwise many runs in a row that could not
# pass, such as repeats, would let nearly all that follow pass.
_LARGEST_FACTOR = 4.0


class Threshold(NamedTuple):
    """A domain's threshold: by default one for measured novelty and one for unmeasured.

    Attributes:
        measured: For traces whose novelty was measured against remembered ones.
        unmeasured: For traces whose novelty could not be measured and is therefore 0.5. A repeated
            task would get less than 0.5, so this threshold is higher.
    """

    measured: float
    unmeasured: float

    def for_score(self, breakdown: ScoreBreakdown) -> float:
        """Return the threshold, 0 to 1, for a trace by whether its novelty was measured."""
        return self.unmeasured if breakdown.nearest is None else self.measured


DEFAULT_THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "default": Threshold(0.59, 0.65),
        "finance": Threshold(0.61, 0.68),
        "code": Threshold(0.62, 0.71),
        "medical": Threshold(0.67, 0.71),
        "customer_service": Threshold(0.63, 0.74),
    }
)
"""Per domain, the score that about one real run in ten reaches; see tests/benchmarks/README.md."""


def threshold_of(domain: str, configured: float | None) -> Threshold:
    """Return the threshold of a domain.

    Args:
        domain: The run's domain.
        configured: The threshold of the domain's policy, 0 to 1; None for the default.
    """
    if configured is not None:
        return Threshold(configured, configured)
    return DEFAULT_THRESHOLDS.get(domain, DEFAULT_THRESHOLDS["default"])


class JudgedRun(NamedTuple):
    """What the gate saw of a run, and decided.

    Attributes:
        value: Its score or worth, 0 to 1.
        passes: Whether one more run was kept because of it.
        pass_rate: The share of runs that was to pass then; None for a fixed threshold.
    """

    value: float
    passes: bool
    pass_rate: float | None


class RecentValues:
    """The scores or worths of a domain's last runs, and which of them passed.

    Values drift: as the novelty memory fills, novelty falls, and a fixed threshold lets fewer and
    fewer runs pass. So the threshold is the quantile of the last runs that lets a given share pass.
    If more or fewer runs passed than that, it rises or falls until the share is right again.

    Safe to use from several threads, and after a fork.

    Args:
        values: Values of runs that the gate never judged, to begin with, such as the held-out ones
            of the runs that a model was fitted to.
        judged: Earlier runs that it judged, the oldest first.
    """

    def __init__(self, values: Iterable[float] = (), judged: Iterable[JudgedRun] = ()) -> None:
        self._lock = ForkSafeLock()
        self._values = deque(values, maxlen=WINDOW)
        # Of each run, the share that was to pass, less 1 if it passed.
        self._deficits: deque[float] = deque(maxlen=WINDOW)
        for run in judged:
            self.add(run)

    def add(self, run: JudgedRun) -> None:
        """Add a run that the gate has judged."""
        with self._lock:
            self._values.append(run.value)
            if run.pass_rate is not None:
                self._deficits.append(run.pass_rate - run.passes)

    def replace(self, values: Iterable[float]) -> None:
        """Have other values in place of those known; what passed still counts."""
        with self._lock:
            self._values = deque(values, maxlen=WINDOW)

    def threshold(self, pass_rate: float, fewest: int = FEWEST_VALUES["worth"]) -> float | None:
        """Return the threshold at which a share of the next runs should pass.

        Args:
            pass_rate: The share, above 0, at most 1.
            fewest: How many values are needed.

        Returns:
            The threshold, 0 to 1, or just above the highest value; None while too few runs are
            known.
        """
        with self._lock:
            if len(self._values) < fewest:
                return None
            deficit = math.fsum(self._deficits)
            highest = sorted(self._values, reverse=True)
        share = max(0.0, pass_rate + deficit / _CATCH_UP_RUNS)
        share = min(1.0, pass_rate * _LARGEST_FACTOR, share)
        passing = round(share * len(highest))
        return highest[passing - 1] if passing else math.nextafter(highest[0], 2.0)


class GateCheck(NamedTuple):
    """What a run is compared with.

    Attributes:
        gate: Whether it is gated by its score or by its worth.
        value: That score or worth, 0 to 1.
        threshold: The least value that passes.
        pass_rate: The share of runs that is to pass; None for a fixed threshold.
    """

    gate: Gate
    value: float
    threshold: float
    pass_rate: float | None = None


def pass_rate_of(policy: DomainPolicy, gate: Gate, *, has_model: bool) -> float | None:
    """Return the share of a domain's runs that is to pass; None if a fixed threshold applies.

    Args:
        policy: The policy of the domain.
        gate: By what its runs are gated.
        has_model: Whether it has a confidence model.
    """
    fixed, has_default = policy.threshold, has_model
    if gate == "worth":  # a threshold is for calibrated worths, and not for what only ranks
        fixed, has_default = policy.worth_threshold if has_model else None, True
    if policy.pass_rate is None and fixed is None and has_default:
        return DEFAULT_PASS_RATE
    return policy.pass_rate


def check(
    breakdown: ScoreBreakdown,
    domain: str,
    policy: DomainPolicy,
    *,
    recent: Callable[[Gate], RecentValues],
    is_new: bool = False,
    has_model: bool = False,
    base_rate: float = 0.0,
) -> GateCheck:
    """Return what a new run is compared with.

    A run that has no worth, because nothing is known in its domain but scores, is gated by its
    score whatever the policy says. So is one whose policy states no threshold of the worth, while
    too few runs are known to hold a pass rate.

    Args:
        breakdown: The run's score.
        domain: Its domain.
        policy: The policy of that domain.
        recent: Returns what the gate saw of the domain's last runs.
        is_new: Whether the domain has had fewer than 30 runs without a flag.
        has_model: Whether a confidence model was fitted to verdicts of the domain.
        base_rate: The confidence below which no run passes with a pass rate: with a model the share
            of successes among the runs that it was fitted to, since a random run is right more
            often. The gate `worth` uses the confidence of the worth; `score`, with a model, the one
            in the score.
    """
    if policy.gate == "worth" and breakdown.worth is not None:
        value = breakdown.worth.value
        if (pass_rate := pass_rate_of(policy, "worth", has_model=has_model)) is not None:
            rate_threshold = recent("worth").threshold(pass_rate)
            if rate_threshold is not None:
                floor = base_rate * novelty_factor(breakdown.novelty.value)
                return GateCheck("worth", value, max(rate_threshold, floor), pass_rate)
        if policy.worth_threshold is not None and has_model:
            return GateCheck("worth", value, policy.worth_threshold)
    if (pass_rate := pass_rate_of(policy, "score", has_model=has_model)) is not None:
        rate_threshold = recent("score").threshold(pass_rate, FEWEST_VALUES["score"])
        if rate_threshold is not None:
            floor = _least_score(breakdown, base_rate) if has_model else 0.0
            return GateCheck("score", breakdown.total, max(rate_threshold, floor), pass_rate)
    is_open = policy.gate == "worth" and policy.threshold is None
    if is_open and not has_model and is_new:
        return GateCheck("score", breakdown.total, NONE_PASSES)
    fixed = threshold_of(domain, policy.threshold).for_score(breakdown)
    return GateCheck("score", breakdown.total, fixed)


def _least_score(breakdown: ScoreBreakdown, base_rate: float) -> float:
    """Return the score that the run would have if its outcome's confidence were the base rate.

    The score reaches it if the confidence does. Where the confidence does not count, because its
    weight is 0 or the run is a single thought, every score reaches it.
    """
    outcome = breakdown.outcome_confidence
    if any(rule.name == SINGLE_THOUGHT for rule in breakdown.rules):
        return 0.0
    return breakdown.total + outcome.weight * (base_rate - outcome.value)
