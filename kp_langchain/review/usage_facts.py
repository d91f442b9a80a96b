"""What runs took, for people: tokens, time and cost in words, and per run over a domain."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from kp_langchain.text import count_text
from kp_langchain.usage import TOKEN_FIELDS, ModelUsage, Usage

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray

    from kp_langchain.prices import Prices

_MINUTE_MS = 60_000
_COUNTED = ("calls", "reported_calls", *TOKEN_FIELDS)


def seconds_text(milliseconds: float | None) -> str:
    """Return a duration in a fitting unit; "" if it is not known."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds >= 100 * _MINUTE_MS:
        return f"{milliseconds / _MINUTE_MS:,.0f} min"
    return f"{milliseconds / 1000:,.{0 if milliseconds >= 100_000 else 1}f} s"


def cost_text(dollars: float | None) -> str:
    """Return a cost in dollars, with two digits that say something; "" if it is not known."""
    if dollars is None:
        return ""
    if not 0 < dollars < 1:
        return f"${dollars:,.2f}"
    return f"${dollars:.{min(9, 1 - math.floor(math.log10(dollars)))}f}"


def usage_facts(
    usage: Usage | None, prices: Prices, at: datetime | None = None
) -> Iterator[tuple[str, str]]:
    """Yield what a run took, each fact with its label.

    Args:
        usage: What it took; None if that is not known.
        prices: What models cost.
        at: When the run was.
    """
    if usage is None:
        return
    yield "took", _time_text(usage)
    if usage.tokens is None:
        if usage.model_calls:
            yield "tokens", "not known: no call of a model reported them"
        return
    own = [one for one in usage.models if not one.is_inner]
    inner = [one for one in usage.models if one.is_inner]
    for one in own:
        if one.reported_calls:
            yield "tokens", _tokens_text(one)
    for one in inner:
        if one.reported_calls:
            yield "tokens", f"{_tokens_text(one)}, in LangChain's own calls"
    if usage.unreported_calls:
        yield "tokens", f"not known of {count_text(usage.unreported_calls, 'model call')}"
    cost = prices.cost(usage, at)
    if cost is not None:
        yield "cost", cost_text(cost)
    elif missing := prices.missing(usage):
        names = ", ".join(name or "a model without a name" for name in missing)
        yield "cost", f"not known: no price of {names}; see [prices] in kp.toml"


def _time_text(usage: Usage) -> str:
    parts = []
    if usage.duration_ms is not None:
        shares = {"models": usage.model_ms, "tools": usage.tool_ms}
        of_it = ", ".join(f"{name} {seconds_text(ms)}" for name, ms in shares.items() if ms)
        parts.append(seconds_text(usage.duration_ms) + (f" ({of_it})" if of_it else ""))
    calls = [count_text(usage.model_calls, "model call"), count_text(usage.tool_calls, "tool call")]
    if usage.retries:
        calls.append("1 retry" if usage.retries == 1 else f"{usage.retries:,} retries")
    return "; ".join([*parts, ", ".join(calls)])


def _tokens_text(model: ModelUsage) -> str:
    of_input = {"cached": model.cached_tokens, "written to the cache": model.cache_write_tokens}
    of_output = {"reasoning": model.reasoning_tokens}
    return (
        f"{model.input_tokens:,} in{_parts_text(of_input)}, "
        f"{model.output_tokens:,} out{_parts_text(of_output)} by {model.model or 'a model'}"
    )


def _parts_text(parts: Mapping[str, int]) -> str:
    texts = [f"{number:,} {name}" for name, number in parts.items() if number]
    return f" ({', '.join(texts)})" if texts else ""


def usage_figures(usage: Usage | None, cost: float | None) -> dict[str, tuple[float | None, str]]:
    """Return what a run took as figures by label, each as a number and as a text."""
    if usage is None:
        return {}
    tokens = usage.tokens
    total = None if tokens is None else tokens.total_tokens
    return {
        "tokens": (total, "" if total is None else f"{total:,}"),
        "took": (usage.duration_ms, seconds_text(usage.duration_ms)),
        "model calls": (usage.model_calls, f"{usage.model_calls:,}"),
        "tool calls": (usage.tool_calls, f"{usage.tool_calls:,}"),
        "retries": (usage.retries, f"{usage.retries:,}"),
        "cost": (cost, cost_text(cost)),
    }


# ------------------------------------------------------------------ over many runs


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageStats:
    """What some runs of a domain took.

    Attributes:
        runs: Which runs: `all`, `kept`, or `successful`: by verdict, or else as they ended.
        count: How many they are.
        tokens: Tokens of a run, on the average; None if none is known.
        seconds: Seconds of a run, on the average; None if none is known.
        cost: Dollars of a run, on the average; None if some run that reports tokens has no price.
        spent_tokens: Tokens of all runs of the domain for each of these.
        spent_cost: Dollars of all runs of the domain for each of these.
    """

    runs: str
    count: int
    tokens: float | None
    seconds: float | None
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
                seconds=_mean(duration_ms[chosen] / 1000),
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
