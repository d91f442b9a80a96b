"""What a usage costs, by prices that the user gives or that the package genai-prices has."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from kp_langchain.policy import Number

if TYPE_CHECKING:
    from kp_langchain.usage import ModelUsage, Usage

_PER = 1_000_000
_DATE = re.compile(r"(?:-\d{4}-\d\d-\d\d|[-@]\d{8}|-\d{4}|-latest)\Z")
# Some models cost more per token if one call reads more than this.
_LONG_CALL_TOKENS = 100_000


class ModelPrice(BaseModel):
    """What a model costs, in US dollars per million tokens.

    Attributes:
        input: Of the input that was not in the provider's cache.
        output: Of the output, reasoning included.
        cached: Of the input that came from the cache; by default as `input`.
        cache_write: Of the input that was written into the cache; by default as `input`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Number = Field(ge=0)
    output: Number = Field(ge=0)
    cached: Number | None = Field(default=None, ge=0)
    cache_write: Number | None = Field(default=None, ge=0)


class Prices:
    """Prices by model.

    Args:
        by_model: The user's own, which come first. The price of `gpt-4o-mini` is also that of
            `gpt-4o-mini-2024-07-18`.
        with_package: Whether to ask genai-prices about the other models, if it is installed.
    """

    def __init__(
        self,
        by_model: Mapping[str, ModelPrice] = MappingProxyType({}),
        *,
        with_package: bool = True,
    ) -> None:
        self._by_model = by_model
        self._with_package = with_package

    @property
    def is_empty(self) -> bool:
        """Whether no model has a price."""
        return not self._by_model and not (self._with_package and _package())

    def cost(self, usage: Usage | None, at: datetime | None = None) -> float | None:
        """Return what a usage cost in US dollars.

        Calls that did not report their tokens, such as failed ones, count as free.

        Args:
            usage: The usage, also one of many runs together.
            at: When it was, for the prices of that day; by default now.

        Returns:
            None if no call reported its tokens, or one of the models has no price.
        """
        models = () if usage is None else [one for one in usage.models if one.reported_calls]
        costs = [self._cost_of(one, at) for one in models]
        known = [cost for cost in costs if cost is not None]
        return math.fsum(known) if known and len(known) == len(costs) else None

    def missing(self, models: Iterable[ModelUsage]) -> list[str]:
        """Return the names of models that reported tokens and have no price."""
        names = {one.model: one for one in models if one.reported_calls}
        return [name for name, one in names.items() if self._cost_of(one, None) is None]

    def _cost_of(self, model: ModelUsage, at: datetime | None) -> float | None:
        price = self._by_model.get(model.model) or self._by_model.get(_DATE.sub("", model.model))
        if price is None:
            return _package_cost(model, at) if self._with_package and model.model else None
        of_cache = model.cached_tokens + model.cache_write_tokens
        parts = (
            (model.input_tokens - of_cache, price.input),
            (model.cached_tokens, price.input if price.cached is None else price.cached),
            (
                model.cache_write_tokens,
                price.input if price.cache_write is None else price.cache_write,
            ),
            (model.output_tokens, price.output),
        )
        return math.fsum(tokens * per_million for tokens, per_million in parts) / _PER


@cache
def _package() -> Any:
    """Return the package genai-prices; None if it is not installed or cannot be imported."""
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def _package_cost(model: ModelUsage, at: datetime | None) -> float | None:
    """Return what genai-prices says that a model's usage cost; None if it does not know."""
    package = _package()
    if package is None:
        return None
    # As if the calls were of one length, because a price may depend on that.
    shares = max(1, min(model.reported_calls, model.input_tokens // _LONG_CALL_TOKENS + 1))
    try:
        usage = package.Usage(
            input_tokens=model.input_tokens // shares,
            output_tokens=model.output_tokens // shares,
            cache_read_tokens=model.cached_tokens // shares,
            cache_write_tokens=model.cache_write_tokens // shares,
        )
        for provider in (model.provider or None, None):
            with suppress(LookupError):  # no such provider, or no such model of it
                price = package.calc_price(
                    usage, model.model, provider_id=provider, genai_request_timestamp=at
                )
                return float(price.total_price) * shares
    except Exception:  # noqa: BLE001 - another package's: it refuses the counts
        return None
    return None
