"""What speaks for a run being right, beside the score: agreement, veto flags, and the worth.

None of it enters the score. Agreement and flags need no verdict; `kp_langchain.calibration` finds
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kp_langchain.scoring.dimensions import FiniteNumber
from kp_langchain.text import count_text

VETO_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "last_call_failed": "its last tool call failed",
        "unanswered_call": "a tool call of it got no answer",
        "answer_unable": "its answer says that it was unable",
        "same_call_twice": "it made the same tool call twice running",
        "repeated_calls": "it made the same tool call three times or more",
        "same_result_twice": "different tool calls returned the same text twice running",
    }
)
"""The flags that speak against a run, each with its meaning in words. Recorded runs with one are
right about a quarter as often as all (tests/benchmarks/README.md)."""


def flag_meaning(flag: str) -> str:
    """Return the meaning of a flag in words, also of one that a later version wrote."""
    return VETO_FLAGS.get(flag, "a sign of failure")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a run agrees with other runs of its task.

    Attributes:
        value: The mean of how far it agrees with each of them, 0 to 1.
        runs: With how many it was compared.
        agreeing: With how many of them it agrees.
        wrong: How many others it repeats that a verdict calls wrong.
    """

    value: FiniteNumber
    runs: int
    agreeing: int
    wrong: int = 0

    @property
    def evidence(self) -> float:
        """How far that speaks for the run, 0 to 1: not at all if it repeats a wrong one."""
        return 0.0 if self.wrong else self.value

    def text(self) -> str:
        """Return it in words with its value."""
        return f"{self}, {self.value:.2f}"

    def __str__(self) -> str:
        if not self.runs:
            return f"repeats {self._wrong_text}"
        number = "the one other run" if self.runs == 1 else f"{self.agreeing} of {self.runs} runs"
        verb = "disagrees" if self.runs == 1 and not self.agreeing else "agrees"
        wrong = f", and repeats {self._wrong_text}" if self.wrong else ""
        return f"{verb} with {number} of this task{wrong}"

    @property
    def _wrong_text(self) -> str:
        return f"{count_text(self.wrong, 'run')} that a verdict calls wrong"


@dataclass(frozen=True, slots=True)
class Worth:
    """How much a run is worth keeping: `confidence * (0.75 + novelty / 4)`.

    A run is worth keeping if it is right and not yet known. Being right counts more: of the forms
    that were compared, this one selected best (tests/benchmarks/README.md).

    Attributes:
        value: The worth, 0 to 1.
        confidence: The probability that the run is right, 0 to 1: the domain's model's, or that of
            a verdict. Unlike the outcome's confidence, it is never one that the run itself states.
        basis: What the confidence rests on, in words.
    """

    value: FiniteNumber
    confidence: FiniteNumber
    basis: str = ""

    @classmethod
    def of(cls, confidence: float, novelty: float, basis: str = "") -> Worth:
        """Return the worth of a run.

        Args:
            confidence: The confidence that it is right, 0 to 1.
            novelty: Its novelty, 0 to 1.
            basis: What the confidence rests on.
        """
        return cls(confidence * novelty_factor(novelty), confidence, basis)


def novelty_factor(novelty: float) -> float:
    """Return what a run's novelty (0 to 1) leaves of its confidence, 0.75 to 1."""
    return 0.75 + novelty / 4
