"""Fit a confidence model to the verdicts of one domain, and evaluate it on held-out tasks.

The model is a logistic regression of success on the features, each as the logarithm of 1 + its
value, in standard deviations, cut off at three. A normal prior holds the weights near 0, so without
evidence a probability stays near the share of successes. The prior also calibrates the
probabilities. Adding Platt scaling made the Brier score of recorded runs worse for three of four
sources; for the fourth it was better by 0.004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.folds import folds, tasks_with
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import (
    Estimate,
    ReliabilityBin,
    auc,
    auc_gain,
    brier,
    reliability,
)
from kp_langchain.calibration.model import (
    ConfidenceModel,
    Fold,
    probability,
    task_hash,
    with_weights,
)
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.weights import PROFILES, ScoringWeights

FEWEST_RUNS = 30
"""A model is fitted only to at least this many verdicts."""
FEWEST_TASKS = 8
"""A model is fitted only if successes and failures each come from at least this many tasks."""

# The interval assumes fixed predictions, but each fold has its own model, so it is too narrow:
# a 95 % interval accepted 5 % of models fitted to random verdicts; this one accepts 1 to 2 %.
_CERTAINTY = 0.99


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of fitting a model to a domain's verdicts.

    With too few verdicts it has only their numbers and the refusal.

    Attributes:
        domain: The domain.
        runs: How many labelled runs there were.
        tasks: How many different tasks they had.
        successes: How many succeeded.
        weights: The weights that the scores below were computed with.
        refusal: Why the model is not to be installed; None if it may be.
        model: The model, fitted to all runs.
        held_out: Per run, in the order given, its probability of success, 0 to 1, by a model that
            was fitted without any run of its task. All figures below are of these.
        auc: Area under the ROC curve of the model.
        default_auc: The same of the confidence that runs get without a model.
        brier: Brier score of the model.
        base_brier: Brier score of predicting the share of successes for every run.
        default_brier: Brier score of the confidence that runs get without a model.
        reliability: Confidence against outcome, in bins of equally many runs.
        score_auc_before: AUC of the score with default confidences.
        score_auc_after: AUC of the score with the model's.
    """

    domain: str
    runs: int
    tasks: int
    successes: int
    weights: ScoringWeights
    refusal: str | None
    model: ConfidenceModel | None = None
    held_out: tuple[float, ...] = ()
    auc: Estimate | None = None
    default_auc: Estimate | None = None
    brier: float | None = None
    base_brier: float | None = None
    default_brier: float | None = None
    reliability: tuple[ReliabilityBin, ...] = ()
    score_auc_before: Estimate | None = None
    score_auc_after: Estimate | None = None


