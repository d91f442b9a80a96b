"""Fit a confidence model to the verdicts of one domain, and evaluate it on held-out tasks.

The model is a logistic regression of success on the features, each as the logarithm of 1 + its
value, in standard deviations, cut off at three. A normal prior holds the weights near 0, so without
evidence a probability stays near the share of successes. The prior also calibrates the
probabilities. Adding Platt scaling made the Brier score of recorded runs worse for three of four
sources; for the fourth it was better by 0.004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kp_langchain.calibration.best_surface import best_surface_feature
from kp_langchain.calibration.chance import chance
from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.folds import tasks_with
from kp_langchain.calibration.held_out import HeldOut
from kp_langchain.calibration.hypothetical_score import estimated_score, hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import Estimate, ReliabilityBin, auc, brier, reliability
from kp_langchain.calibration.model import ConfidenceModel, task_hash, with_weights
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.weights import PROFILES, ScoringWeights

FEWEST_RUNS = 30
"""A model is fitted only to at least this many verdicts."""
FEWEST_TASKS = 5
"""A model is fitted only if successes and failures each come from at least this many tasks."""

# A model is installed if at most the first share of shuffles follows the features as closely; if
# more than the second does, it is provisional. With repeated tasks these shares come out a little
# too low, and at most 5 % of random labels are to pass: hence 0.04.
# `python -m tests.benchmarks.quality` counts what is installed from random labels and true ones.
_MOST_CHANCE = 0.04
_MOST_CHANCE_UNLESS_PROVISIONAL = 0.01


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
        provisional: Whether the verdicts do not yet rule out beyond doubt that it is chance; see
            `ConfidenceModel.provisional`. False if it is refused.
        chance: The share of shuffles of the verdicts that the features fit as closely, 0 to 1.
        leans_on: What the model leans on most, in words.
        warning: What to say if one size or count alone explains what the model knows; else None.
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
    provisional: bool = False
    chance: float | None = None
    leans_on: tuple[str, ...] = ()
    warning: str | None = None
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
    held_out = HeldOut.of(runs, table)
    confidences = held_out.probabilities
    model = _model(domain, runs, table, held_out)
    area = Estimate(model.auc, model.auc_low, model.auc_high)
    default_area = auc(truth, _default(runs), tasks)
    base_error = brier(truth, [model.base_rate] * len(runs))
    by_chance = chance(runs, table)
    refusal = _no_better_auc(area, default_area, by_chance) or _no_better_brier(model, base_error)
    provisional = refusal is None and by_chance > _MOST_CHANCE_UNLESS_PROVISIONAL
    scores = [hypothetical_score(run, weights) for run in runs]
    new_scores = [
        estimated_score(run, weights, one) for run, one in zip(runs, confidences, strict=True)
    ]
    return Fit(
        *numbers,
        refusal=refusal,
        provisional=provisional,
        chance=by_chance,
        leans_on=model.leans_on,
        warning=model.warning,
        model=replace(model, provisional=provisional),
        held_out=confidences,
        auc=area,
        default_auc=default_area,
        brier=model.brier,
        base_brier=base_error,
        default_brier=model.default_brier,
        reliability=reliability(truth, confidences, tasks),
        score_auc_before=auc(truth, scores, tasks),
        score_auc_after=auc(truth, new_scores, tasks),
    )


def _default(runs: Sequence[LabelledRun]) -> list[float]:
    """Return the confidence that each run gets without a model."""
    return [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]


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


def _no_better_auc(area: Estimate, default_area: Estimate, by_chance: float) -> str | None:
    """Return a refusal if the default confidence is as good, or the gain may well be chance."""
    gain = area.value - default_area.value
    if gain > 0 and by_chance <= _MOST_CHANCE:
        return None
    reason = (
        f"the gain of {gain:.2f} may be chance (shuffled verdicts are followed as closely in "
        f"{by_chance:.0%} of trials)"
        if gain > 0
        else "it is no better"
    )
    return (
        f"on tasks it never saw, the model's AUC is {area}, the default confidence's "
        f"{default_area.value:.2f}: {reason}; collect more verdicts"
    )


def _no_better_brier(model: ConfidenceModel, base_error: float) -> str | None:
    """Return a refusal if predicting the share of successes for every run is as good."""
    if model.brier < base_error:
        return None
    return (
        f"on tasks it never saw, the model's Brier score is {model.brier:.3f}, and that of always "
        f"predicting {model.base_rate:.2f} is {base_error:.3f}: it is no better; collect more "
        "verdicts"
    )


def _model(
    domain: str, runs: Sequence[LabelledRun], table: FeatureTable, held_out: HeldOut
) -> ConfidenceModel:
    intercept, weights = table.fit(range(len(runs)))
    truth, confidences = [run.success for run in runs], held_out.probabilities
    area = auc(truth, confidences, [run.task for run in runs])
    return ConfidenceModel(
        domain=domain,
        features_version=FEATURES_VERSION,
        created_at=datetime.now(UTC),
        runs=len(runs),
        tasks=len(held_out.task_folds),
        base_rate=sum(truth) / len(runs),
        auc=area.value,
        auc_low=area.low,
        auc_high=area.high,
        brier=brier(truth, confidences),
        default_brier=brier(truth, _default(runs)),
        intercept=intercept,
        terms=with_weights(table.terms, weights),
        surface=best_surface_feature(table, held_out.splits, area.value),
        held_out={
            run.trace_id: one for run, one in zip(runs, confidences, strict=True) if run.trace_id
        },
        folds=held_out.models,
        task_folds={task_hash(task): number for task, number in held_out.task_folds.items()},
    )
