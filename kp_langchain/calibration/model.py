"""`ConfidenceModel`: the probability that a run succeeded, from its features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from kp_langchain.calibration.features import CALLED, FEATURES_VERSION
from kp_langchain.errors import ConfigError

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

FARTHEST = 3.0
"""Beyond so many standard deviations a value says no more: a freak must not look certain."""

# Nothing that shows in a trace makes an outcome surer than 1 in some 3,000.
_SUREST = 8.0


class OutdatedModelError(ConfigError):
    """A model was fitted on features that this version of the package no longer computes."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one feature adds to a model's log-odds.

    `weight * clip((log(1 + feature) - mean) / scale, -3, 3)`, and nothing where it is missing.

    Args:
        feature: The feature's name.
        mean: Mean of log(1 + feature) over the runs fitted on.
        scale: Standard deviation of the same, above 0.
        weight: Log-odds for each standard deviation; above 0 speaks for success.
    """

    feature: str
    mean: _Number
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    weight: _Number

    def position(self, features: Mapping[str, float]) -> float:
        """Return how far a run is from the mean, in standard deviations, at most 3."""
        value = measured(features, self.feature)
        if value is None:
            return 0.0
        return min(FARTHEST, max(-FARTHEST, (value - self.mean) / self.scale))


def measured(features: Mapping[str, float], name: str) -> float | None:
    """Return log(1 + feature), or None where a run's features do not say it."""
    # A tool of which nothing is said was not called.
    value = features.get(name, 0.0 if name.startswith(CALLED) else math.nan)
    return math.log1p(max(0.0, value)) if math.isfinite(value) else None


def probability(intercept: float, terms: Sequence[Term], features: Mapping[str, float]) -> float:
    """Return the probability of success, strictly between 0 and 1: a logistic model's.

    Args:
        intercept: Log-odds of a run that is average in every feature.
        terms: What the features add to them.
        features: A run's features; what is missing or not finite adds nothing.
    """
    log_odds = intercept + math.fsum(term.weight * term.position(features) for term in terms)
    return 1.0 / (1.0 + math.exp(-min(_SUREST, max(-_SUREST, log_odds))))


@dataclass(frozen=True, slots=True)
class ConfidenceModel:
    """A logistic model of one domain, and how far it can be trusted.

    The figures are of held-out runs: each was judged by a model that never saw its task.

    Args:
        domain: The domain whose verdicts it was fitted on; it applies to no other.
        features_version: The `FEATURES_VERSION` of the features it was fitted on.
        created_at: When it was fitted.
        runs: How many runs with a verdict it was fitted on.
        tasks: How many different tasks those had.
        base_rate: The share of them that succeeded, 0 to 1.
        auc: Area under the ROC curve.
        auc_low: Lower end of its 95 % confidence interval.
        auc_high: Upper end.
        brier: Brier score of the model's probabilities; lower is better.
        default_brier: Brier score of the confidence that runs get without a model.
        intercept: Log-odds of a run that is average in every feature.
        terms: The features with their weights.
    """

    domain: str
    features_version: int
    created_at: datetime
    runs: int
    tasks: int
    base_rate: _Unit
    auc: _Unit
    auc_low: _Unit
    auc_high: _Unit
    brier: _Unit
    default_brier: _Unit
    intercept: _Number
    terms: tuple[Term, ...]

    @property
    def source(self) -> str:
        """What a breakdown says of a confidence from this model."""
        return f"calibrated on {self.runs} runs, AUC {self.auc:.2f}"

    @property
    def is_current(self) -> bool:
        """Whether it was fitted on the features that this version of the package computes."""
        return self.features_version == FEATURES_VERSION

    def confidence(self, features: Mapping[str, float]) -> float:
        """Return the probability (0 to 1) that a run with these features succeeded.

        Args:
            features: What `features_of` gave; what is missing or not finite counts as average.

        Raises:
            OutdatedModelError: The model was fitted on features of another version.
        """
        if not self.is_current:
            raise OutdatedModelError(
                f"the confidence model of domain {self.domain!r} was fitted on features of version "
                f"{self.features_version}, and this package computes version {FEATURES_VERSION}; "
                f"fit it again with: kp-langchain calibrate --domain {self.domain}"
            )
        return probability(self.intercept, self.terms, features)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists, strings and finite numbers, ready for JSON."""
        plain: dict[str, Any] = _READER.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConfidenceModel:
        """Return the model that `to_dict` wrote; keys it does not know are ignored.

        Raises:
            pydantic.ValidationError: A key is missing or its value is wrong; the message names it.
        """
        return _READER.validate_python(dict(data))


# Not made when first needed: in a forked child that may wait for ever for a lock of Python's.
_READER = TypeAdapter(ConfidenceModel)
