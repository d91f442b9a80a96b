"""`ConfidenceModel`: the probability that a run succeeded, from its features.

It is fitted to `LabelledRun`s, which are scored runs with a verdict on their success.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from kp_langchain.calibration.agreement import AGREEMENT
from kp_langchain.calibration.features import (
    CALLED,
    FEATURES_VERSION,
    PROVES_FAILURE,
    VERSION,
    direction_text,
)
from kp_langchain.errors import OutdatedModelError
from kp_langchain.policy import ScoringWeights
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    DIMENSION_NAMES,
    NEUTRAL_NOVELTY,
    TraceShape,
    combine,
    estimated_success,
    outcome_confidence,
)
from kp_langchain.scoring.evidence import Worth

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

LARGEST_DEVIATION = 3.0
"""Values are cut off at this many standard deviations, so that an outlier decides nothing."""

LARGEST_LOG_ODDS = 8.0
"""No trace is evidence enough for a probability closer to 0 or 1 than 1 in about 3,000."""
_LEANINGS = 4

PRIOR_WEIGHT, PRIOR_WEIGHT_SD = 0.25, 0.4
"""What agreement is taken to weigh before any verdict, as a normal distribution.

Log-odds for each standard deviation of the agreement. Measured on recorded runs of other tasks and
agents (tests/benchmarks/README.md).
"""

PROVISIONAL_RUNS = 50
"""A model that was fitted to fewer verdicts is provisional."""


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """The figures of a run with a verdict; its text need not be stored any more.

    Attributes:
        task: The task; runs with an equal task are repeats of it.
        success: The verdict.
        features: The result of `features_of` for the run, and its agreement, if it was compared
            with other runs of its task.
        looked_successful: Whether the run looked successful before any report or verdict.
        values: The values of the score's dimensions when the run was scored, by name, 0 to 1.
        judged_at: When the verdict was given.
        is_vetoed: Whether a flag speaks against it; then it passes no gate by worth or by a rate.
    """

    task: str
    success: bool
    features: Mapping[str, float]
    looked_successful: bool
    values: Mapping[str, float]
    judged_at: datetime
    is_vetoed: bool = False

    @property
    def proves_failure(self) -> bool:
        """Whether the run itself proves that it failed; False for one stored without that."""
        return bool(self.features.get(PROVES_FAILURE, 0.0))

    @property
    def is_current(self) -> bool:
        """Whether its features are of the version that this package computes."""
        return self.features.get(VERSION, FEATURES_VERSION) == FEATURES_VERSION


@dataclass(frozen=True, slots=True)
class Term:
    """The contribution of one feature to a model's log-odds.

    It is `weight * clip((log(1 + feature) - mean) / scale, -3, 3)`, and 0 for a missing feature.

    Attributes:
        feature: The feature's name.
        mean: Mean of log(1 + feature) over the runs that the model was fitted to.
        scale: Standard deviation of the same, above 0.
        weight: Log-odds for each standard deviation; a positive one speaks for success.
    """

    feature: str
    mean: _Number
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    weight: _Number

    def position(self, features: Mapping[str, float]) -> float:
        """Return the distance of a run from the mean in standard deviations, from -3 to 3."""
        value = log_value(features, self.feature)
        if value is None:
            return 0.0
        deviation = (value - self.mean) / self.scale
        return min(LARGEST_DEVIATION, max(-LARGEST_DEVIATION, deviation))


def log_value(features: Mapping[str, float], name: str) -> float | None:
    """Return log(1 + feature), or None if the run lacks the feature."""
    # A tool that the features do not name was not called.
    value = features.get(name, 0.0 if name.startswith(CALLED) else math.nan)
    return math.log1p(max(0.0, value)) if math.isfinite(value) else None


def _probability(terms: Iterable[Term], intercept: float, features: Mapping[str, float]) -> float:
    log_odds = intercept + math.fsum(term.weight * term.position(features) for term in terms)
    log_odds = min(LARGEST_LOG_ODDS, max(-LARGEST_LOG_ODDS, log_odds))
    return 1.0 / (1.0 + math.exp(-log_odds))


def confidence_by_agreement(evidence: float | None, scale: tuple[float, float]) -> float:
    """Return the confidence in a run of a domain without verdicts, above 0 and below 1.

    That ranks runs; it is no probability, since nothing says how many runs are right. It is 0.5 for
    a run that agrees as far as the runs of its domain do on the average.

    Args:
        evidence: How far agreement speaks for it, 0 to 1; None if it was compared with no run.
        scale: The result of `agreement_scale` for the last runs of its domain.
    """
    if evidence is None:
        return 0.5
    term = Term(AGREEMENT, *scale, PRIOR_WEIGHT)
    return _probability([term], 0.0, {AGREEMENT: evidence})


@dataclass(frozen=True, slots=True)
class ConfidenceModel:
    """A logistic model of one domain, with its figures on held-out runs.

    For the figures, each run was predicted by a model that was fitted without its task.

    Attributes:
        domain: The domain whose verdicts it was fitted to; it applies to no other.
        features_version: The `FEATURES_VERSION` of the features it was fitted to.
        created_at: When it was fitted, in UTC.
        runs: How many runs with a verdict it was fitted to.
        tasks: How many different tasks they had.
        base_rate: The share of them that succeeded, 0 to 1.
        auc: Area under the ROC curve.
        auc_low: Lower end of its 95 % confidence interval.
        auc_high: Upper end.
        brier: Brier score of the model's probabilities; lower is better.
        default_brier: Brier score of the confidence that runs get without a model.
        intercept: Log-odds of a run that is average in every feature.
        terms: The features with their weights.
        scores: The scores of the newest of those runs with their held-out confidences, 0 to 1: what
            a gate with a pass rate begins with.
        worths: The worths of the same, 0 to 1.
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
    scores: tuple[_Unit, ...] = ()
    worths: tuple[_Unit, ...] = ()

    @property
    def source(self) -> str:
        """How a breakdown names the source of a confidence from this model."""
        text = f"calibrated on {self.runs} runs, AUC {self.auc:.2f}"
        if self.runs >= PROVISIONAL_RUNS:
            return text
        return f"provisional: {text} ({self.auc_low:.2f} to {self.auc_high:.2f})"

    @property
    def leans_on(self) -> tuple[str, ...]:
        """What speaks most for success, in words, the strongest first; at most four."""
        # Weights that differ by a rounding of the processor alone are in the order of their names.
        strongest = sorted(self.terms, key=lambda one: (-round(abs(one.weight), 9), one.feature))
        return tuple(
            direction_text(term.feature, is_for=term.weight > 0)
            for term in strongest[:_LEANINGS]
            if term.weight
        )

    @property
    def is_current(self) -> bool:
        """Whether it was fitted to the features that this version of the package computes."""
        return self.features_version == FEATURES_VERSION

    def confidence(self, features: Mapping[str, float]) -> float:
        """Return the probability that a run with these features succeeded, above 0 and below 1.

        Args:
            features: The result of `features_of`, and the agreement for a worth; a missing or
                non-finite one counts as average.

        Raises:
            OutdatedModelError: The model was fitted to features of another version.
        """
        self.check_current()
        return _probability(self.terms, self.intercept, features)

    def check_current(self) -> None:
        """Check that this version of the package computes the features it was fitted to.

        Raises:
            OutdatedModelError: It was fitted to features of another version.
        """
        if not self.is_current:
            raise OutdatedModelError(
                f"the confidence model of domain {self.domain!r} was fitted to features of version "
                f"{self.features_version}, and this package computes version {FEATURES_VERSION}; "
                f"fit it again with: kp-langchain calibrate --domain {self.domain}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain dicts, lists, strings and finite numbers, ready for JSON."""
        plain: dict[str, Any] = _READER.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConfidenceModel:
        """Return the model that `to_dict` wrote; unknown keys are ignored.

        Raises:
            pydantic.ValidationError: A key is missing or its value is wrong; the message names it.
        """
        return _READER.validate_python(dict(data))


# Built at import: built on first use in a forked child, it may deadlock on a lock of Python's.
_READER = TypeAdapter(ConfidenceModel)


# ------------------------------------------------------------------ scores without a verdict


def default_score(run: LabelledRun, weights: ScoringWeights) -> float:
    """Return the score (0 to 1) that the run would have without a verdict and without a model.

    Like `estimated_score`, it follows the formulas and rules of `kp_langchain.scoring`. All
    dimensions but outcome confidence keep the values that they had when the run was scored.

    Args:
        run: The run; its features have the counts that the rules need.
        weights: The weights to use.
    """
    success = run.looked_successful
    confidence = outcome_confidence(DEFAULT_CONFIDENCE[success], success=success)
    return _score(run, weights, confidence, success=success)


def estimated_score(run: LabelledRun, weights: ScoringWeights, confidence: float) -> float:
    """Return the score (0 to 1) that the run would have without a verdict, but with a model.

    Args:
        run: The run.
        weights: The weights to use.
        confidence: The confidence of the model, 0 to 1.
    """
    success = estimated_success(
        confidence, looked_successful=run.looked_successful, proves_failure=run.proves_failure
    )
    return _score(run, weights, calibrated_confidence(run, confidence), success=success)


def estimated_worth(run: LabelledRun, confidence: float) -> float:
    """Return the worth (0 to 1) that the run would have without a verdict, but with a model.

    Args:
        run: The run; its novelty is that of the time when it was scored.
        confidence: The confidence of the model, 0 to 1.
    """
    novelty = run.values.get("novelty", NEUTRAL_NOVELTY)
    return Worth.of(calibrated_confidence(run, confidence), novelty).value


def calibrated_confidence(run: LabelledRun, confidence: float) -> float:
    """Return a model's confidence (0 to 1) in a run, lowered if the run proves its failure."""
    return outcome_confidence(confidence, success=not run.proves_failure)


def _score(run: LabelledRun, weights: ScoringWeights, outcome: float, *, success: bool) -> float:
    values = {**run.values, "outcome_confidence": outcome}
    contributions = [values.get(name, 0.0) * getattr(weights, name) for name in DIMENSION_NAMES]
    return combine(contributions, TraceShape.from_counts(run.features), success=success).total
