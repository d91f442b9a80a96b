"""`DomainStats`: how many runs a domain keeps, and what costs it the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.novelty_sources import EMPTY_CACHE, reason
from kp_langchain.scoring.dimensions import DIMENSIONS, novelty_factor
from kp_langchain.text import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kp_langchain.store.run_columns import RunSummary

HISTOGRAM_BINS = 20
_STEPS_OF_CURVE = 100
# A second part is named as well if it costs more than this share of what the first costs.
_CLOSE = 0.8
# Novelty that was not measured is named if that is the case in at least this share of the runs.
_MANY = 0.1
# Nothing is wrong if there was nothing yet to compare with, as for every first run.
_FIRST = reason(EMPTY_CACHE)
_DOMAIN_CHARS = 60
CONFIDENCE = "confidence"
"""The part of a worth that is not novelty, among the parts of a domain gated by worth."""

_LABELS = {one.name: one.label for one in DIMENSIONS} | {CONFIDENCE: "confidence of the model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStats:
    """One dimension of the score, or one factor of the worth, over the runs of a domain.

    Attributes:
        name: The dimension; or `confidence` and `novelty`, the factors of a worth.
        label: Its name in words.
        median: Its median, 0 to 1, over the runs in which it was measured; None if in none.
        weight: Its mean weight in the score, 0 to 1; 1 for the factors of a worth.
        lost: By how much the score or worth is below what it would be if this part were 1, on the
            average, 0 to 1. Novelty costs nothing where it was not measured.
        unmeasured: Of novelty, in how many runs it was not measured, by the reason in words; the
            most frequent first.
    """

    name: str
    label: str
    median: float | None
    weight: float
    lost: float
    unmeasured: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStats:
    """One rule over the runs of a domain.

    Attributes:
        name: The rule.
        runs: To how many runs it applied.
        change: What it added to their scores on the average; negative if it lowered them.
        passes_lost: How many of these runs would have reached their threshold without it.
    """

    name: str
    runs: int
    change: float
    passes_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """What would pass at one threshold, near-duplicates and withheld runs not counted.

    Attributes:
        threshold: The threshold, 0 to 1.
        runs: How many runs reach it.
        labelled: How many of these have a verdict that states their success.
        successes: How many of those succeeded.
    """

    threshold: float
    runs: int
    labelled: int
    successes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainStats:
    """How many runs a domain keeps, and what costs it the others.

    The parts, the rules, the histogram and the curve are about the runs that the domain's present
    gate judged: by score, or by worth.

    Attributes:
        domain: The domain.
        runs: How many runs it has.
        kept: How many of them passed and were kept.
        gate: What its newest run was gated by, `score` or `worth`.
        judged: How many runs were gated by that.
        median: The median of their scores or worths, 0 to 1.
        threshold: The threshold of its newest run, 0 to 1.
        thresholds: Each threshold and how many runs were held against it, the most frequent first.
            There are several if a setting changed, if the gate follows a pass rate, or if the
            novelty of some runs could not be measured.
        parts: The dimensions of the score or the factors of the worth; what loses most first.
        rules: The rules that applied to scores; what cost most runs their pass first, then what
            lowered scores most.
        histogram: How many scores or worths lie in each of 20 equal bins from 0 to 1.
        curve: What would pass at thresholds 0, 0.01, ... 1.
        labelled: How many runs have a verdict that states their success.
        successes: How many of those succeeded.
        kept_labelled: How many kept runs have such a verdict.
        kept_successes: How many of those succeeded.
        near_duplicates: How many runs repeat a kept one, or were replaced by one.
        recovered: How many runs recovered from an error.
        withheld: How many runs must never be contributed.
        redactions: How often each kind of sensitive text was replaced, the most frequent first.
        redacted_runs: In how many runs something was replaced.
        dropped: How many `steps` and `texts` the recorder had no room for.
    """

    domain: str
    runs: int
    kept: int
    gate: str
    judged: int
    median: float
    threshold: float
    thresholds: tuple[tuple[float, int], ...]
    parts: tuple[PartStats, ...]
    rules: tuple[RuleStats, ...]
    histogram: tuple[int, ...]
    curve: tuple[AtThreshold, ...]
    labelled: int
    successes: int
    kept_labelled: int
    kept_successes: int
    near_duplicates: int
    recovered: int
    withheld: int
    redactions: Mapping[str, int]
    redacted_runs: int
    dropped: Mapping[str, int]

    @property
    def kept_share(self) -> float:
        """The share of its runs that it keeps, 0 to 1."""
        return self.kept / self.runs

    def explanation(self) -> str:
        """Return in one sentence what it keeps, and what costs most of the others."""
        name = one_line(self.domain, _DOMAIN_CHARS)
        start = f"{name} keeps {_percent(self.kept_share)} of {_counted(self.runs, 'run')}"
        if self.judged != self.runs:
            start += f"; {self.judged:,} of them went by {self.gate}"
        causes = []
        if self.parts and self.parts[0].lost > 0:
            causes += [
                f"{part.label} is {part.median:.2f} in the median and costs {part.lost:.2f}"
                for part in self.parts[:2]
                if part.lost > _CLOSE * self.parts[0].lost
            ]
        causes += [
            f"{part.label} was not measured in {unmeasured:,} of {_counted(self.judged, 'run')} "
            f"({', '.join(reasons)})"
            for part in self.parts
            if (reasons := {why: n for why, n in part.unmeasured.items() if why != _FIRST})
            and (unmeasured := sum(reasons.values())) >= _MANY * self.judged
        ]
        rule = next((one for one in self.rules if one.change < 0), None)
        if rule is not None:
            lost = f", {rule.passes_lost:,} of them their pass" if rule.passes_lost else ""
            causes.append(
                f"`{rule.name}` cost {_counted(rule.runs, 'run')} {-rule.change:.1f}{lost}"
            )
        if self.near_duplicates:
            repeats = "repeats a kept one" if self.near_duplicates == 1 else "repeat kept ones"
            causes.append(f"{_counted(self.near_duplicates, 'run')} {repeats}")
        return f"{start}: {'; '.join(causes)}." if causes else f"{start}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return asdict(self) | {"explanation": self.explanation()}


def domain_stats(summaries: Iterable[RunSummary]) -> list[DomainStats]:
    """Return the statistics of each domain, that with the most runs first.

    Args:
        summaries: The figures of the runs, as `TraceStore.summaries` yields them.
    """
    by_domain: dict[str, list[RunSummary]] = defaultdict(list)
    for summary in summaries:
        by_domain[summary.domain].append(summary)
    in_order = sorted(by_domain.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [_stats_of(domain, runs) for domain, runs in in_order]


def _stats_of(domain: str, runs: Sequence[RunSummary]) -> DomainStats:
    newest = max(runs, key=lambda run: run.created_at)
    judged = [run for run in runs if run.gate == newest.gate]
    values = np.array([run.gated_value for run in judged])
    kept = [run for run in runs if run.is_kept]
    redactions: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for run in runs:
        if run.redactions:
            redactions.update(run.redactions)
        if run.dropped:
            dropped.update(run.dropped)
    parts = _factors(judged) if newest.gate == "worth" else _dimensions(judged)
    bins = np.minimum(HISTOGRAM_BINS - 1, (values * HISTOGRAM_BINS).astype(int))
    return DomainStats(
        domain=domain,
        runs=len(runs),
        kept=len(kept),
        gate=newest.gate,
        judged=len(judged),
        median=float(np.median(values)),
        threshold=newest.threshold,
        thresholds=tuple(Counter(run.threshold for run in judged).most_common()),
        parts=tuple(sorted(parts, key=lambda part: -part.lost)),
        rules=_rules(judged),
        histogram=tuple(np.bincount(bins, minlength=HISTOGRAM_BINS).tolist()),
        curve=_curve(judged, values),
        labelled=sum(run.label is not None for run in runs),
        successes=sum(run.label is True for run in runs),
        kept_labelled=sum(run.label is not None for run in kept),
        kept_successes=sum(run.label is True for run in kept),
        near_duplicates=sum(run.is_near_duplicate for run in runs),
        recovered=sum(run.recovered_errors > 0 for run in runs),
        withheld=sum(run.is_withheld for run in runs),
        redactions=dict(redactions.most_common()),
        redacted_runs=sum(bool(run.redactions) for run in runs),
        dropped=dict(dropped.most_common()),
    )


def _dimensions(runs: Sequence[RunSummary]) -> list[PartStats]:
    parts = []
    for name in dict.fromkeys(name for run in runs for name in run.dimensions):
        runs_with = [run for run in runs if name in run.dimensions]
        flat = chain.from_iterable(run.dimensions[name] for run in runs_with)
        values, weights = np.fromiter(flat, float).reshape(-1, 2).T
        parts.append(_part(name, runs_with, values, weights * (1 - values), weights.mean()))
    return parts


def _part(
    name: str,
    runs: Sequence[RunSummary],
    values: NDArray[np.float64],
    lost: NDArray[np.float64],
    weight: float,
) -> PartStats:
    """Return the statistics of a part, by its value in each run and what it lost there."""
    is_novelty = name == "novelty"
    reasons = [run.why_unmeasured for run in runs] if is_novelty else [None] * len(runs)
    is_measured = np.array([why is None for why in reasons])
    unmeasured = Counter(why for why in reasons if why is not None)
    return PartStats(
        name=name,
        label=_LABELS.get(name, name),
        median=float(np.median(values[is_measured])) if is_measured.any() else None,
        weight=float(weight),
        lost=float(lost[is_measured].sum()) / len(runs),
        unmeasured=dict(unmeasured.most_common()),
    )


def _factors(runs: Sequence[RunSummary]) -> list[PartStats]:
    """Return the factors of worths, `confidence * (0.5 + novelty / 2)`; see `Worth`."""
    novelty = np.array([run.dimensions.get("novelty", (0.0, 0.0))[0] for run in runs])
    factor = np.array([novelty_factor(value) for value in novelty.tolist()])
    sure = np.array([run.gated_value for run in runs]) / factor
    return [
        _part(CONFIDENCE, runs, sure, factor * (1 - sure), 1.0),
        _part("novelty", runs, novelty, sure * (1 - factor), 1.0),
    ]


def _rules(runs: Sequence[RunSummary]) -> tuple[RuleStats, ...]:
    by_name: dict[str, list[RunSummary]] = defaultdict(list)
    for run in runs:
        for name in run.rules:
            by_name[name].append(run)
    rules = [
        RuleStats(
            name=name,
            runs=len(changed),
            change=fmean(run.rules[name] for run in changed),
            passes_lost=sum(_passes_without(run, name) for run in changed),
        )
        for name, changed in by_name.items()
    ]
    return tuple(
        sorted(rules, key=lambda rule: (-rule.passes_lost, rule.runs * rule.change, rule.name))
    )


def _passes_without(run: RunSummary, rule: str) -> bool:
    may_pass = run.gate == "score" and not run.is_withheld and not run.is_near_duplicate
    return may_pass and run.score < run.threshold <= run.score - run.rules[rule]


def _curve(runs: Sequence[RunSummary], values: NDArray[np.float64]) -> tuple[AtThreshold, ...]:
    thresholds = np.arange(_STEPS_OF_CURVE + 1) / _STEPS_OF_CURVE
    may_pass = np.array([not (run.is_near_duplicate or run.is_withheld) for run in runs])
    labels = np.array([run.label for run in runs], dtype=object)

    def count_from(some: NDArray[np.bool_]) -> list[int]:
        """Return how many of some runs reach each of the thresholds."""
        in_order = np.sort(values[some])
        counts: list[int] = (len(in_order) - np.searchsorted(in_order, thresholds)).tolist()
        return counts

    is_success = labels == True  # noqa: E712 - of each element
    is_labelled = is_success | (labels == False)  # noqa: E712
    counts = zip(
        thresholds.tolist(),
        count_from(may_pass),
        count_from(may_pass & is_labelled),
        count_from(may_pass & is_success),
        strict=True,
    )
    return tuple(
        AtThreshold(threshold=at, runs=runs_, labelled=labelled, successes=successes)
        for at, runs_, labelled, successes in counts
    )


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return f"{share:.0%}".replace("%", " %")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
