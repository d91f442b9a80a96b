"""Fits a confidence model to the verdicts of one domain, and judges it on tasks it never saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.folds import folds, library, numbered, tasks_with
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import (
    Estimate,
    ReliabilityBin,
    auc,
    auc_gain,
    brier,
    reliability,
)
from kp_langchain.calibration.model import FARTHEST, ConfidenceModel, Term, measured, probability
from kp_langchain.calibration.rescoring import total
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.weights import PROFILES, ScoringWeights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RUNS = 30
"""Fewer verdicts than this are not learned from."""
FEWEST_TASKS = 8
"""Nor are successes, or failures, on fewer different tasks than this."""

# A feature that differs from its commonest value in fewer tasks than this says nothing general.
_TELLING_TASKS = 5
# What is believed of a weight before any verdict: normal around 0, in log-odds for each standard
# deviation of the feature. It is fixed, not searched for: from a third to three times its square
# the AUC of recorded runs is the same to 0.005, and searching spends verdicts.
_PRIOR_SD = 0.14
_LEAST_SCALE = 1e-9
# Held-out AUCs vary more than an interval for given predictions says, because the models vary, too.
# Of models fitted to random verdicts, 5 % passed an interval of 95 %, and 1 to 2 % pass this one.
_CERTAINTY = 0.99


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of fitting a domain's verdicts.

    With too few verdicts there is nothing but their number and the refusal.

    Args:
        domain: The domain.
        runs: How many labelled runs there were.
        tasks: How many different tasks they had.
        successes: How many succeeded.
        weights: The weights that the scores below were computed with.
        refusal: Why the model is not to be installed; None if it may be.
        model: The model, fitted on all runs.
        held_out: Per run, in the order given, its probability of success, 0 to 1, by a model that
            was fitted without any run of its task. All figures below are of these.
        auc: Area under the ROC curve of the model.
        default_auc: The same of the confidence that runs get without a model.
        brier: Brier score of the model.
        base_brier: The same of saying the share of successes of every run.
        default_brier: The same of the confidence that runs get without a model.
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

    A logistic regression of success on the features, each as the logarithm of 1 + its value in
    standard deviations, cut off at three. A normal prior holds the weights near 0; for want of
    evidence a probability so stays near the share of successes. This is also what calibrates the
    probabilities: a second, Platt's, calibration of them made the Brier scores of recorded runs
    worse for three of four sources, and better by 0.004 for one.

    The model is refused when there is too little to learn from; when the 99 % interval of how much
    higher its AUC is than that of the default confidences reaches down to 0; and when its Brier
    score is no lower than that of saying the share of successes each time.

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
    counted = (domain, len(runs), len(set(tasks)), sum(truth), weights)
    refusal = _unusable(runs)
    if refusal:
        return Fit(*counted, refusal)

    table = _Table.of(runs)
    held_out = [0.0] * len(runs)
    for learned, judged in folds(runs):
        parts = table.learn(learned)
        for at in judged:
            held_out[at] = probability(*parts, runs[at].features)

    default = [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]
    base_rate = sum(truth) / len(runs)
    intercept, terms = table.learn(range(len(runs)))
    area, default_area = auc(truth, held_out, tasks), auc(truth, default, tasks)
    error, base_error = brier(truth, held_out), brier(truth, [base_rate] * len(runs))
    gain = auc_gain(truth, held_out, default, tasks, certainty=_CERTAINTY)
    if gain.low <= 0:
        verdict = (
            f"the gain of {gain.value:.2f} may be chance (99 % interval from {gain.low:.2f})"
            if gain.value > 0
            else "it is no better"
        )
        refusal = (
            f"on tasks it never saw, the model's AUC is {area}, the default confidence's "
            f"{default_area.value:.2f}: {verdict}; collect more verdicts"
        )
    elif error >= base_error:
        refusal = (
            f"on tasks it never saw, the model's Brier score is {error:.3f}, and that of always "
            f"saying {base_rate:.2f} is {base_error:.3f}: it is no better; collect more verdicts"
        )
    return Fit(
        *counted,
        refusal,
        model=ConfidenceModel(
            domain=domain,
            features_version=FEATURES_VERSION,
            created_at=datetime.now(UTC),
            runs=len(runs),
            tasks=len(set(tasks)),
            base_rate=base_rate,
            auc=area.value,
            auc_low=area.low,
            auc_high=area.high,
            brier=error,
            default_brier=brier(truth, default),
            intercept=intercept,
            terms=terms,
        ),
        held_out=tuple(held_out),
        auc=area,
        default_auc=default_area,
        brier=error,
        base_brier=base_error,
        default_brier=brier(truth, default),
        reliability=reliability(truth, held_out, tasks),
        score_auc_before=auc(truth, [total(run, weights) for run in runs], tasks),
        score_auc_after=auc(
            truth,
            [total(run, weights, one) for run, one in zip(runs, held_out, strict=True)],
            tasks,
        ),
    )


def _unusable(runs: Sequence[LabelledRun]) -> str | None:
    outdated = sum(not run.is_current for run in runs)
    if outdated:
        return (
            f"{outdated} of {len(runs)} runs have features of another version than "
            f"{FEATURES_VERSION}; leave them out"
        )
    if len(runs) < FEWEST_RUNS:
        return f"{len(runs)} verdicts; at least {FEWEST_RUNS} are needed, collect more"
    for wanted, what in ((True, "successful"), (False, "failed")):
        tasks = tasks_with(runs, success=wanted)
        if tasks < FEWEST_TASKS:
            number = sum(run.success is wanted for run in runs)
            return (
                f"the {number} {what} among {len(runs)} runs are of {tasks} different tasks; at "
                f"least {FEWEST_TASKS} are needed, collect verdicts on more"
            )
    return None


@dataclass(frozen=True, slots=True)
class _Table:
    """Runs as rows and features as columns, on the scale of `measured`; NaN is not measured."""

    names: list[str]
    values: NDArray[np.float64]
    truth: NDArray[np.bool_]
    tasks: NDArray[np.int_]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun]) -> _Table:
        import numpy as np

        names = sorted({name for run in runs for name in run.features})
        rows = [[measured(run.features, name) for name in names] for run in runs]
        return cls(
            names,
            np.array(rows, dtype=np.float64).reshape(len(runs), len(names)),
            np.array([run.success for run in runs]),
            np.array(numbered([run.task for run in runs])),
        )

    def learn(self, places: Sequence[int]) -> tuple[float, tuple[Term, ...]]:
        """Fit intercept and terms to the runs at these places."""
        import numpy as np

        values, truth, tasks = self.values[places], self.truth[places], self.tasks[places]
        terms, positions = [], []
        for name, column in zip(self.names, values.T, strict=True):
            known = ~np.isnan(column)
            different, counts = np.unique(column[known], return_counts=True)
            if not len(different):
                continue
            unlike = known & (column != different[counts.argmax()])
            mean, scale = float(column[known].mean()), float(column[known].std())
            if len(np.unique(tasks[unlike])) < _TELLING_TASKS or scale < _LEAST_SCALE:
                continue
            terms.append(Term(name, mean, scale, weight=0.0))
            positions.append(
                np.where(known, (column - mean) / scale, 0.0).clip(-FARTHEST, FARTHEST)
            )
        if not terms:
            return math.log(truth.mean() / (1 - truth.mean())), ()
        logistic = library("sklearn.linear_model").LogisticRegression(
            C=_PRIOR_SD**2, solver="newton-cholesky"
        )
        logistic.fit(np.column_stack(positions), truth)
        return float(logistic.intercept_[0]), tuple(
            replace(term, weight=weight)
            for term, weight in zip(terms, logistic.coef_[0].tolist(), strict=True)
        )
