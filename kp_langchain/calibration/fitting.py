"""Fits a confidence model to the verdicts of one domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.labelled import LabelledRun
from kp_langchain.calibration.model import ConfidenceModel, Term
from kp_langchain.errors import MissingExtraError
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RUNS = 30


@dataclass(frozen=True, slots=True)
class Reliability:
    """One row of a reliability table: what was predicted, and what came of it."""

    low: float
    high: float
    runs: int
    mean_confidence: float
    success_rate: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of fitting a domain.

    Args:
        domain: The domain.
        runs: How many labelled runs there were.
        tasks: How many different tasks.
        model: The model, fitted on all runs; None if it could not be fitted.
        held_out: Per run its probability of success by a model that never saw its task.
        reliability: The held-out probabilities in bins.
        refusal: Why the model is not to be installed; None if it is.
    """

    domain: str
    runs: int
    tasks: int
    model: ConfidenceModel | None
    held_out: tuple[float, ...]
    reliability: tuple[Reliability, ...]
    refusal: str | None


def fit(domain: str, runs: Sequence[LabelledRun]) -> Fit:
    """Fit a model to labelled runs, and say how well it does on tasks that it never saw.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import brier_score_loss, roc_auc_score
        from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise MissingExtraError(
            "fitting needs scikit-learn: pip install 'kp-langchain[calibrate]'"
        ) from error
    import numpy as np

    groups = [run.task for run in runs]
    truth = np.array([run.success for run in runs], dtype=bool)
    tasks = len(set(groups))
    if len(runs) < FEWEST_RUNS or len(set(truth.tolist())) < 2:
        refusal = (
            f"{len(runs)} verdicts, {int(truth.sum())} of them successes: too few to learn from"
        )
        return Fit(domain, len(runs), tasks, None, (), (), refusal)
    names, values = _matrix(runs)
    pipeline: Any = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.03, max_iter=1000, solver="lbfgs")
    )
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    held_out = cross_val_predict(
        pipeline, values, truth, groups=groups, cv=folds, method="predict_proba"
    )[:, 1]
    pipeline.fit(values, truth)
    scaler, logistic = pipeline[0], pipeline[1]
    auc = float(roc_auc_score(truth, held_out))
    default = np.array([DEFAULT_CONFIDENCE[run.looked_successful] for run in runs])
    model = ConfidenceModel(
        domain=domain,
        features_version=FEATURES_VERSION,
        created_at=datetime.now(UTC),
        runs=len(runs),
        tasks=tasks,
        base_rate=float(truth.mean()),
        auc=auc,
        auc_low=auc,
        auc_high=auc,
        brier=float(brier_score_loss(truth, held_out)),
        default_brier=float(brier_score_loss(truth, default)),
        intercept=float(logistic.intercept_[0]),
        terms=tuple(
            Term(name, float(mean), float(scale), float(weight))
            for name, mean, scale, weight in zip(
                names, scaler.mean_, scaler.scale_, logistic.coef_[0], strict=True
            )
        ),
    )
    refused = None if auc > 0.5 else f"AUC {auc:.2f} on held-out tasks is no better than chance"
    return Fit(domain, len(runs), tasks, model, tuple(map(float, held_out)), (), refused)


def _matrix(runs: Sequence[LabelledRun]) -> tuple[list[str], NDArray[np.float64]]:
    import numpy as np

    names = sorted({name for run in runs for name in run.features})
    rows = [[math.log1p(max(0.0, run.features.get(name, 0.0))) for name in names] for run in runs]
    return names, np.array(rows, dtype=np.float64)
