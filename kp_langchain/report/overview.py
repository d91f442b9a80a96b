"""The figures of each domain, and what costs most there, in a sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from kp_langchain.scoring.dimensions import DIMENSIONS

_BINS = 40
_MOST_BUCKETS = 24
_RUNS_PER_BUCKET = 4
_LONG_MS = 3 * 24 * 3600 * 1000
_LABELS = [dimension.label for dimension in DIMENSIONS]


def overview(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of each domain, the one with most runs first.

    Args:
        runs: The records of the runs, the newest first; see `record_of`.
    """
    by_domain: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_domain[run["domain"]].append(run)
    ordered = sorted(by_domain.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_domain(name, of_domain) for name, of_domain in ordered]


def _domain(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    gate = runs[0]["gate"]
    values = [run[gate] for run in runs if run[gate] is not None]
    thresholds = Counter(run["threshold"] for run in runs if run["gate"] == gate)
    threshold = thresholds.most_common(1)[0][0]
    kept = sum(run["passed"] for run in runs)
    dimensions, rules = _dimensions(runs), _rules(runs)
    return {
        "domain": name,
        "runs": len(runs),
        "kept": kept,
        "gate": gate,
        "median": median(values) if values else None,
        "threshold": threshold,
        "without": len(runs) - len(values),
        "bars": _bars(values),
        "trend": _trend(runs),
        "dimensions": dimensions,
        "rules": rules,
        "near_duplicates": sum(run["twin"] is not None for run in runs),
        "redactions": _redactions(runs),
        "sentence": _sentence(name, kept / len(runs), dimensions, rules),
    }


def _bars(values: list[float]) -> list[tuple[float, float, float, float]]:
    """Return the bars of a histogram of values: left, top, width and height, all 0 to 1."""
    counts = Counter(min(_BINS - 1, int(value * _BINS)) for value in values)
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


def _trend(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the kept share over time as points, both 0 to 1; None for a single run."""
    first, last = min(run["at"] for run in runs), max(run["at"] for run in runs)
    buckets = min(_MOST_BUCKETS, len(runs) // _RUNS_PER_BUCKET)
    if buckets < 2:
        return None
    kept: dict[int, list[bool]] = defaultdict(list)
    for run in runs:
        kept[(run["at"] - first) * buckets // (last - first + 1)].append(run["passed"])
    points = [
        (round((at + 0.5) / buckets, 4), round(sum(passed) / len(passed), 4))
        for at, passed in sorted(kept.items())
    ]
    form = "%Y-%m-%d" if last - first > _LONG_MS else "%Y-%m-%d %H:%M UTC"
    ends = [datetime.fromtimestamp(end / 1000, UTC).strftime(form) for end in (first, last)]
    return {"points": points, "first": ends[0], "last": ends[1]}


def _dimensions(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return name, median, weight and cost of each dimension; see `_cost`."""
    rows = []
    for index, label in enumerate(_LABELS):
        figures = [run["dimensions"][index] for run in runs]
        complete = [(value, weight) for value, weight, *_ in figures if None not in (value, weight)]
        if not complete:
            continue
        rows.append(
            {
                "name": label,
                "median": median(value for value, _ in complete),
                "weight": median(weight for _, weight in complete),
                "cost": sum(weight * (1 - value) for value, weight in complete) / len(complete),
            }
        )
    return rows


def _rules(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return name, number of runs and mean change of each rule, the one that costs most first."""
    changes: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, before, after, _ in run["rules"]:
            if before is not None and after is not None:
                changes[name].append(after - before)
    rows = [
        {"name": name, "runs": len(values), "change": sum(values) / len(values)}
        for name, values in changes.items()
    ]
    return sorted(rows, key=lambda row: (row["runs"] * row["change"], row["name"]))


def _redactions(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return each kind of what was replaced with its number, the most frequent first."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run["redactions"] or {})
    return [[kind, number] for kind, number in counts.most_common()]


def _sentence(
    name: str, share: float, dimensions: list[dict[str, Any]], rules: list[dict[str, Any]]
) -> str:
    """Return in a sentence how much a domain keeps, and which dimension and rule cost most."""
    text = f"{name} keeps {100 * share:.0f} %"
    if dimensions:
        worst = max(dimensions, key=lambda row: row["cost"])
        text += f": {worst['name']} costs most, and is {worst['median']:.2f} in the median"
    if rules and rules[0]["change"] < 0:
        rule = rules[0]
        number = f"{rule['runs']:,} run{'s' if rule['runs'] > 1 else ''}"
        text += f"; {rule['name']} cost {number} {-rule['change']:.2f} each"
    return f"{text}."
