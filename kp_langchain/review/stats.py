"""`DomainStats`: how many runs a domain keeps, and what costs it the others."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.novelty_sources import EMPTY_CACHE, NEAREST, REPEAT, reason
from kp_langchain.review.usage_stats import UsageStats, usage_stats
from kp_langchain.scoring.dimensions import DIMENSION_NAMES, DIMENSIONS
from kp_langchain.scoring.evidence import novelty_factor
from kp_langchain.text import count_text, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kp_langchain.calibration.basis import Basis
    from kp_langchain.prices import Prices

    _Columns = Mapping[str, NDArray[Any]]

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

_TEXTS = (
    *("domain", "decision", "gate", "veto", "novelty_source", "rules", "redactions", "dropped"),
    "usage",
)
_FLAGS = ("is_twin", "is_withheld", "is_compared", "success")
# Those that are not known are NaN.
_NUMBERS = (
    *("score", "worth", "threshold", "recovered_errors", "label", "total_tokens", "duration_ms"),
    *(f"{name}{ending}" for name in DIMENSION_NAMES for ending in ("", "_weight")),
)
_LABELS = {one.name: one.label for one in DIMENSIONS} | {CONFIDENCE: CONFIDENCE}


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
    columns = {name: _text_array(figures[name]) for name in _TEXTS}
    columns |= {name: np.array(figures[name], float) for name in _NUMBERS}
    columns |= {name: np.array(figures[name], bool) for name in _FLAGS}
    domains = columns["domain"]
    every = [
        _stats_of(domain, _rows(columns, domains == domain), bases.get(domain), prices)
        for domain in dict.fromkeys(domains.tolist())
    ]
    return sorted(every, key=lambda one: (-one.runs, one.domain))


def _text_array(texts: Sequence[str | None]) -> NDArray[Any]:
    """Return texts as an array in which equal texts are one object, which is faster to read."""
    known: dict[str | None, str | None] = {}
    return np.array(list(map(known.setdefault, texts, texts)), object)


def _rows(columns: _Columns, chosen: NDArray[np.bool_]) -> _Columns:
    return {name: array[chosen] for name, array in columns.items()}


def _stats_of(
    domain: str, runs: _Columns, basis: Basis | None, prices: Prices | None
) -> DomainStats:
    gate, threshold = str(runs["gate"][-1]), float(runs["threshold"][-1])
    judged = _rows(runs, runs["gate"] == gate)
    values = judged["score"]
    if gate == "worth":
        values = np.where(np.isnan(judged["worth"]), values, judged["worth"])
    values = np.nan_to_num(values.clip(0, 1))  # a row that was changed from outside has anything
    bins = np.minimum(HISTOGRAM_BINS - 1, (values * HISTOGRAM_BINS).astype(int))
    kept = runs["decision"] == "kept"
    is_labelled, is_success = ~np.isnan(runs["label"]), runs["label"] == 1
    redactions, redacted_runs = _add_counts(runs["redactions"])
    dropped, _ = _add_counts(runs["dropped"])
    vetoed = Counter(runs["veto"].tolist())
    del vetoed[None]  # those without
    parts = _factors(judged, values) if gate == "worth" else _dimensions(judged)
    return DomainStats(
        domain=domain,
        runs=len(runs["domain"]),
        kept=int(kept.sum()),
        gate=gate,
        basis="" if basis is None else basis.text,
        judged=len(values),
        median=float(np.median(values)),
        threshold=threshold,
        thresholds=tuple(Counter(judged["threshold"].tolist()).most_common()),
        parts=tuple(sorted(parts, key=lambda part: -part.lost)),
        rules=_rules(judged),
        histogram=tuple(np.bincount(bins, minlength=HISTOGRAM_BINS).tolist()),
        curve=_curve(judged, values),
        labelled=int(is_labelled.sum()),
        successes=int(is_success.sum()),
        kept_labelled=int((kept & is_labelled).sum()),
        kept_successes=int((kept & is_success).sum()),
        twins=int(runs["is_twin"].sum()),
        recovered=int((runs["recovered_errors"] > 0).sum()),
        withheld=int(runs["is_withheld"].sum()),
        compared=int(runs["is_compared"].sum()),
        vetoed=dict(vetoed.most_common()),
        redactions=redactions,
        redacted_runs=redacted_runs,
        dropped=dropped,
        usage=usage_stats({**runs, "is_kept": kept}, prices),
    )


def _add_counts(texts: NDArray[Any]) -> tuple[dict[str, int], int]:
    """Return the sums of counts in JSON, the highest first, and how many of them have any."""
    sums: Counter[str] = Counter()
    with_any = 0
    for text, runs in Counter(texts.tolist()).items():
        counts = _parse(text)
        with_any += runs if counts else 0
        for name, count in counts.items():
            sums[name] += count * runs
    return dict(sums.most_common()), with_any


@lru_cache(maxsize=1000)  # few of the texts differ
def _parse(text: str | None) -> dict[str, Any]:
    counts: dict[str, Any] | None = json.loads(text or "{}")
    return counts or {}


def _dimensions(runs: _Columns) -> list[PartStats]:
    parts = []
    for name in DIMENSION_NAMES:
        values, weights = runs[name], runs[f"{name}_weight"]
        known = ~np.isnan(values)
        if known.any():
            of_known = {"novelty_source": runs["novelty_source"][known]}
            values, weights = values[known], weights[known]
            parts.append(_part(name, of_known, values, weights * (1 - values), weights.mean()))
    return parts


def _factors(runs: _Columns, worths: NDArray[np.float64]) -> list[PartStats]:
    """Return the factors of worths, `confidence * (0.75 + novelty / 4)`; see `Worth`."""
    novelty = np.nan_to_num(runs["novelty"])
    factor = np.array([novelty_factor(value) for value in novelty.tolist()])
    confidence = worths / factor
    return [
        _part(CONFIDENCE, runs, confidence, factor * (1 - confidence), 1.0),
        _part("novelty", runs, novelty, confidence * (1 - factor), 1.0),
    ]


def _part(
    name: str,
    runs: _Columns,
    values: NDArray[np.float64],
    lost: NDArray[np.float64],
    weight: float,
) -> PartStats:
    """Return the statistics of a part, by its value in each run and what it lost there."""
    unmeasured: Counter[str] = Counter()
    is_measured = np.full(len(values), True)
    if name == "novelty":
        sources = Counter(runs["novelty_source"].tolist())
        for source in sources.keys() - {None, NEAREST, REPEAT}:
            unmeasured[reason(source)] += sources[source]
            is_measured &= runs["novelty_source"] != source
    return PartStats(
        name=name,
        label=_LABELS[name],
        median=float(np.median(values[is_measured])) if is_measured.any() else None,
        weight=float(weight),
        lost=float(lost[is_measured].sum()) / len(values),
        unmeasured=dict(unmeasured.most_common()),
    )


def _rules(runs: _Columns) -> tuple[RuleStats, ...]:
    changes: dict[str, list[float]] = defaultdict(list)
    passes_lost: Counter[str] = Counter()
    by_score = runs["gate"] == "score"  # a worth is held against another threshold
    columns = (runs["rules"], runs["score"], runs["threshold"], by_score & _may_pass(runs))
    for text, score, threshold, may_pass in zip(*(one.tolist() for one in columns), strict=True):
        for name, change in _parse(text).items():
            changes[name].append(change)
            passes_lost[name] += may_pass and score < threshold <= score - change
    rules = [
        RuleStats(name=name, runs=len(of), change=fmean(of), passes_lost=passes_lost[name])
        for name, of in changes.items()
    ]
    return tuple(
        sorted(rules, key=lambda rule: (-rule.passes_lost, rule.runs * rule.change, rule.name))
    )


def _may_pass(runs: _Columns) -> NDArray[np.bool_]:
    aside = runs["is_twin"] | runs["is_withheld"] | runs["veto"].astype(bool)
    may_pass: NDArray[np.bool_] = ~aside
    return may_pass


def _curve(runs: _Columns, values: NDArray[np.float64]) -> tuple[AtThreshold, ...]:
    thresholds = np.arange(_STEPS_OF_CURVE + 1) / _STEPS_OF_CURVE
    may_pass, labels = _may_pass(runs), runs["label"]

    def count_from(some: NDArray[np.bool_]) -> list[int]:
        """Return how many of some runs reach each of the thresholds."""
        in_order = np.sort(values[some])
        counts: list[int] = (len(in_order) - np.searchsorted(in_order, thresholds)).tolist()
        return counts

    counts = zip(
        thresholds.tolist(),
        count_from(may_pass),
        count_from(may_pass & ~np.isnan(labels)),
        count_from(may_pass & (labels == 1)),
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
