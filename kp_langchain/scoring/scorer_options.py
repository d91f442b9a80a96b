"""The options of `Scorer`: checked, with errors that name them, and resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from kp_langchain.errors import ConfigError, WeightsError
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.scoring.novelty_memory import NoveltyMemory
from kp_langchain.weights import ScoringWeights

if TYPE_CHECKING:
    from kp_langchain.scoring.cache import VectorCache

WeightsLike: TypeAlias = ScoringWeights | Mapping[str, float]

_BUDGET_MS_MAX = 24 * 3600 * 1000.0


def resolve_memory(
    cache: VectorCache | NoveltyMemory | None, max_remembered: int | None, ttl_ms: float | None
) -> NoveltyMemory:
    """Return the memory that the options of a scorer stand for.

    Args:
        cache: A `VectorCache`, a `NoveltyMemory`, or None for a memory of the scorer's own.
        max_remembered: How many traces that memory remembers; None for the default.
        ttl_ms: Milliseconds after which it forgets a trace; None for never.

    Raises:
        ConfigError: An option is unusable, or a cache comes with bounds.
    """
    check_bounds(max_remembered, ttl_ms)
    if cache is None:
        return InProcessMemory(max_remembered, ttl_ms)
    if (max_remembered, ttl_ms) != (None, None):
        raise ConfigError(
            "cache comes with max_remembered or ttl_ms; give the cache these bounds itself: "
            "VectorCache(max_elements, dimensions, ttl_ms)"
        )
    if isinstance(cache, NoveltyMemory):
        return cache
    from kp_langchain.scoring.cache import VectorCache  # loads numpy

    if not isinstance(cache, VectorCache):
        raise ConfigError(
            f"cache is a {type(cache).__name__}; expected a VectorCache, a NoveltyMemory or None"
        )
    return InProcessMemory(cache=cache)


def check_bounds(max_remembered: int | None, ttl_ms: float | None) -> None:
    """Check the bounds of a memory.

    Args:
        max_remembered: How many traces it remembers; None for the default.
        ttl_ms: Milliseconds after which it forgets a trace; None for never.

    Raises:
        ConfigError: One of them is unusable.
    """
    if max_remembered is not None:
        _check_above_0("max_remembered", max_remembered, alternative=", or None")
    if ttl_ms is not None and not (_is_number(ttl_ms) and 0 <= ttl_ms < math.inf):
        raise ConfigError(f"ttl_ms is {ttl_ms!r}; it must be milliseconds from 0, or None")


def check_profiles(profiles: Mapping[str, WeightsLike]) -> dict[str, ScoringWeights]:
    """Return the weights by domain.

    Raises:
        WeightsError: `profiles` is not a mapping, or a profile is unusable; the message names it.
    """
    if not isinstance(profiles, Mapping):
        raise WeightsError(f"profiles is a {type(profiles).__name__}; give a mapping from domain")
    weights_by_domain = {}
    for domain, weights in profiles.items():
        try:
            weights_by_domain[domain] = ScoringWeights.of(weights)
        except WeightsError as error:
            raise WeightsError(f"profile {domain!r}: {error}") from error
    return weights_by_domain


def check_step_cap(step_cap: int | None) -> None:
    """Check the number of steps that complexity counts; None for all.

    Raises:
        ConfigError: It is not a whole number above 0.
    """
    if step_cap is not None:
        _check_above_0("step_cap", step_cap, alternative=", or None")


def check_batch_size(batch_size: int) -> None:
    """Check the number of traces in a batch.

    Raises:
        ConfigError: It is not a whole number above 0.
    """
    _check_above_0("batch_size", batch_size)


def check_budget(budget_ms: float | None) -> None:
    """Check a latency budget in milliseconds; None for no limit.

    Raises:
        ConfigError: It is not a number above 0, at most a day.
    """
    if budget_ms is None:
        return
    if not (_is_number(budget_ms) and 0 < budget_ms <= _BUDGET_MS_MAX):
        raise ConfigError(
            f"latency_budget_ms is {budget_ms!r}; it must be a number of milliseconds above 0, "
            "at most a day, or None"
        )


def _check_above_0(name: str, value: object, *, alternative: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0{alternative}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
