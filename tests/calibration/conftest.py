"""Labelled runs as a domain might have them: made by a rule, with noise, several runs a task."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.model import ConfidenceModel, LabelledRun, Term

Labelled = Callable[..., list[LabelledRun]]
MODEL = ConfidenceModel(
    domain="finance",
    features_version=FEATURES_VERSION,
    created_at=datetime(2026, 2, 1, 12, tzinfo=UTC),
    runs=214,
    tasks=80,
    base_rate=0.6,
    auc=0.7449,
    auc_low=0.66,
    auc_high=0.81,
    brier=0.19,
    default_brier=0.31,
    intercept=0.4,
    terms=(
        Term("steps", 2.0, 0.5, -0.8),
        Term("answer_chars", 5.0, 1.0, 0.3),
        Term("called:search", 0.5, 0.4, 0.2),
    ),
)


@pytest.fixture(scope="session")
def labelled() -> Labelled:
    """Runs whose success follows the feature `signal` as closely as `strength` says (0: not)."""

    def make(
        number: int = 120, *, strength: float = 2.0, repeats: int = 2, seed: int = 1, **same: Any
    ) -> list[LabelledRun]:
        rng = random.Random(seed)
        runs = []
        for at in range(number):
            signal = rng.random()
            success = rng.random() < 0.5 + strength * (signal - 0.5) / 2
            features = {
                "signal": 20 * signal,
                "noise": 20 * rng.random(),
                "steps": float(rng.randint(2, 30)),
                "called:search": float(rng.randint(0, 3)),
            }
            about = {
                "task": f"task {at // repeats}",
                "success": success,
                "features": features,
                "looked_successful": True,
                "values": {
                    "complexity": rng.random(),
                    "novelty": rng.random(),
                    "tool_diversity": rng.random(),
                },
                "judged_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=at),
            }
            runs.append(LabelledRun(**about | same))
        return runs

    return make
