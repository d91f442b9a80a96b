"""Fit a confidence model to the verdicts of one domain, and evaluate it on held-out tasks.

The model is a logistic regression of success on the features, each as the logarithm of 1 + its
value, in standard deviations, cut off at three. A normal prior holds the weights near 0, so without
evidence a probability stays near the share of successes. The prior also calibrates the
probabilities. Adding Platt scaling made the Brier score of recorded runs worse for three of four
sources; for the fourth it was better by 0.004.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain.calibration.features import FEATURES_VERSION, is_surface
from kp_langchain.calibration.measures import (
    Estimate,
    ReliabilityBin,
    auc,
    auc_value,
    brier,
    import_calibrate_extra,
    reliability,
    task_numbers,
)
from kp_langchain.calibration.model import (
    LARGEST_DEVIATION,
    ConfidenceModel,
    Fold,
    LabelledRun,
    SurfaceFeature,
    Term,
    estimated_score,
    hypothetical_score,
    log_value,
    probability,
    task_hash,
    with_weights,
)
from kp_langchain.policy import PROFILES, ScoringWeights
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


# ------------------------------------------------------------------ features as a table


# A feature is used only if it differs from its commonest value in at least this many tasks.
_FEWEST_VARYING_TASKS = 5
# Standard deviation of the prior on a weight: normal around 0, in log-odds for each standard
# deviation of the feature. It is fixed rather than searched for: from a third to three times its
# square the AUC of recorded runs is the same to 0.005, and searching uses up verdicts.
_PRIOR_SD = 0.14
_SMALLEST_SCALE = 1e-9


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Runs as rows and features as columns, in standard deviations from the mean.

    Means and deviations are of all the runs; they contain nothing of the verdicts.

    Attributes:
        terms: The features, one a column; their weights are 0.
        positions: What `Term.position` is for each run and feature, (runs, features).
        truth: Whether each run succeeded.
    """

    terms: tuple[Term, ...]
    positions: NDArray[np.float64]
    truth: NDArray[np.bool_]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun]) -> FeatureTable:
        """Return the table of these runs, with the features that vary among them."""
        import numpy as np

        columns = list(_columns(runs))
        return cls(
            tuple(term for term, _ in columns),
            np.column_stack([positions for _, positions in columns])
            if columns
            else np.empty((len(runs), 0)),
            np.array([run.success for run in runs], dtype=bool),
        )

    def fit(self, indices: Sequence[int]) -> tuple[float, tuple[float, ...]]:
        """Fit a logistic regression to the runs at these indices; both outcomes must occur.

        Returns:
            The intercept, and the weight of each term.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        truth = self.truth[indices]
        if not self.terms:
            return math.log(truth.mean() / (1 - truth.mean())), ()
        logistic = import_calibrate_extra("sklearn.linear_model").LogisticRegression(
            C=_PRIOR_SD**2, solver="newton-cholesky"
        )
        logistic.fit(self.positions[indices], truth)
        return float(logistic.intercept_[0]), tuple(logistic.coef_[0].tolist())


def _columns(runs: Sequence[LabelledRun]) -> Iterator[tuple[Term, NDArray[np.float64]]]:
    """Yield the features that vary, each with the positions of all runs."""
    import numpy as np

    tasks = np.array(task_numbers([run.task for run in runs]))
    for name in sorted({name for run in runs for name in run.features}):
        values = [log_value(run.features, name) for run in runs]
        column = np.array(values, dtype=np.float64)
        is_present = ~np.isnan(column)
        distinct, counts = np.unique(column[is_present], return_counts=True)
        if not len(distinct):
            continue
        varies = is_present & (column != distinct[counts.argmax()])
        mean, scale = float(column[is_present].mean()), float(column[is_present].std())
        if len(np.unique(tasks[varies])) < _FEWEST_VARYING_TASKS or scale < _SMALLEST_SCALE:
            continue
        positions = np.where(is_present, (column - mean) / scale, 0.0)
        yield (
            Term(name, mean, scale, weight=0.0),
            positions.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION),
        )


# ------------------------------------------------------------------ held-out tasks


_MOST_FOLDS = 10


def folds(runs: Sequence[LabelledRun]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices of training runs and of test runs; the same runs give the same folds.

    There are ten folds, or as many as the rarer outcome has different tasks (at least two). Each
    has about the same share of successes.

    Args:
        runs: The runs; both outcomes must occur on two different tasks at least.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    selection = import_calibrate_extra("sklearn.model_selection")
    number = min(_MOST_FOLDS, tasks_with(runs, success=True), tasks_with(runs, success=False))
    splitter = selection.StratifiedGroupKFold(number, shuffle=True, random_state=0)
    tasks = task_numbers([run.task for run in runs])
    for training, test in splitter.split(range(len(runs)), [run.success for run in runs], tasks):
        yield training.tolist(), test.tolist()


def tasks_with(runs: Sequence[LabelledRun], *, success: bool) -> int:
    """Return how many different tasks the successes have, or the failures."""
    return len({run.task for run in runs if run.success is success})


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Models that were each fitted without some of the tasks, and their predictions for these.

    Attributes:
        splits: The indices of each model's training runs, and of the runs of the other tasks.
        models: The models, in the same order.
        task_folds: By task, the index of the model that was fitted without it.
        probabilities: Each run's probability of success, by the model without its task.
    """

    splits: Sequence[tuple[list[int], list[int]]]
    models: tuple[Fold, ...]
    task_folds: Mapping[str, int]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun], table: FeatureTable) -> HeldOut:
        """Fit and predict.

        Args:
            runs: The labelled runs.
            table: Their features.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        splits = list(folds(runs))
        models, task_folds = [], {}
        probabilities = [0.0] * len(runs)
        for number, (training, test) in enumerate(splits):
            model = Fold(*table.fit(training))
            models.append(model)
            terms = with_weights(table.terms, model.weights)
            for index in test:
                task_folds[runs[index].task] = number
                probabilities[index] = probability(model.intercept, terms, runs[index].features)
        return cls(splits, tuple(models), task_folds, tuple(probabilities))


# ------------------------------------------------------------------ what else explains the verdicts


# The smallest share that so many shuffles can show is a tenth of the strictest limit set to it.
_SHUFFLES = 999
_SEED = 0
_ROUNDING = 1e-9


def chance(runs: Sequence[LabelledRun], table: FeatureTable) -> float:
    """Return the share of shuffles of the verdicts that the features fit at least as closely.

    How closely is measured by the pairs of runs of different tasks: whether runs with alike
    features have alike verdicts (the global test of Goeman et al. 2004, Bioinformatics 20:93, as a
    permutation test). It needs no folds, so nothing of it depends on how they fall.

    What the default confidence knows already does not count: verdicts are shuffled only among runs
    that looked successful, and among those that did not. The verdicts on repeats of a task stay
    together, because they are often alike.

    Args:
        runs: The labelled runs.
        table: Their features.

    Returns:
        The share, above 0, at most 1; the same for the same runs.
    """
    import numpy as np

    # Sorted by task, so that the runs of a task can be summed up in one go.
    numbers = np.array(task_numbers([run.task for run in runs]))
    order = np.argsort(numbers, kind="stable")
    tasks, positions = numbers[order], table.positions[order]
    looked = np.array([run.looked_successful for run in runs], dtype=bool)[order]
    truth = table.truth[order].astype(np.float64)
    residuals = truth.copy()
    for group in (looked, ~looked):
        if group.any():
            residuals[group] -= truth[group].mean()
    positions = positions - positions.mean(axis=0)
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))

    observed = _closeness(positions, residuals, starts)
    limit = observed - _ROUNDING * (1.0 + abs(observed))
    _, blocks = np.unique(2 * tasks + looked, return_inverse=True)
    places = np.lexsort((blocks, looked))
    random = np.random.default_rng(_SEED)
    shuffled, reached = np.empty_like(residuals), 1
    for _ in range(_SHUFFLES):
        rank = random.permutation(blocks.max() + 1)
        shuffled[places] = residuals[np.lexsort((rank[blocks], looked))]
        reached += _closeness(positions, shuffled, starts) >= limit
    return reached / (1 + _SHUFFLES)


def _closeness(
    positions: NDArray[np.float64], residuals: NDArray[np.float64], starts: NDArray[np.intp]
) -> float:
    """Return the sum, over pairs of runs of different tasks, of likeness times agreement.

    Likeness is the inner product of two runs' positions, agreement that of their residuals.
    """
    import numpy as np

    by_task = np.add.reduceat(positions * residuals[:, None], starts)
    total = by_task.sum(axis=0)
    return float(total @ total - (by_task**2).sum())


def best_surface_feature(
    table: FeatureTable, splits: Sequence[tuple[Sequence[int], Sequence[int]]], model_auc: float
) -> SurfaceFeature | None:
    """Return the best single size or count, chosen anew in each fold; None if none of them varies.

    Args:
        table: The labelled runs.
        splits: The folds: the indices of training runs, and of test runs.
        model_auc: Area under the ROC curve of the model, on held-out tasks, 0 to 1.
    """
    columns = [number for number, term in enumerate(table.terms) if is_surface(term.feature)]
    if not columns:
        return None
    scores = [0.0] * len(table.truth)
    choices: Counter[str] = Counter()
    for training, test in splits:
        column, sign = _best(table, columns, training)
        choices[table.terms[column].feature] += 1
        for index in test:
            scores[index] = sign * float(table.positions[index, column])
    area = auc_value(table.truth.tolist(), scores)
    return SurfaceFeature(choices.most_common(1)[0][0], area, model_auc)


def _best(
    table: FeatureTable, columns: Sequence[int], training: Sequence[int]
) -> tuple[int, float]:
    """Return the column that separates these runs best, and the sign that it has for success."""
    truth = table.truth[training].tolist()
    areas = {
        column: auc_value(truth, table.positions[training, column].tolist()) for column in columns
    }
    column = max(areas, key=lambda one: abs(areas[one] - 0.5))
    return column, 1.0 if areas[column] >= 0.5 else -1.0
