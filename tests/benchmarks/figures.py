"""Figures as they are written: quartiles of samples, and what a samples' unit is called."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Quartiles(TypedDict):
    """Quartiles of `samples` samples."""

    q1: float
    median: float
    q3: float
    samples: int


def quartiles(values: Sequence[float]) -> Quartiles:
    """Quartiles of two values or more."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "q1": round(q1, 4),
        "median": round(median, 4),
        "q3": round(q3, 4),
        "samples": len(values),
    }
