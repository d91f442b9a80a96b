"""Fit a confidence model to the verdicts of one domain, and evaluate it on held-out tasks.

The model is a logistic regression of success on the features, each as the logarithm of 1 + its
value, in standard deviations, cut off at three. A normal prior holds the weights near 0, so without
evidence a probability stays near the share of successes; that of agreement is held near what it
weighs elsewhere. The prior also calibrates the probabilities. Adding Platt scaling made the Brier
score of recorded runs worse for three of four sources; for the fourth it was better by 0.004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain.calibration.agreement import AGREEMENT, agreement_scale
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.measures import (
    Estimate,
    auc,
    brier,
    import_calibrate_extra,
    task_numbers,
)
from kp_langchain.calibration.model import (
    LARGEST_DEVIATION,
    LARGEST_LOG_ODDS,
    PRIOR_WEIGHT,
    PRIOR_WEIGHT_SD,
    ConfidenceModel,
    LabelledRun,
    Term,
    estimated_score,
    estimated_worth,
    log_value,
)
from kp_langchain.gate.check import WINDOW
from kp_langchain.policy import PROFILES, ScoringWeights
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.text import count_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RUNS = 10
"""A model is fitted only to at least this many verdicts."""
FEWEST_TASKS = 2
"""A model is fitted only if successes and failures each come from at least this many tasks."""

# A model is installed if at most this share of shuffles follows the features as closely. With
# repeated tasks the share comes out a little too low, and at most 5 % of random labels are to pass:
# hence 0.05. `python -m tests.benchmarks.quality` counts what is installed from random labels.
_MOST_CHANCE = 0.05
_MOST_FOLDS = 10
# Standard deviation of the prior on a weight: normal around 0, in log-odds for each standard
# deviation of the feature. It is fixed rather than searched for: from a third to three times its
# square the AUC of recorded runs is the same to 0.005, and searching uses up verdicts.
_PRIOR_SD = 0.14
# A feature is used only if it differs from its commonest value in at least this many tasks.
_FEWEST_VARYING_TASKS = 5
_SMALLEST_SCALE = 1e-9
# The smallest share that so many shuffles can show is a fortieth of the limit set to it.
_SHUFFLES = 999
_SEED = 0
_ROUNDING = 1e-9
_MOST_ITERATIONS, _SMALLEST_STEP = 50, 1e-10


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of fitting a model to a domain's verdicts.

    With too few verdicts it has only their numbers and the refusal.

    Attributes:
        domain: The domain.
        runs: How many labelled runs there were.
        tasks: How many different tasks they had.
        successes: How many succeeded.
        weights: The weights of the score in that domain.
        refusal: Why the model is not to be installed; None if it may be.
        chance: The share of shuffles of the verdicts that the features fit as closely, 0 to 1.
        model: The model, fitted to all runs; it has its own figures.
        held_out: Per run, in the order given, its probability of success, 0 to 1, by a model that
            was fitted without any run of its task. The figures are of these.
        held_out_alone: The same without what is known of its agreement: what the score uses.
        default_auc: Area under the ROC curve of the confidence that runs get without a model.
        base_brier: Brier score of predicting the share of successes for every run.
    """

    domain: str
    runs: int
    tasks: int
    successes: int
    weights: ScoringWeights
    refusal: str | None
    chance: float | None = None
    model: ConfidenceModel | None = None
    held_out: tuple[float, ...] = ()
    held_out_alone: tuple[float, ...] = ()
    default_auc: Estimate | None = None
    base_brier: float | None = None

    @property
    def auc(self) -> Estimate | None:
        """Area under the ROC curve of the model; None without one."""
        model = self.model
        return None if model is None else Estimate(model.auc, model.auc_low, model.auc_high)


