"""`ConfidenceModel`: the probability that a run succeeded, from its features.

It is fitted to `LabelledRun`s, which are scored runs with a verdict on their success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from kp_langchain.calibration.features import (
    CALLED,
    FEATURES_VERSION,
    PROVES_FAILURE,
    VERSION,
    leaning,
    meaning_of,
)
from kp_langchain.errors import OutdatedModelError
from kp_langchain.policy import ScoringWeights
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    DIMENSION_NAMES,
    NEUTRAL_NOVELTY,
    TraceShape,
    Worth,
    combine,
    estimated_success,
    outcome_confidence,
)

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

LARGEST_DEVIATION = 3.0
"""Values are cut off at this many standard deviations, so that an outlier decides nothing."""

# No trace is evidence enough for a probability beyond 1 in about 3,000 of being wrong.
_LARGEST_LOG_ODDS = 8.0
_HASH_CHARS = 16
_LEANINGS = 4
# Chosen on recorded runs, so that labels that follow one size but for a tenth are warned of nearly
# always and true ones rarely; `python -m tests.benchmarks.quality` counts both.
_MARGIN = 0.03
_LEAST_AUC = 0.75


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """The figures of a run with a verdict; its text need not be stored any more.

    Attributes:
        task: The task; runs with an equal task are repeats of it.
        success: The verdict.
        features: The result of `features_of` for the run.
        looked_successful: Whether the run looked successful before any report or verdict.
        values: The values of the score's dimensions when the run was scored, by name, 0 to 1.
        created_at: When the run began.
        trace_id: The id of its trace; empty if it has none.
    """

    task: str
    success: bool
    features: Mapping[str, float]
    looked_successful: bool
    values: Mapping[str, float]
    created_at: datetime
    trace_id: str = ""

    @property
    def proves_failure(self) -> bool:
        """Whether the run itself proves that it failed; False for one stored without that."""
        return bool(self.features.get(PROVES_FAILURE, 0.0))

    @property
    def is_current(self) -> bool:
        """Whether its features are of the version that this package computes."""
        return self.features.get(VERSION, FEATURES_VERSION) == FEATURES_VERSION


def task_key(task: str | None, objective: str) -> str:
    """Return what is equal for the repeats of a task.

    Args:
        task: The hash of the run's `kp_task`; None if it has none.
        objective: The run's objective; differences in case and white space do not count.
    """
    return task or " ".join(objective.casefold().split())


@dataclass(frozen=True, slots=True)
class SurfaceFeature:
    """The size or count that alone separates successes from failures best.

    Attributes:
        feature: Its name.
        auc: Area under the ROC curve of it alone, chosen without the tasks that it is judged on.
        model_auc: That of the model, on the same runs.
    """

    feature: str
    auc: _Unit
    model_auc: _Unit

    @property
    def warning(self) -> str | None:
        """What to say if it alone explains what the model knows; None if it does not."""
        if self.auc < max(_LEAST_AUC, self.model_auc - _MARGIN):
            return None
        return (
            f"one figure alone, {meaning_of(self.feature)}, reaches AUC {self.auc:.2f}, the model "
            f"{self.model_auc:.2f}: it may have learned little else; check that the verdicts do "
            "not simply follow that figure"
        )


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


def probability(intercept: float, terms: Sequence[Term], features: Mapping[str, float]) -> float:
    """Return the probability of success by a logistic model, strictly between 0 and 1.

    Args:
        intercept: Log-odds of a run that is average in every feature.
        terms: The contributions of the features to the log-odds.
        features: A run's features; a missing or non-finite one contributes nothing.
    """
    log_odds = intercept + math.fsum(term.weight * term.position(features) for term in terms)
    return 1.0 / (1.0 + math.exp(-min(_LARGEST_LOG_ODDS, max(-_LARGEST_LOG_ODDS, log_odds))))


def task_hash(task: str) -> str:
    """Return the name under which a model remembers a task; it does not hold the task's text."""
    return sha256(task.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]


@dataclass(frozen=True, slots=True)
class Fold:
    """The same model fitted without some tasks, to predict the runs of these.

    Attributes:
        intercept: Log-odds of a run that is average in every feature.
        weights: The weights of the model's terms, in their order.
    """

    intercept: _Number
    weights: tuple[_Number, ...]


