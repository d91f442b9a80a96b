"""What the runs of a domain took, on the average: all, the kept ones, the successful ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.usage import TOKEN_FIELDS, ModelUsage, Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kp_langchain.prices import Prices

_COUNTED = ("calls", "reported_calls", *TOKEN_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageStats:
    """What some runs of a domain took.

    Attributes:
        runs: Which runs: `all`, `kept`, or `successful`: by verdict, or else as they ended.
        count: How many they are.
        tokens: Tokens of a run, on the average; None if none is known.
        duration_ms: Milliseconds of a run, on the average; None if none is known.
        cost: Dollars of a run, on the average; None if some run that reports tokens has no price.
        spent_tokens: Tokens of all runs of the domain for each of these.
        spent_cost: Dollars of all runs of the domain for each of these.
    """

    runs: str
    count: int
    tokens: float | None
    duration_ms: float | None
    cost: float | None
    spent_tokens: float | None = None
    spent_cost: float | None = None


def usage_stats(
    figures: Mapping[str, NDArray[Any]], prices: Prices | None = None
) -> tuple[UsageStats, ...]:
    """Return what the runs of a domain took: all, the kept ones, the successful ones.

    Args:
        figures: Columns of the runs: `total_tokens` and `duration_ms`, NaN where they are not
            known; `usage` as JSON text; `is_kept` and `success`.
        prices: What models cost; None to leave that out.

    Returns:
        Nothing if neither tokens nor times are known.
    """
    tokens, duration_ms = figures["total_tokens"], figures["duration_ms"]
    if np.isnan(tokens).all() and np.isnan(duration_ms).all():
        return ()
    every = np.full(len(tokens), True)
    groups = {"all": every, "kept": figures["is_kept"], "successful": figures["success"]}
    all_cost = None if prices is None else _cost(figures["usage"].tolist(), prices)
    stats = []
    for name, chosen in groups.items():
        count = int(chosen.sum())
        if not count:
            continue
        known = int((chosen & ~np.isnan(tokens)).sum())
        cost = all_cost
        if prices is not None and name != "all":
            cost = _cost(compress(figures["usage"].tolist(), chosen), prices)
        stats.append(
            UsageStats(
                runs=name,
                count=count,
                tokens=_mean(tokens[chosen]),
                duration_ms=_mean(duration_ms[chosen]),
                cost=None if cost is None else cost / known,
                spent_tokens=None if np.isnan(tokens).all() else float(np.nansum(tokens)) / count,
                spent_cost=None if all_cost is None else all_cost / count,
            )
        )
    return tuple(stats)


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _cost(texts: Iterable[str | None], prices: Prices) -> float | None:
    """Return what runs cost together.

    Args:
        texts: Their usages as JSON; None, and what cannot be read, counts as none.
        prices: What models cost.
    """
    sums: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for text in texts:
        try:
            models = json.loads(text or "{}").get("models", ())
            for one in models:
                sums[one["model"], one["is_inner"]].update(
                    {name: int(one[name]) for name in _COUNTED}
                )
        except (AttributeError, TypeError, LookupError, ValueError):
            continue
    models = (
        ModelUsage(model=model, is_inner=is_inner, **counts)
        for (model, is_inner), counts in sums.items()
    )
    return prices.cost(Usage(models=tuple(models)))