def fit(domain: str, runs: Sequence[LabelledRun], *, weights: ScoringWeights | None = None) -> Fit:
    """Fit a confidence model to a domain's labelled runs; the same runs give the same model.

    Args:
        domain: The domain.
        runs: Its labelled runs, the oldest first.
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
    if not table.terms:
        return Fit(
            *numbers,
            f"no feature of the runs differs in at least {_FEWEST_VARYING_TASKS} tasks; collect "
            "verdicts on others",
        )
    model, held_out, held_out_alone = _fit_model(domain, runs, table, weights)
    default_area = auc(truth, [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs], tasks)
    base_error = brier(truth, [model.base_rate] * len(runs))
    by_chance = chance(runs, table)
    return Fit(
        *numbers,
        refusal=_refusal(model, default_area.value, base_error, by_chance),
        chance=by_chance,
        model=model,
        held_out=held_out,
        held_out_alone=held_out_alone,
        default_auc=default_area,
        base_brier=base_error,
    )


def _too_little(runs: Sequence[LabelledRun]) -> str | None:
    """Return why no model can be fitted to these runs; None if one can."""
    if len(runs) < FEWEST_RUNS:
        return f"{len(runs)} verdicts; at least {FEWEST_RUNS} are needed, collect more"
    for success, verb, noun in ((True, "succeeded", "successes"), (False, "failed", "failures")):
        tasks = [run.task for run in runs if run.success is success]
        if (n_tasks := len(set(tasks))) < FEWEST_TASKS:
            of_tasks = f", all in {count_text(n_tasks, 'task')}" if tasks else ""
            return (
                f"{len(tasks) or 'none'} of the {len(runs)} runs with a verdict {verb}{of_tasks}; "
                f"{noun} in at least {FEWEST_TASKS} tasks are needed"
            )
    return None


def _refusal(
    model: ConfidenceModel, default_auc: float, base_brier: float, by_chance: float
) -> str | None:
    """Return why a model is not to be installed: it is no better, or may be chance."""
    area = Estimate(model.auc, model.auc_low, model.auc_high)
    gain = model.auc - default_auc
    reason = None
    if gain <= 0:
        reason = "it is no better"
    elif by_chance > _MOST_CHANCE:
        reason = (
            f"the gain of {gain:.2f} may be chance (shuffled verdicts are followed as closely in "
            f"{by_chance:.0%} of trials)"
        )
    if reason is not None:
        return (
            f"on tasks it never saw, the model's AUC is {area}, the default confidence's "
            f"{default_auc:.2f}: {reason}; collect more verdicts"
        )
    if model.brier >= base_brier:
        return (
            f"on tasks it never saw, the model's Brier score is {model.brier:.3f}, and that of "
            f"always predicting {model.base_rate:.2f} is {base_brier:.3f}: it is no better; "
            "collect more verdicts"
        )
    return None


def _fit_model(
    domain: str, runs: Sequence[LabelledRun], table: FeatureTable, weights: ScoringWeights
) -> tuple[ConfidenceModel, tuple[float, ...], tuple[float, ...]]:
    """Return the model of all runs, and the held-out probabilities of each run."""
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    held_out, held_out_alone = _held_out(table, tasks)
    area = auc(truth, held_out, tasks)
    intercept, coefficients = _coefficients(table, table.truth, table.positions)
    default = [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]
    newest = runs[-WINDOW:]
    model = ConfidenceModel(
        domain=domain,
        features_version=FEATURES_VERSION,
        created_at=datetime.now(UTC),
        runs=len(runs),
        tasks=len(set(tasks)),
        base_rate=sum(truth) / len(runs),
        auc=area.value,
        auc_low=area.low,
        auc_high=area.high,
        brier=brier(truth, held_out),
        default_brier=brier(truth, default),
        intercept=intercept,
        terms=tuple(
            Term(feature, mean, scale, weight)
            for (feature, mean, scale), weight in zip(
                table.terms, coefficients.tolist(), strict=True
            )
        ),
        scores=tuple(
            estimated_score(run, weights, one)
            for run, one in zip(newest, held_out_alone[-WINDOW:], strict=True)
        ),
        worths=tuple(
            estimated_worth(run, one) for run, one in zip(newest, held_out[-WINDOW:], strict=True)
        ),
    )
    return model, held_out, held_out_alone


def _coefficients(
    table: FeatureTable, truth: NDArray[np.bool_], positions: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return intercept and weights of the logistic regression with the priors of a table.

    By Newton's method. scikit-learn's knows no prior but that around 0.

    Args:
        table: Has the priors of the weights; the intercept has none.
        truth: Which of the runs succeeded.
        positions: Their features, (runs, features).
    """
    import numpy as np

    columns = np.hstack([np.ones((len(truth), 1)), positions])
    prior, precision = np.insert(table.prior, 0, 0.0), np.insert(table.prior_sd**-2.0, 0, 0.0)
    weights = prior.copy()
    for _ in range(_MOST_ITERATIONS):
        probabilities = 1.0 / (1.0 + np.exp(-columns @ weights))
        slope = columns.T @ (probabilities - truth) + precision * (weights - prior)
        spread = (columns * (probabilities * (1.0 - probabilities))[:, None]).T @ columns
        step = np.linalg.solve(spread + np.diag(precision), slope)
        weights -= step
        if np.abs(step).max() < _SMALLEST_STEP:
            break
    return float(weights[0]), weights[1:]