def with_weights(terms: Sequence[Term], weights: Sequence[float]) -> tuple[Term, ...]:
    """Return the terms with other weights, given in their order."""
    return tuple(replace(term, weight=weight) for term, weight in zip(terms, weights, strict=True))


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
        provisional: Whether the verdicts do not yet rule out beyond doubt that it is chance. Such a
            model is used like any other.
        surface: The size or count that alone separates successes from failures best; None if none
            varies, or in models of earlier versions.
        scores: The scores of the newest of those runs with their held-out confidences, 0 to 1: what
            a gate with a pass rate begins with. Empty in models of earlier versions.
        worths: The worths of the same, 0 to 1.
        held_out: By trace id, the probability of each run that it was fitted to, by the fold that
            was fitted without the run's task. Empty in models of earlier versions.
        folds: The models that these probabilities are of.
        task_folds: By `task_hash` of each task that it was fitted to, the index of the fold that
            was fitted without it.
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
    provisional: bool = False
    surface: SurfaceFeature | None = None
    scores: tuple[_Unit, ...] = ()
    worths: tuple[_Unit, ...] = ()
    held_out: Mapping[str, _Unit] = field(default_factory=dict, hash=False)
    folds: tuple[Fold, ...] = ()
    task_folds: Mapping[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse folds that are not of this model.

        Raises:
            ValueError: A fold has too many or too few weights, or a task's fold does not exist.
        """
        if any(len(fold.weights) != len(self.terms) for fold in self.folds):
            raise ValueError("folds: each needs one weight for each of the terms")
        if any(number >= len(self.folds) for number in self.task_folds.values()):
            raise ValueError(f"task_folds: there are only {len(self.folds)} folds")

    @property
    def source(self) -> str:
        """How a breakdown names the source of a confidence from this model."""
        provisional = "provisional, " if self.provisional else ""
        return f"calibrated on {self.runs} runs, {provisional}AUC {self.auc:.2f}"

    @property
    def leans_on(self) -> tuple[str, ...]:
        """What speaks most for success, in words, the strongest first; at most four."""
        strongest = sorted(self.terms, key=lambda term: -abs(term.weight))[:_LEANINGS]
        return tuple(
            leaning(term.feature, is_for=term.weight > 0) for term in strongest if term.weight
        )

    @property
    def warning(self) -> str | None:
        """What to say if one size or count alone explains what the model knows; else None."""
        return None if self.surface is None else self.surface.warning

    @property
    def is_current(self) -> bool:
        """Whether it was fitted to the features that this version of the package computes."""
        return self.features_version == FEATURES_VERSION

    def confidence(self, features: Mapping[str, float]) -> float:
        """Return the probability (0 to 1) that a run with these features succeeded.

        Args:
            features: The result of `features_of`; a missing or non-finite one counts as average.

        Raises:
            OutdatedModelError: The model was fitted to features of another version.
        """
        self.check_current()
        return probability(self.intercept, self.terms, features)

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

    def held_out_confidence(self, run: LabelledRun) -> float | None:
        """Return the probability of success without what the run's own task taught the model.

        It is the model's own prediction for a run of a task that it was not fitted to, and else the
        prediction of the fold that was fitted without that task. So figures of it are never better
        than they will be on new tasks, whichever runs they are of.

        Args:
            run: A run with a verdict; the model may have been fitted to it.

        Returns:
            The probability, 0 to 1; None if the model does not know what it was fitted to, because
            an earlier version of this package fitted it.

        Raises:
            OutdatedModelError: The model was fitted to features of another version.
        """
        own = self.confidence(run.features)
        if run.trace_id in self.held_out:
            return self.held_out[run.trace_id]
        if not self.folds:
            return None
        number = self.task_folds.get(task_hash(run.task))
        if number is None:
            return own
        fold = self.folds[number]
        return probability(fold.intercept, with_weights(self.terms, fold.weights), run.features)

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


# ------------------------------------------------------------------ scores in other circumstances


def hypothetical_score(
    run: LabelledRun,
    weights: ScoringWeights,
    confidence: float | None = None,
    success: bool | None = None,
) -> float:
    """Return the score that the run would have.

    The formulas and rules are those of `kp_langchain.scoring`; all dimensions but outcome
    confidence keep the values that they had when the run was scored.

    Args:
        run: The run; its features hold the counts that the rules need.
        weights: The weights to use.
        confidence: 0 to 1; by default 0.8 or 0.2 according to success.
        success: Whether to count it as a success; by default whether it looked like one.

    Returns:
        The score, 0 to 1.

    Raises:
        ValueError: `confidence` is not within 0..1.
    """
    if success is None:
        success = run.looked_successful
    if confidence is None:
        confidence = DEFAULT_CONFIDENCE[success]
    return _score(run, weights, outcome_confidence(confidence, success=success), success=success)


def estimated_score(run: LabelledRun, weights: ScoringWeights, confidence: float) -> float:
    """Return the score (0 to 1) that the run would have if nobody had judged it but a model.

    Args:
        run: The run.
        weights: The weights to use.
        confidence: The confidence of the model, 0 to 1.
    """
    success = estimated_success(
        confidence, looked_successful=run.looked_successful, proves_failure=run.proves_failure
    )
    return _score(run, weights, calibrated_confidence(run, confidence), success=success)


def hypothetical_worth(run: LabelledRun, confidence: float) -> float:
    """Return the worth (0 to 1) that the run would have if nobody had judged it but a model.

    Args:
        run: The run; its novelty is that of the time when it was scored.
        confidence: The confidence of the model, 0 to 1.
    """
    novelty = run.values.get("novelty", NEUTRAL_NOVELTY)
    return Worth.of(calibrated_confidence(run, confidence), novelty).value


def calibrated_confidence(run: LabelledRun, confidence: float) -> float:
    """Return what a model's confidence (0 to 1) in a run counts: less if the run proves failure."""
    return outcome_confidence(confidence, success=not run.proves_failure)


def _score(run: LabelledRun, weights: ScoringWeights, outcome: float, *, success: bool) -> float:
    values = {**run.values, "outcome_confidence": outcome}
    contributions = [values.get(name, 0.0) * getattr(weights, name) for name in DIMENSION_NAMES]
    return combine(contributions, TraceShape.from_counts(run.features), success=success).total
