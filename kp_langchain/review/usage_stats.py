"""What the runs of a domain took, on the average: all, the kept ones, the successful ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.review.usage_facts import cost_text, seconds_text
from kp_langchain.usage import MOST_TOKENS, TOKEN_FIELDS, ModelUsage, Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kp_langchain.prices import Prices

_Model = tuple[str, str]  # its name and its provider
_COUNTED = ("reported_calls", *TOKEN_FIELDS)
_counts = attrgetter(*_COUNTED)


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
    figures: Mapping[str, NDArray[Any]], prices: Prices | None = None
) -> tuple[UsageStats, ...]:
    """Return what the runs of a domain took: all, the kept ones, the successful ones.

    Args:
        figures: Columns of the runs: `total_tokens` and `duration_ms`, NaN where they are not
            known; `usage` as JSON text; `is_kept` and `success`.
        prices: What models cost now; None to leave that out.

    Returns:
        Nothing if neither tokens nor times are known.
    """
    tokens, duration_ms = figures["total_tokens"], figures["duration_ms"]
    if np.isnan(tokens).all() and np.isnan(duration_ms).all():
        return ()
    every = np.full(len(tokens), True)
    groups = {"all": every, "kept": figures["is_kept"], "successful": figures["success"]}
    groups = {name: chosen for name, chosen in groups.items() if chosen.any()}
    costs = _Costs.of(figures["usage"].tolist(), list(groups.values()), prices)
    return tuple(
        UsageStats(
            runs=name,
            count=(count := int(chosen.sum())),
            tokens=_mean(tokens[chosen]),
            duration_ms=_mean(duration_ms[chosen]),
            cost=cost.mean,
            unpriced=cost.unpriced,
            spent_tokens=_share(tokens, count),
            spent_ms=_share(duration_ms, count),
            spent_cost=None if costs[0].total is None else costs[0].total / count,
        )
        for (name, chosen), cost in zip(groups.items(), costs, strict=True)
    )


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _share(values: NDArray[Any], count: int) -> float | None:
    return None if np.isnan(values).all() else float(np.nansum(values)) / count


@dataclass(slots=True)
class _Costs:
    """What some runs cost.

    Attributes:
        total: The dollars of those of known cost; None without one.
        priced: How many they are.
        unpriced: How many report tokens of a model without a price.
        models: The tokens of those of known cost, by model.
    """

    total: float | None = None
    priced: int = 0
    unpriced: int = 0
    models: dict[_Model, list[int]] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The dollars of a run of known cost."""
        return None if self.total is None else self.total / self.priced

    @classmethod
    def of(
        cls,
        usages: Iterable[str | None],
        groups: Sequence[NDArray[np.bool_]],
        prices: Prices | None,
    ) -> list[_Costs]:
        """Return what each group of runs cost.

        Args:
            usages: The usages of all runs as JSON.
            groups: Whether each run is in a group.
            prices: What models cost; None for not at all.
        """
        costs = [cls() for _ in groups]
        if prices is None or prices.is_empty:
            return costs
        has_price: dict[_Model, bool] = {}
        for text, *is_in in zip(usages, *(group.tolist() for group in groups), strict=True):
            models = _reported(text)
            for key, counts in models:
                if key not in has_price:
                    has_price[key] = not prices.missing([_usage(key, counts)])
            if not models:
                continue
            is_priced = all(has_price[key] for key, _ in models)
            for cost in (cost for cost, is_here in zip(costs, is_in, strict=True) if is_here):
                cost.priced += is_priced
                cost.unpriced += not is_priced
                for key, counts in models if is_priced else ():
                    sums = cost.models.get(key)
                    cost.models[key] = list(counts if sums is None else map(add, sums, counts))
        for cost in costs:
            usage = Usage(models=tuple(_usage(*one) for one in cost.models.items()))
            cost.total = prices.cost(usage)
        return costs


def _reported(text: str | None) -> list[tuple[_Model, tuple[int, ...]]]:
    """Return the models of a run that reported tokens, with how many of each kind."""
    usage = Usage.from_json(text)
    models = () if usage is None else usage.models
    return [((one.model, one.provider), _counts(one)) for one in models if one.reported_calls]


def _usage(key: _Model, counts: Sequence[int]) -> ModelUsage:
    pairs = zip(_COUNTED, counts, strict=True)
    numbers: dict[str, Any] = {name: min(number, MOST_TOKENS) for name, number in pairs}
    return ModelUsage(model=key[0], provider=key[1], **numbers)
