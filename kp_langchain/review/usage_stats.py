"""What the runs of a domain took, on the average: all, the kept ones, the successful ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain.review.usage_facts import cost_text, seconds_text
from kp_langchain.store.run_figures import add_figures
from kp_langchain.usage import MOST_TOKENS, ModelUsage, Usage

if TYPE_CHECKING:
    from kp_langchain.prices import Prices
    from kp_langchain.store.run_figures import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageStats:
    """What some runs of a domain took.

    Attributes:
        runs: Which runs: `all`, `kept`, or `successful`: by verdict, or else as they ended.
        count: How many they are.
        tokens: Tokens of a run, on the average; None if none is known.
        duration_ms: Milliseconds of a run, on the average; None if none is known.
        cost: Dollars of a run, on the average of those of known cost; None without one.
        unpriced: How many report tokens of a model without a price.
        spent_tokens: Tokens of all runs of the domain for each of these.
        spent_ms: Milliseconds of all runs of the domain for each of these.
        spent_cost: Dollars of all runs of known cost for each of these.
    """

    runs: str
    count: int
    tokens: float | None
    duration_ms: float | None
    cost: float | None
    unpriced: int = 0
    spent_tokens: float | None = None
    spent_ms: float | None = None
    spent_cost: float | None = None

    def cells(self) -> list[str]:
        """Return tokens, time, cost and what was spent for one in words, as the cells of a row."""
        spent = "" if self.spent_tokens is None else f"{self.spent_tokens:,.0f} tokens"
        for_one = [spent, seconds_text(self.spent_ms), cost_text(self.spent_cost)]
        return [
            "-" if self.tokens is None else f"{self.tokens:,.0f}",
            seconds_text(self.duration_ms) or "-",
            cost_text(self.cost) or "-",
            "" if self.runs == "all" else ", ".join(filter(None, for_one)),
        ]


def usage_stats(
    figures: Mapping[str, Figures], prices: Prices | None = None
) -> tuple[UsageStats, ...]:
    """Return what the runs of a domain took: all, the kept ones, the successful ones.

    Args:
        figures: What each of these took together, as `run_figures` counts it.
        prices: What models cost now; None to leave that out.

    Returns:
        Nothing if neither tokens nor times are known.
    """
    every = figures["all"]
    tokens, duration_ms = every["tokens"], every["duration_ms"]
    if not tokens["runs"] and not duration_ms["runs"]:
        return ()
    groups = {name: figures[name] for name in ("all", "kept", "successful") if name in figures}
    costs = {name: _cost(one["models"], prices) for name, one in groups.items()}
    spent = costs["all"].total
    return tuple(
        UsageStats(
            runs=name,
            count=(count := one["runs"]),
            tokens=_mean(one["tokens"]),
            duration_ms=_mean(one["duration_ms"]),
            cost=costs[name].mean,
            unpriced=costs[name].unpriced,
            spent_tokens=tokens["sum"] / count if tokens["runs"] else None,
            spent_ms=duration_ms["sum"] / count if duration_ms["runs"] else None,
            spent_cost=None if spent is None else spent / count,
        )
        for name, one in groups.items()
    )


def _mean(known: Figures) -> float | None:
    return known["sum"] / known["runs"] if known["runs"] else None


class _Cost(NamedTuple):
    """What some runs cost.

    Attributes:
        total: The dollars of those of known cost; None without one.
        priced: How many they are.
        unpriced: How many report tokens of a model without a price.
    """

    total: float | None = None
    priced: int = 0
    unpriced: int = 0

    @property
    def mean(self) -> float | None:
        """The dollars of a run of known cost."""
        return None if self.total is None else self.total / self.priced


def _cost(by_models: Mapping[str, Figures], prices: Prices | None) -> _Cost:
    """Return what some runs cost.

    Args:
        by_models: Their number and their tokens, by all models that each of them called.
        prices: What models cost; None for not at all.
    """
    if prices is None or prices.is_empty:
        return _Cost()
    sums: Figures = {}
    priced = unpriced = 0
    for one in by_models.values():
        if prices.missing([_usage(*model) for model in one["tokens"].items()]):
            unpriced += one["runs"]
        else:
            priced += one["runs"]
            add_figures(sums, one["tokens"])
    usage = Usage(models=tuple(_usage(*model) for model in sums.items()))
    return _Cost(prices.cost(usage), priced, unpriced)


def _usage(key: str, counts: Mapping[str, int]) -> ModelUsage:
    model, provider = json.loads(key)
    numbers: dict[str, Any] = {name: min(one, MOST_TOKENS) for name, one in counts.items()}
    return ModelUsage(model=model, provider=provider, **numbers)
