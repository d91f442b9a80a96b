"""What a run took, in words and figures: tokens, time, calls and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kp_langchain.text import count_text, one_line

if TYPE_CHECKING:
    from datetime import datetime

    from kp_langchain.prices import Prices
    from kp_langchain.usage import ModelUsage, Usage

_MINUTE_MS = 60_000
_LEAST_DOLLARS = 0.000001
_MODEL_CHARS = 100


def seconds_text(milliseconds: float | None) -> str:
    """Return a duration in a fitting unit; "" if it is not known."""
    if milliseconds is None:
        return ""
    if round(milliseconds) < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds >= 100 * _MINUTE_MS:
        return f"{milliseconds / _MINUTE_MS:,.0f} min"
    return f"{milliseconds / 1000:,.{0 if milliseconds >= 100_000 else 1}f} s"


def tokens_text(number: int) -> str:
    """Return a number of tokens in at most six characters."""
    if number < 10_000:
        return f"{number:,}"
    unit, size = ("k", 1000) if number < 1_000_000 else ("M", 1_000_000)
    return f"{number / size:,.{1 if number < 100 * size else 0}f}{unit}"


def cost_text(dollars: float | None) -> str:
    """Return a cost in dollars, with two digits that say something; "" if it is not known."""
    if dollars is None:
        return ""
    if 0 < dollars < _LEAST_DOLLARS:
        return f"<${_LEAST_DOLLARS:.6f}"
    if not 0 < dollars < 1:
        return f"${dollars:,.2f}"
    return f"${dollars:.{1 - math.floor(math.log10(dollars))}f}"


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
    elif missing := prices.missing(usage.models):
        names = ", ".join(_model_text(name) for name in missing)
        yield "cost", f"not known: no price of {names}; see [prices] in kp.toml"


def _time_text(usage: Usage) -> str:
    parts = []
    if usage.duration_ms is not None:
        shares = {"models": usage.model_ms, "tools": usage.tool_ms}
        of_it = ", ".join(
            f"{name} {seconds_text(ms)}" for name, ms in shares.items() if (ms or 0) >= 1
        )
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
        f"{model.output_tokens:,} out{_parts_text(of_output)} by {_model_text(model.model)}"
    )


def _model_text(name: str) -> str:
    return one_line(name, _MODEL_CHARS) or "a model without a name"


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
