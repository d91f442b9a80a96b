"""`DomainStats`: how many runs a domain keeps, and what costs it the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.novelty_sources import EMPTY_CACHE, reason
from kp_langchain.review.usage_stats import UsageStats, usage_stats
from kp_langchain.scoring.dimensions import DIMENSIONS
from kp_langchain.store.run_figures import BINS, CONFIDENCE, figures_by_domain
from kp_langchain.text import count_text, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kp_langchain.calibration.basis import Basis
    from kp_langchain.prices import Prices
    from kp_langchain.store.run_figures import Figures

HISTOGRAM_BINS = 20
_STEPS_OF_CURVE = 100
# A second part is named as well if it costs more than this share of what the first costs.
_CLOSE = 0.8
# Novelty that was not measured is named if that is the case in at least this share of the runs.
_MANY = 0.1
# Nothing is wrong if there was nothing yet to compare with, as for every first run.
_FIRST = reason(EMPTY_CACHE)
_DOMAIN_CHARS = 60
_LABELS = {one.name: one.label for one in DIMENSIONS} | {CONFIDENCE: CONFIDENCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStats:
    """One dimension of the score, or one factor of the worth, over the runs of a domain.

    Attributes:
        name: The dimension; or `confidence` and `novelty`, the factors of a worth.
        label: Its name in words.
        median: Its median, 0 to 1, to a thousandth, over the runs in which it was measured; None
            if in none.
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
    """What would pass at one threshold; twins, withheld and vetoed runs are not counted.

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
        basis: What that rests on, in words; "" if it was not given.
        judged: How many runs were gated by that.
        median: The median of their scores or worths, 0 to 1, to a thousandth.
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
        twins: How many runs repeat a kept one, or were replaced by one.
        recovered: How many runs recovered from an error.
        withheld: How many runs must never be contributed.
        compared: How many runs were compared with others of their task.
        vetoed: How many runs each flag vetoes, the most frequent first.
        redactions: How often each kind of sensitive text was replaced, the most frequent first.
        redacted_runs: In how many runs something was replaced.
        dropped: How many `steps` and `texts` the recorder had no room for.
        usage: What its runs took: all, the kept ones, the successful ones; empty if unknown.
    """

    domain: str
    runs: int
    kept: int
    gate: str
    basis: str
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
    twins: int
    recovered: int
    withheld: int
    compared: int
    vetoed: Mapping[str, int]
    redactions: Mapping[str, int]
    redacted_runs: int
    dropped: Mapping[str, int]
    usage: tuple[UsageStats, ...] = ()

    @property
    def kept_share(self) -> float:
        """The share of its runs that it keeps, 0 to 1."""
        return self.kept / self.runs

    def explanation(self) -> str:
        """Return in one sentence what it keeps, and what costs most of the others."""
        name = one_line(self.domain, _DOMAIN_CHARS)
        start = f"{name} keeps {_percent(self.kept_share)} of {count_text(self.runs, 'run')}"
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
            f"{part.label} was not measured in {unmeasured:,} of {count_text(self.judged, 'run')} "
            f"({', '.join(reasons)})"
            for part in self.parts
            if (reasons := {why: n for why, n in part.unmeasured.items() if why != _FIRST})
            and (unmeasured := sum(reasons.values())) >= _MANY * self.judged
        ]
        rule = next((one for one in self.rules if one.change < 0), None)
        if rule is not None:
            lost = f", {rule.passes_lost:,} of them their pass" if rule.passes_lost else ""
            causes.append(
                f"`{rule.name}` cost {count_text(rule.runs, 'run')} {-rule.change:.2f}{lost}"
            )
        if self.vetoed:
            number, flag = sum(self.vetoed.values()), next(iter(self.vetoed))
            verb = "is vetoed by" if number == 1 else "are vetoed, most by"
            causes.append(f"{count_text(number, 'run')} {verb} `{flag}`")
        if self.twins:
            repeats = "repeats a kept one" if self.twins == 1 else "repeat kept ones"
            causes.append(f"{count_text(self.twins, 'run')} {repeats}")
        return f"{start}: {'; '.join(causes)}." if causes else f"{start}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return asdict(self) | {"explanation": self.explanation()}


def domain_stats(
    figures: Mapping[str, Sequence[Any]],
    bases: Mapping[str, Basis] = MappingProxyType({}),
    prices: Prices | None = None,
) -> list[DomainStats]:
    """Return the statistics of each domain, that with the most runs first.

    Args:
        figures: The figures of the runs, as `TraceStore.figures` returns them.
        bases: What the decisions of each domain rest on, as `TraceStore.models.bases` returns it.
        prices: What models cost; None to leave that out.
    """
    return stats_of(figures_by_domain(figures), bases, prices)


