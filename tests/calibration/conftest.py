"""Labelled runs as a domain might have them: made by a rule, with noise, several runs a task."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kp_langchain.calibration.labelled_run import LabelledRun

Labelled = Callable[..., list[LabelledRun]]


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
                "created_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=at),
            }
            runs.append(LabelledRun(**about | same))
        return runs

    return make
