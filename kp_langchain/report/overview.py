"""The figures of each domain as the page shows them, with its histogram and its trend."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count

from kp_langchain.report.text import line_of
from kp_langchain.review.stats import DomainStats, domain_stats
from kp_langchain.store.run_columns import RunSummary

_NAME_CHARS = 100
_BLANK = "(blank)"
_SENTENCE_CHARS = 1000
_BINS = 40
_MOST_BUCKETS = 24
_RUNS_PER_BUCKET = 4
_LONG_S = 3 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Trend:
    """The share of runs that a domain kept, over time.

    Attributes:
        points: Time and share, both 0 to 1.
        first: When its first run began, in words.
        last: When its last run began.
    """

    points: Sequence[tuple[float, float]]
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain as the page shows it.

    Attributes:
        name: Its name, as the records of the runs have it.
        sentence: How much it keeps and what costs most, in parts; every second one is code.
        stats: Its figures.
        bars: Its histogram: left, top, width and height of each bar, 0 to 1.
        trend: What it kept over time; None if it has too few runs.
    """

    name: str
    sentence: Sequence[str]
    stats: DomainStats
    bars: Sequence[tuple[float, float, float, float]]
    trend: Trend | None


def names_of(domains: Iterable[str]) -> dict[str, str]:
    """Return by its name what each domain is called on the page: one line, unlike all others."""
    names: dict[str, str] = {}
    for domain in dict.fromkeys(domains):
        name = line_of(domain, _NAME_CHARS) or _BLANK
        taken = set(names.values())
        others = (f"{name} ({number})" for number in count(2))
        names[domain] = next(one for one in chain([name], others) if one not in taken)
    return names


def overview(summaries: Sequence[RunSummary], names: Mapping[str, str]) -> list[DomainView]:
    """Return each domain as the page shows it, the one with most runs first.

    Args:
        summaries: The figures of the runs.
        names: What the domains are called; see `names_of`.
    """
    by_domain: dict[str, list[RunSummary]] = defaultdict(list)
    for summary in summaries:
        by_domain[summary.domain].append(summary)
    return [
        DomainView(
            name=names[stats.domain],
            sentence=line_of(stats.explanation(), _SENTENCE_CHARS).split("`"),
            stats=stats,
            bars=_bars([run for run in by_domain[stats.domain] if run.gate == stats.gate]),
            trend=_trend(by_domain[stats.domain]),
        )
        for stats in domain_stats(summaries)
    ]


def _bars(runs: Sequence[RunSummary]) -> list[tuple[float, float, float, float]]:
    counts = Counter(min(_BINS - 1, int(run.gated_value * _BINS)) for run in runs)
    most = max(counts.values(), default=1)
    gap = 0.1 / _BINS
    return [
        (
            round(at / _BINS + gap / 2, 5),
            round(1 - number / most, 4),
            round(1 / _BINS - gap, 5),
            round(number / most, 4),
        )
        for at, number in sorted(counts.items())
    ]


def _trend(runs: Sequence[RunSummary]) -> Trend | None:
    times = [run.created_at.timestamp() for run in runs]
    first, last = min(times), max(times)
    buckets = min(_MOST_BUCKETS, len(runs) // _RUNS_PER_BUCKET)
    if buckets < 2 or first == last:
        return None
    kept: dict[int, list[bool]] = defaultdict(list)
    for time, run in zip(times, runs, strict=True):
        at = min(buckets - 1, int((time - first) / (last - first) * buckets))
        kept[at].append(run.is_kept)
    points = [
        (round((at + 0.5) / buckets, 4), round(sum(passed) / len(passed), 4))
        for at, passed in sorted(kept.items())
    ]
    form = "%Y-%m-%d" if last - first > _LONG_S else "%Y-%m-%d %H:%M UTC"
    ends = [datetime.fromtimestamp(end, UTC).strftime(form) for end in (first, last)]
    return Trend(points, ends[0], ends[1])
