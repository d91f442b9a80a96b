"""A score as a waterfall: what each dimension and rule adds, from zero to the total."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kp_langchain.scoring.dimensions import DIMENSIONS
from kp_langchain.scoring.rules import REASONS
from kp_langchain.scoring.worth import novelty_factor

if TYPE_CHECKING:
    from kp_langchain.scoring.breakdown import ScoreBreakdown


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


def waterfall_rows(breakdown: ScoreBreakdown) -> Iterator[WaterfallRow]:
    """Yield the rows of a score: its dimensions, its rules, the score, and the worth if any."""
    level = 0.0
    for definition in DIMENSIONS:
        one = breakdown.dimensions[definition.name]
        figures, before = f"{one.value:.3f} x {one.weight:.2f}", level
        level += one.contribution
        yield WaterfallRow("dimension", definition.label, figures, before, level, one.why)
    for rule in breakdown.rules:
        why = REASONS.get(rule.name, "")
        yield WaterfallRow("rule", rule.name, "", rule.before, rule.after, why)
    yield WaterfallRow("score", "score", "", 0.0, breakdown.total, "")
    if breakdown.worth is not None:
        worth = breakdown.worth
        figures = f"{worth.confidence:.3f} x {novelty_factor(breakdown.novelty.value):.2f}"
        why = "confidence x (0.5 + novelty / 2)"
        yield WaterfallRow("worth", "worth", figures, 0.0, worth.value, why)
