"""The weights of a score's dimensions, and the built-in profiles by domain.

This is outside `kp_langchain.scoring`, because settings hold weights and scoring reads settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import ConfigDict

from kp_langchain.errors import WeightsError

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class ScoringWeights:
    """How much each dimension counts.

    Also usable as the type of a pydantic field, which then accepts an instance or a mapping of
    exactly these names. A dimension that a later version adds has the default weight 0, so that
    weights written before it stay valid.

    Attributes:
        complexity: Weight of complexity, 0 to 1.
        novelty: Weight of novelty, 0 to 1.
        tool_diversity: Weight of tool diversity, 0 to 1.
        outcome_confidence: Weight of outcome confidence, 0 to 1.

    Raises:
        WeightsError: A weight is not a finite number within 0..1, or the weights do not sum to 1
            (to 1e-9).
    """

    # An unknown key in a configuration file is a mistake worth an error.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    complexity: float
    novelty: float
    tool_diversity: float
    outcome_confidence: float

    def __post_init__(self) -> None:
        for name in WEIGHT_NAMES:
            value: Any = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not (is_number and 0 <= value <= 1):
                raise WeightsError(f"weight {name} is {value!r}; it must be a number within 0..1")
            object.__setattr__(self, name, float(value))
        values = [getattr(self, name) for name in WEIGHT_NAMES]
        total = math.fsum(values)
        if abs(total - 1.0) > _TOLERANCE:
            listing = ", ".join(f"{n}={v!r}" for n, v in zip(WEIGHT_NAMES, values, strict=True))
            raise WeightsError(f"weights {listing} sum to {total!r}; they must sum to 1")

    @classmethod
    def of(cls, value: ScoringWeights | Mapping[str, float]) -> ScoringWeights:
        """Return `value` itself, or the weights in a mapping from dimension name to weight.

        Raises:
            WeightsError: `value` is neither, lacks a name, has an unknown one, or the weights are
                out of range or do not sum to 1.
        """
        if isinstance(value, ScoringWeights):
            return value
        if not isinstance(value, Mapping):
            raise WeightsError(
                f"weights must be ScoringWeights or a mapping of {', '.join(WEIGHT_NAMES)}, "
                f"not {type(value).__name__}"
            )
        weights = dict(value)
        if not _REQUIRED_NAMES <= set(weights) <= set(WEIGHT_NAMES):
            raise WeightsError(
                f"weights name {', '.join(map(str, weights)) or 'nothing'}; "
                f"exactly {', '.join(WEIGHT_NAMES)} are needed"
            )
        return cls(**weights)


WEIGHT_NAMES = tuple(field.name for field in fields(ScoringWeights))
"""The names of the weights: those of the dimensions, in the order of the weighted sum."""

_REQUIRED_NAMES = {field.name for field in fields(ScoringWeights) if field.default is MISSING}

PROFILES: Mapping[str, ScoringWeights] = MappingProxyType(
    {
        "default": ScoringWeights(0.25, 0.35, 0.15, 0.25),
        # Finance and medicine need conclusions that can be verified.
        "finance": ScoringWeights(0.20, 0.25, 0.10, 0.45),
        # Code needs several tools.
        "code": ScoringWeights(0.20, 0.30, 0.30, 0.20),
        "medical": ScoringWeights(0.15, 0.20, 0.10, 0.55),
        # Customer service balances new answers and effective ones.
        "customer_service": ScoringWeights(0.20, 0.30, 0.20, 0.30),
    }
)
"""The built-in profiles by domain, read-only. A domain without one is scored with `default`."""