def stats_of(
    figures: Mapping[str, Figures],
    bases: Mapping[str, Basis] = MappingProxyType({}),
    prices: Prices | None = None,
) -> list[DomainStats]:
    """Return the statistics of each domain, that with the most runs first.

    Args:
        figures: By domain, as `TraceStore.days` has them.
        bases: As for `domain_stats`.
        prices: As for `domain_stats`.
    """
    every = [_stats_of(domain, one, bases.get(domain), prices) for domain, one in figures.items()]
    return sorted(every, key=lambda one: (-one.runs, one.domain))


def _stats_of(
    domain: str, figures: Figures, basis: Basis | None, prices: Prices | None
) -> DomainStats:
    gate = figures["gate"]
    judged = figures["gates"][gate]
    values = _array(judged["values"])
    parts = [_part(name, one, judged) for name, one in judged["parts"].items()]
    return DomainStats(
        domain=domain,
        **{name: figures[name] for name in _SAME_IN_BOTH},
        gate=gate,
        basis="" if basis is None else basis.text,
        judged=judged["runs"],
        median=_median(values) or 0.0,
        threshold=float(figures["threshold"]),
        thresholds=tuple((float(at), runs) for at, runs in _most_first(judged["thresholds"])),
        parts=tuple(sorted(parts, key=lambda part: -part.lost)),
        rules=_rules(figures),
        histogram=_histogram(values),
        curve=_curve(judged),
        vetoed=dict(_most_first(figures["vetoed"])),
        redactions=dict(_most_first(figures["redactions"])),
        dropped=figures["dropped"],
        usage=usage_stats(figures["usage"], prices),
    )


_SAME_IN_BOTH = (
    *("runs", "kept", "labelled", "successes", "kept_labelled", "kept_successes", "twins"),
    *("recovered", "withheld", "compared", "redacted_runs"),
)


def _array(counts: Mapping[str, int]) -> NDArray[np.int64]:
    """Return how many values lie in each thousandth."""
    array = np.zeros(BINS + 1, np.int64)
    array[np.array(list(counts), int)] = list(counts.values())
    return array


def _median(counts: NDArray[np.int64]) -> float | None:
    """Return the median to a thousandth; None without values."""
    up_to = counts.cumsum()
    number = int(up_to[-1])
    if not number:
        return None
    middle = [(number - 1) // 2, number // 2]  # the two in the middle, counted from 0
    return float(np.searchsorted(up_to, middle, "right").mean()) / BINS


def _histogram(counts: NDArray[np.int64]) -> tuple[int, ...]:
    sums = counts[:BINS].reshape(HISTOGRAM_BINS, -1).sum(axis=1)
    sums[-1] += counts[BINS]
    return tuple(sums.tolist())


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return Counter(counts).most_common()


def _part(name: str, figures: Figures, judged: Figures) -> PartStats:
    unmeasured: Counter[str] = Counter()
    if name == "novelty":
        for source, runs in judged["unmeasured"].items():
            unmeasured[reason(source)] += runs
    return PartStats(
        name=name,
        label=_LABELS[name],
        median=_median(_array(figures["values"])),
        weight=figures["weight"] / figures["runs"],
        lost=figures["lost"] / figures["runs"],
        unmeasured=dict(unmeasured.most_common()),
    )


def _rules(figures: Figures) -> tuple[RuleStats, ...]:
    """Return the rules of the runs that the domain's present gate judged."""
    rules = [
        RuleStats(
            name=name,
            runs=one["runs"],
            change=one["change"] / one["runs"],
            passes_lost=one["passes_lost"],
        )
        for name, one in figures["gates"][figures["gate"]]["rules"].items()
    ]
    return tuple(
        sorted(rules, key=lambda rule: (-rule.passes_lost, rule.runs * rule.change, rule.name))
    )


def _curve(judged: Figures) -> tuple[AtThreshold, ...]:
    def count_from(name: str) -> list[int]:
        """Return how many of some runs reach each of the thresholds."""
        reach = _array(judged[name])[::-1].cumsum()[::-1]
        counts: list[int] = reach[:: BINS // _STEPS_OF_CURVE].tolist()
        return counts

    counts = zip(
        range(_STEPS_OF_CURVE + 1),
        count_from("may_pass"),
        count_from("may_pass_labelled"),
        count_from("may_pass_successes"),
        strict=True,
    )
    return tuple(
        AtThreshold(
            threshold=at / _STEPS_OF_CURVE, runs=runs, labelled=labelled, successes=successes
        )
        for at, runs, labelled, successes in counts
    )


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return f"{share:.0%}".replace("%", " %")
