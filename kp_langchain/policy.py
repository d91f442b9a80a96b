"""`DomainPolicy`: what holds for the runs of one domain, with the weights of their score.

This is outside `kp_langchain.scoring`, because settings hold weights and scoring reads settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Real
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kp_langchain.errors import WeightsError
from kp_langchain.schema import PrivacyLevel, Visibility

# ------------------------------------------------------------------ weights

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


# ------------------------------------------------------------------ the policy of a domain


def refuse_bool(value: object) -> object:
    """Return a value that is no bool; pydantic would read `threshold = true` as 1.0.

    Raises:
        ValueError: It is one.
    """
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004 - as pydantic asks
    return value


Number = Annotated[float, BeforeValidator(refuse_bool), Field(allow_inf_nan=False)]
"""A finite number."""

Gate = Literal["score", "worth"]
"""What a run is held against a threshold by."""


_THRESHOLDS = ("threshold", "worth_threshold")


class DomainPolicy(BaseModel):
    """The policy for the runs of one domain. A field that is omitted or None is inherited.

    Attributes:
        threshold: Score (0 to 1) that a run must reach to be kept.
        gate: By what runs are gated: by `score`, or by `worth`, the confidence that a run is right
            times (0.75 + novelty / 4). By the score in any case where the domain has neither a
            confidence model nor runs of equal tasks.
        worth_threshold: With `worth`, the worth (0 to 1) that a run must reach.
        pass_rate: Share of the runs that no flag vetoes, above 0, at most 1, that is to pass: in
            place of a fixed threshold, the gate follows the scores or worths of the domain's last
            300 runs. It comes before both thresholds, unless it is inherited and they are not.
            Where the domain has a model and no threshold is set, 0.1.
        twin_similarity: The similarity (0 to 1) from which a run repeats a kept one. It is then not
            kept, unless it is surer by 0.15 and takes the place of that one. 1 switches this off.
        weights: Scoring weights that replace the domain's built-in profile.
        visibility: Who may see a contributed trace: `private`, `org` or `network`. A registry need
            not enforce it: the public one shows `org` to everybody.
        privacy_level: What redaction removes: `aggregated` and `federated` remove secrets and
            identifiers, `private` only secrets.
        keep: Which runs' traces the store keeps: of those that `passed`, or of `all`.
        keep_days: With `passed`, days for which the store keeps the traces of the other runs, so
            that a verdict can still contribute them; 0 for not at all.

    Raises:
        pydantic.ValidationError: A field is unknown, or its value is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: Number | None = Field(default=None, ge=0, le=1)
    gate: Gate = "score"
    worth_threshold: Number | None = Field(default=None, ge=0, le=1)
    pass_rate: Number | None = Field(default=None, gt=0, le=1)
    twin_similarity: Number = Field(default=0.9, ge=0, le=1)
    weights: ScoringWeights | None = None
    visibility: Visibility = "private"
    privacy_level: PrivacyLevel = "aggregated"
    keep: Literal["passed", "all"] = "passed"
    keep_days: Number = Field(default=7.0, ge=0, le=36_500)

    def given(self) -> dict[str, Any]:
        """Return the fields that have a value of their own, by name."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def stays_local(self) -> bool:
        """Whether runs stay on this machine because only their secrets are redacted."""
        return self.privacy_level == "private"

    def merged_over(self, base: DomainPolicy) -> DomainPolicy:
        """Return `base` with the fields of this policy replacing its own.

        A pass rate comes before thresholds, so that of `base` does not outlast a threshold that
        this policy gives.
        """
        given = self.given()
        if base.pass_rate is not None and not given.keys().isdisjoint(_THRESHOLDS):
            given.setdefault("pass_rate", None)
        return base.model_copy(update=given)
