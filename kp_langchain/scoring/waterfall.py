"""`WaterfallRow`: what one dimension or rule adds to a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One row of a waterfall.

    Attributes:
        kind: A `dimension`, a `rule`, or a total: `score` or `worth`.
        label: Its name in words; of a rule, the rule's name.
        figures: What it is the product of, such as `0.270 x 0.20`; empty for a rule or the score.
        start: Where it begins, 0 to 1.
        end: Where it ends, 0 to 1; before `start` for a rule that lowers the score.
        why: What it rests on, in a few words.
    """

    kind: Literal["dimension", "rule", "score", "worth"]
    label: str
    figures: str
    start: float
    end: float
    why: str

    @property
    def amount(self) -> str:
        """What it adds, with a sign; of a total, the total."""
        is_total = self.kind in ("score", "worth")
        return f"{self.end:.3f}" if is_total else f"{self.end - self.start:+.3f}"
