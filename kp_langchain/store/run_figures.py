"""What is counted of many runs: figures that add up, so that those of a day are counted once.

Figures are nested dictionaries of numbers, ready for JSON. Those of two sets of runs are added name
by name; of what is no number, the later counts. Values from 0 to 1 are counted by thousandths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kp_langchain.novelty_sources import NEAREST, REPEAT
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.scoring.evidence import novelty_factor
from kp_langchain.usage import TOKEN_FIELDS, Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns: TypeAlias = Mapping[str, NDArray[Any]]

Figures: TypeAlias = dict[str, Any]

BINS = 1000
CONFIDENCE = "confidence"
"""The part of a worth that is not novelty, among the parts of runs gated by worth."""

COUNTED_TOKENS = ("reported_calls", *TOKEN_FIELDS)
"""What is added up of the calls of a model."""

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
_EDGES = np.arange(BINS + 1) / BINS


def figures_by_domain(columns: Mapping[str, Sequence[Any]]) -> dict[str, Figures]:
    """Return the figures of runs by domain.

    Args:
        columns: As `TraceStore.figures` returns them, the oldest run first.
    """
    arrays: dict[str, Any] = {name: _text_array(columns[name]) for name in _TEXTS}
    arrays |= {name: np.array(columns[name], float) for name in _NUMBERS}
    arrays |= {name: np.array(columns[name], bool) for name in _FLAGS}
    domains = arrays["domain"]
    return {
        domain: figures_of(_rows(arrays, domains == domain))
        for domain in dict.fromkeys(domains.tolist())
    }


def add_figures(one: Figures, other: Mapping[str, Any]) -> Figures:
    """Return the figures of all runs of two sets; `one` may be changed.

    Args:
        one: The figures of the first.
        other: Those of the second, whose runs are the newer ones.
    """
    for name, value in other.items():
        known = one.get(name)
        if isinstance(value, Mapping):
            one[name] = add_figures({} if known is None else known, value)
        elif known is None or isinstance(value, str):
            one[name] = value
        else:
            one[name] = known + value
    return one


def _text_array(texts: Sequence[str | None]) -> NDArray[Any]:
    """Return texts as an array in which equal texts are one object, which is faster to read."""
    known: dict[str | None, str | None] = {}
    return np.array(list(map(known.setdefault, texts, texts)), object)


def _rows(columns: Columns, chosen: NDArray[np.bool_]) -> Columns:
    return {name: array[chosen] for name, array in columns.items()}


# ------------------------------------------------------------------ of the runs of one domain


def figures_of(runs: Columns) -> Figures:
    """Return the figures of runs of one domain; `review/stats.py` reads them.

    Args:
        runs: Their columns, the oldest run first.
    """
    kept = runs["decision"] == "kept"
    is_labelled, is_success = ~np.isnan(runs["label"]), runs["label"] == 1
    redactions, redacted_runs = _sums(runs["redactions"])
    flags = {
        "kept": kept,
        "labelled": is_labelled,
        "successes": is_success,
        "kept_labelled": kept & is_labelled,
        "kept_successes": kept & is_success,
        "twins": runs["is_twin"],
        "recovered": runs["recovered_errors"] > 0,
        "withheld": runs["is_withheld"],
        "compared": runs["is_compared"],
    }
    return {
        "runs": len(runs["domain"]),
        **{name: int(chosen.sum()) for name, chosen in flags.items()},
        "redacted_runs": redacted_runs,
        "vetoed": _counts(flag for flag in runs["veto"].tolist() if flag is not None),
        "redactions": redactions,
        "dropped": _sums(runs["dropped"])[0],
        "gate": str(runs["gate"][-1]),
        "threshold": repr(float(runs["threshold"][-1])),
        "gates": {
            gate: _gate_figures(gate, _rows(runs, runs["gate"] == gate))
            for gate in dict.fromkeys(map(str, runs["gate"].tolist()))
        },
        "usage": _usage_figures({**runs, "is_kept": kept}),
    }


def _gate_figures(gate: str, runs: Columns) -> Figures:
    """Return the figures of the runs that were gated by score, or by worth."""
    values = runs["score"]
    if gate == "worth":
        values = np.where(np.isnan(runs["worth"]), values, runs["worth"])
    values = np.nan_to_num(values.clip(0, 1))  # a row that was changed from outside has anything
    may_pass = ~(runs["is_twin"] | runs["is_withheld"] | runs["veto"].astype(bool))
    label = runs["label"]
    unmeasured = _counts(
        source
        for source in runs["novelty_source"].tolist()
        if source not in (None, NEAREST, REPEAT)
    )
    return {
        "runs": len(values),
        "values": _histogram(values),
        "may_pass": _histogram(values[may_pass]),
        "may_pass_labelled": _histogram(values[may_pass & ~np.isnan(label)]),
        "may_pass_successes": _histogram(values[may_pass & (label == 1)]),
        "thresholds": _counts(map(repr, runs["threshold"].tolist())),
        "unmeasured": unmeasured,
        "parts": _factors(runs, values) if gate == "worth" else _dimensions(runs),
        "rules": _rules(runs, may_pass & (gate == "score")),
    }


def _histogram(values: NDArray[np.float64]) -> dict[str, int]:
    """Return how many values lie from each thousandth to below the next one."""
    bins, counts = np.unique(np.searchsorted(_EDGES, values, "right") - 1, return_counts=True)
    return dict(zip(map(str, bins.tolist()), counts.tolist(), strict=True))


def _dimensions(runs: Columns) -> dict[str, Figures]:
    parts = {}
    for name in DIMENSION_NAMES:
        values, weights = runs[name], runs[f"{name}_weight"]
        known = ~np.isnan(values)
        lost = weights * (1 - values)
        if known.any():
            parts[name] = _part(name, _rows(runs, known), values[known], lost[known])
            parts[name]["weight"] = float(weights[known].sum())
    return parts


def _factors(runs: Columns, worths: NDArray[np.float64]) -> dict[str, Figures]:
    """Return the factors of worths, `confidence * (0.75 + novelty / 4)`; see `Worth`."""
    novelty = np.nan_to_num(runs["novelty"])
    factor = np.array([novelty_factor(value) for value in novelty.tolist()])
    confidence = worths / factor
    parts = {
        CONFIDENCE: _part(CONFIDENCE, runs, confidence, factor * (1 - confidence)),
        "novelty": _part("novelty", runs, novelty, confidence * (1 - factor)),
    }
    for part in parts.values():
        part["weight"] = float(part["runs"])
    return parts


def _part(
    name: str, runs: Columns, values: NDArray[np.float64], lost: NDArray[np.float64]
) -> Figures:
    """Return the figures of a part; novelty that was not measured has no value, and costs none."""
    is_measured = np.full(len(values), True)
    if name == "novelty":
        sources = runs["novelty_source"]
        is_measured = np.isin(sources.astype(str), ("None", NEAREST, REPEAT))
    # The nearest thousandth, which is what most values are.
    rounded = np.rint(np.nan_to_num(values[is_measured]).clip(0, 1) * BINS) / BINS
    return {
        "runs": len(values),
        "values": _histogram(rounded),
        "lost": float(lost[is_measured].sum()),
    }


def _rules(runs: Columns, may_pass: NDArray[np.bool_]) -> dict[str, Figures]:
    rules: dict[str, Figures] = {}
    columns = (runs["rules"], runs["score"], runs["threshold"], may_pass)
    for text, score, threshold, may in zip(*(one.tolist() for one in columns), strict=True):
        for name, change in _parse(text).items():
            rule = rules.setdefault(name, {"runs": 0, "change": 0.0, "passes_lost": 0})
            rule["runs"] += 1
            rule["change"] += change
            rule["passes_lost"] += int(may and score < threshold <= score - change)
    return rules


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names))


def _sums(texts: NDArray[Any]) -> tuple[dict[str, int], int]:
    """Return the sums of counts in JSON, and how many of them have any."""
    sums: Counter[str] = Counter()
    with_any = 0
    for text, runs in Counter(texts.tolist()).items():
        counts = _parse(text)
        with_any += runs if counts else 0
        for name, count in counts.items():
            sums[name] += count * runs
    return dict(sums), with_any


@lru_cache(maxsize=1000)  # few of the texts differ
def _parse(text: str | None) -> dict[str, Any]:
    counts: dict[str, Any] | None = json.loads(text or "{}")
    return counts or {}


# ------------------------------------------------------------------ what they took


def _usage_figures(runs: Columns) -> dict[str, Figures]:
    """Return what all runs took, the kept ones, and the successful ones."""
    groups = {
        "all": np.full(len(runs["domain"]), True),
        "kept": runs["is_kept"],
        "successful": runs["success"],
    }
    figures: dict[str, Figures] = {
        name: {
            "runs": int(chosen.sum()),
            "tokens": _known(runs["total_tokens"][chosen]),
            "duration_ms": _known(runs["duration_ms"][chosen]),
            "models": {},
        }
        for name, chosen in groups.items()
        if chosen.any()
    }
    of_run = zip(*(groups[name].tolist() for name in figures), strict=True)
    for text, is_in in zip(runs["usage"].tolist(), of_run, strict=True):
        models = _reported(text)
        if not models:
            continue
        # By all models of a run, because it has a cost if all of them have a price.
        key = json.dumps(sorted(models))
        for one, is_here in zip(figures.values(), is_in, strict=True):
            if is_here:
                add_figures(one["models"].setdefault(key, {}), {"runs": 1, "tokens": models})
    return figures


def _known(values: NDArray[np.float64]) -> Figures:
    known = values[~np.isnan(values)]
    return {"runs": len(known), "sum": float(known.sum())}


def _reported(text: str | None) -> dict[str, dict[str, int]]:
    """Return the tokens of the models of a run that reported any.

    By name and provider of the model as JSON.
    """
    usage = Usage.from_json(text)
    tokens: dict[str, Any] = {}
    for one in () if usage is None else usage.models:
        if one.reported_calls:
            counts = {name: getattr(one, name) for name in COUNTED_TOKENS}
            add_figures(tokens, {json.dumps([one.model, one.provider]): counts})
    return tokens
