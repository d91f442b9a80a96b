"""`Worth`: how much a run is worth keeping, by a calibrated confidence and its novelty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

_Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Worth:
    """How much a run is worth keeping: `confidence * (0.5 + novelty / 2)`.

    A run is worth keeping if it is right and not yet known. A repeat of a known one keeps half its
    worth, because being right counts more: of the forms that were compared, this one selected best
    (tests/benchmarks/README.md).

    Attributes:
        value: The worth, 0 to 1.
        confidence: The probability that the run is right, 0 to 1: the domain's model's, or that of
            a verdict. Unlike the outcome's confidence, it is never one that the run itself states.
    """

    value: _Number
    confidence: _Number

    @classmethod
    def of(cls, confidence: float, novelty: float) -> Worth:
        """Return the worth of a run.

        Args:
            confidence: The calibrated confidence, 0 to 1.
            novelty: Its novelty, 0 to 1.
        """
        return cls(confidence * novelty_factor(novelty), confidence)


def novelty_factor(novelty: float) -> float:
    """Return what a run's novelty (0 to 1) leaves of its confidence, 0.5 to 1."""
    return 0.5 + novelty / 2