def _held_out(
    table: FeatureTable, tasks: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each run's probability of success by a model that was fitted without its task.

    Once by all that is known of it, and once without its agreement.

    There are ten folds, or as many as the rarer outcome has different tasks. Each has about the
    same share of successes. The same runs give the same folds.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    import numpy as np

    selection = import_calibrate_extra("sklearn.model_selection")
    numbers = np.array(task_numbers(tasks))
    groups = (numbers[table.truth], numbers[~table.truth])
    folds = min(_MOST_FOLDS, *(len(np.unique(group)) for group in groups))
    splitter = selection.StratifiedGroupKFold(folds, shuffle=True, random_state=_SEED)
    alone = table.positions * [name != AGREEMENT for name, *_ in table.terms]
    log_odds = np.empty((2, len(numbers)))
    for known, unseen in splitter.split(table.positions, table.truth, numbers):
        intercept, weights = _coefficients(table, table.truth[known], table.positions[known])
        for row, positions in zip(log_odds, (table.positions, alone), strict=True):
            row[unseen] = intercept + positions[unseen] @ weights
    log_odds = log_odds.clip(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    with_agreement, without = (1.0 / (1.0 + np.exp(-log_odds))).tolist()
    return tuple(with_agreement), tuple(without)


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Runs as rows and features as columns, in standard deviations from the mean.

    Means and deviations are of all the runs; they contain nothing of the verdicts.

    Attributes:
        terms: Name, mean and scale of each feature, as of a `Term`.
        positions: What `Term.position` is for each run and feature, (runs, features).
        truth: Whether each run succeeded.
        prior: The mean of the normal prior on each weight.
        prior_sd: Its standard deviation.
    """

    terms: tuple[tuple[str, float, float], ...]
    positions: NDArray[np.float64]
    truth: NDArray[np.bool_]
    prior: NDArray[np.float64]
    prior_sd: NDArray[np.float64]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun]) -> FeatureTable:
        """Return the table of these runs, with the features that vary among them."""
        import numpy as np

        tasks = np.array(task_numbers([run.task for run in runs]))
        terms, columns = [], [np.empty((len(runs), 0))]
        for name in sorted({name for run in runs for name in run.features}):
            values = [log_value(run.features, name) for run in runs]
            column = np.array(values, dtype=np.float64)  # NaN where a run lacks the feature
            is_present = ~np.isnan(column)
            distinct, counts = np.unique(column[is_present], return_counts=True)
            if not len(distinct):
                continue
            varies = is_present & (column != distinct[counts.argmax()])
            mean, scale = float(column[is_present].mean()), float(column[is_present].std())
            if name == AGREEMENT:  # which has its weight even if nothing can be learned of it
                agreements = [run.features[name] for run in runs if name in run.features]
                mean, scale = agreement_scale(agreements)
                varies = is_present
            if len(np.unique(tasks[varies])) < _FEWEST_VARYING_TASKS or scale < _SMALLEST_SCALE:
                continue
            positions = np.where(is_present, (column - mean) / scale, 0.0)
            terms.append((name, mean, scale))
            columns.append(positions.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION)[:, None])
        truth = np.array([run.success for run in runs], dtype=bool)
        is_agreement = np.array([name == AGREEMENT for name, *_ in terms], dtype=bool)
        return cls(
            tuple(terms),
            np.hstack(columns),
            truth,
            prior=np.where(is_agreement, PRIOR_WEIGHT, 0.0),
            prior_sd=np.where(is_agreement, PRIOR_WEIGHT_SD, _PRIOR_SD),
        )


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
    tasks = numbers[order]
    scaled = table.positions * table.prior_sd  # as far as each weight may reach
    positions = scaled[order] - scaled.mean(axis=0)
    looked = np.array([run.looked_successful for run in runs], dtype=bool)[order]
    residuals = table.truth[order].astype(np.float64)
    for group in (looked, ~looked):
        if group.any():
            residuals[group] -= residuals[group].mean()
    task_starts = np.flatnonzero(np.diff(tasks, prepend=-1))

    observed = _closeness(positions, residuals, task_starts)
    limit = observed - _ROUNDING * (1.0 + abs(observed))
    _, blocks = np.unique(2 * tasks + looked, return_inverse=True)
    places = np.lexsort((blocks, looked))
    random = np.random.default_rng(_SEED)
    shuffled, as_close = np.empty_like(residuals), 1
    for _ in range(_SHUFFLES):
        rank = random.permutation(blocks.max() + 1)
        shuffled[places] = residuals[np.lexsort((rank[blocks], looked))]
        as_close += _closeness(positions, shuffled, task_starts) >= limit
    return as_close / (1 + _SHUFFLES)


def _closeness(
    positions: NDArray[np.float64], residuals: NDArray[np.float64], task_starts: NDArray[np.intp]
) -> float:
    """Return the sum, over pairs of runs of different tasks, of likeness times agreement.

    Likeness is the inner product of two runs' positions, agreement that of their residuals.
    """
    import numpy as np

    by_task = np.add.reduceat(positions * residuals[:, None], task_starts)
    total = by_task.sum(axis=0)
    return float(total @ total - (by_task**2).sum())