def fit(domain: str, runs: Sequence[LabelledRun], *, weights: ScoringWeights | None = None) -> Fit:
    """Fit a confidence model to a domain's labelled runs; the same runs give the same model.

    Args:
        domain: The domain.
        runs: Its labelled runs.
        weights: The weights in force there; by default those of its built-in profile.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    if weights is None:
        weights = PROFILES.get(domain, PROFILES["default"])
    truth = [run.success for run in runs]
    tasks = [run.task for run in runs]
    numbers = (domain, len(runs), len(set(tasks)), sum(truth), weights)
    if refusal := _too_little(runs):
        return Fit(*numbers, refusal)

    table = FeatureTable.of(runs)
    without_task = _HeldOut.of(runs, table)
    held_out = without_task.probabilities
    default = [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]
    base_rate = sum(truth) / len(runs)
    area, default_area = auc(truth, held_out, tasks), auc(truth, default, tasks)
    gain = auc_gain(truth, held_out, default, tasks, certainty=_CERTAINTY)
    error, base_error = brier(truth, held_out), brier(truth, [base_rate] * len(runs))
    default_error = brier(truth, default)
    scores = [hypothetical_score(run, weights) for run in runs]
    new_scores = [
        hypothetical_score(run, weights, one, success=not run.proves_failure)
        for run, one in zip(runs, held_out, strict=True)
    ]
    return Fit(
        *numbers,
        refusal=_no_better_auc(area, default_area, gain)
        or _no_better_brier(error, base_error, base_rate),
        model=_model(domain, runs, table, without_task, area, error, default_error),
        held_out=tuple(held_out),
        auc=area,
        default_auc=default_area,
        brier=error,
        base_brier=base_error,
        default_brier=default_error,
        reliability=reliability(truth, held_out, tasks),
        score_auc_before=auc(truth, scores, tasks),
        score_auc_after=auc(truth, new_scores, tasks),
    )


def _too_little(runs: Sequence[LabelledRun]) -> str | None:
    """Return why no model can be fitted to these runs; None if one can."""
    outdated = sum(not run.is_current for run in runs)
    if outdated:
        return (
            f"{outdated} of {len(runs)} runs have features of another version than "
            f"{FEATURES_VERSION}; leave them out"
        )
    if len(runs) < FEWEST_RUNS:
        return f"{len(runs)} verdicts; at least {FEWEST_RUNS} are needed, collect more"
    for success, word in ((True, "successful"), (False, "failed")):
        tasks = tasks_with(runs, success=success)
        if tasks < FEWEST_TASKS:
            number = sum(run.success is success for run in runs)
            return (
                f"the {number} {word} among {len(runs)} runs are of {tasks} different tasks; at "
                f"least {FEWEST_TASKS} are needed, collect verdicts on more"
            )
    return None


def _no_better_auc(area: Estimate, default_area: Estimate, gain: Estimate) -> str | None:
    """Return a refusal if the interval of the gain over the default confidences includes 0."""
    if gain.low > 0:
        return None
    reason = (
        f"the gain of {gain.value:.2f} may be chance (99 % interval from {gain.low:.2f})"
        if gain.value > 0
        else "it is no better"
    )
    return (
        f"on tasks it never saw, the model's AUC is {area}, the default confidence's "
        f"{default_area.value:.2f}: {reason}; collect more verdicts"
    )


def _no_better_brier(error: float, base_error: float, base_rate: float) -> str | None:
    """Return a refusal if predicting the share of successes for every run is as good."""
    if error < base_error:
        return None
    return (
        f"on tasks it never saw, the model's Brier score is {error:.3f}, and that of always "
        f"predicting {base_rate:.2f} is {base_error:.3f}: it is no better; collect more verdicts"
    )


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """Models that were each fitted without some of the tasks.

    Attributes:
        folds: The models.
        task_folds: By task, the index of the one that was fitted without it.
        probabilities: Each run's probability of success, by the model without its task.
    """

    folds: tuple[Fold, ...]
    task_folds: dict[str, int]
    probabilities: list[float]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun], table: FeatureTable) -> _HeldOut:
        models, task_folds = [], {}
        probabilities = [0.0] * len(runs)
        for number, (training, test) in enumerate(folds(runs)):
            model = Fold(*table.fit(training))
            models.append(model)
            terms = with_weights(table.terms, model.weights)
            for index in test:
                task_folds[runs[index].task] = number
                probabilities[index] = probability(model.intercept, terms, runs[index].features)
        return cls(tuple(models), task_folds, probabilities)


def _model(
    domain: str,
    runs: Sequence[LabelledRun],
    table: FeatureTable,
    held_out: _HeldOut,
    area: Estimate,
    error: float,
    default_error: float,
) -> ConfidenceModel:
    intercept, weights = table.fit(range(len(runs)))
    return ConfidenceModel(
        domain=domain,
        features_version=FEATURES_VERSION,
        created_at=datetime.now(UTC),
        runs=len(runs),
        tasks=len({run.task for run in runs}),
        base_rate=sum(run.success for run in runs) / len(runs),
        auc=area.value,
        auc_low=area.low,
        auc_high=area.high,
        brier=error,
        default_brier=default_error,
        intercept=intercept,
        terms=with_weights(table.terms, weights),
        held_out={
            run.trace_id: one
            for run, one in zip(runs, held_out.probabilities, strict=True)
            if run.trace_id
        },
        folds=held_out.folds,
        task_folds={task_hash(task): number for task, number in held_out.task_folds.items()},
    )
