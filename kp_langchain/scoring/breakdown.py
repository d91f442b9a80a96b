"""`ScoreBreakdown`: a score that explains itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from kp_langchain.embedding.problems import UNREADABLE
from kp_langchain.scoring.rules import REASONS, RuleFired

# Values of `ScoreBreakdown.novelty_source`; the others are those of `embedding.problems`.
NEAREST = "nearest remembered trace"
REPEAT = "exact repeat"
EMPTY_CACHE = "empty cache"

_Number = Annotated[float, Field(allow_inf_nan=False)]

# The `ScoreBreakdown.confidence_source` of a score whose trace is all that is known.
UNKNOWN_SOURCE = "trace"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a score.

    Args:
        value: What the formula gave, 0 to 1.
        weight: How much it counts, 0 to 1.
        contribution: Value times weight: what it adds to the weighted sum.
        why: What the value rests on, in a few words.
    """

    value: _Number
    weight: _Number
    contribution: _Number
    why: str = ""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The remembered trace most like the scored one.

    Args:
        trace_id: Its id; None for a vector that was added to the cache without a key.
        similarity: Cosine similarity of the two embeddings, -1 to 1.
    """

    trace_id: str | None
    similarity: _Number


@dataclass(frozen=True, slots=True)
class ScoreBreakdown:
    """A score and everything that led to it.

    Args:
        total: The score, 0 to 1.
        complexity: How varied and long the run was.
        novelty: How unlike the remembered traces.
        tool_diversity: How many different tools.
        outcome_confidence: How far the outcome can be trusted.
        weighted_sum: The sum of the four contributions, before the rules.
        profile: Name of the weight profile used, or `custom` for weights given with the call.
        rules: The rules that applied, in order.
        novelty_source: Where novelty came from: `nearest remembered trace`, `exact repeat` of one
            whose embedding is not there to say so (novelty 0), `empty cache`, `no embedder`,
            `embeddings extra not installed`, `embedding model still loading`, `unreadable` (the
            model does not know the text's language), or `embedder failed: <error type>`; in all
            cases but the first two novelty is 0.5.
        nearest: The most similar remembered trace, if any was compared.
        confidence_source: Where the outcome's confidence came from; `trace` unless whoever knows
            better replaces it.
        elapsed_ms: Milliseconds that scoring took.
        latency_budget_ms: Milliseconds that it was allowed to take; None for no limit.
        unreadable_share: Share of the text's tokens that the embedding model cannot read, 0 to 1;
            None if nobody knows.
    """

    total: _Number
    complexity: Dimension
    novelty: Dimension
    tool_diversity: Dimension
    outcome_confidence: Dimension
    weighted_sum: _Number
    profile: str
    rules: tuple[RuleFired, ...]
    novelty_source: str
    nearest: Nearest | None = None
    confidence_source: str = UNKNOWN_SOURCE
    elapsed_ms: _Number = 0.0
    latency_budget_ms: _Number | None = None
    unreadable_share: _Number | None = None

    @property
    def over_budget(self) -> bool:
        """Whether scoring took longer than its latency budget."""
        return self.latency_budget_ms is not None and self.elapsed_ms > self.latency_budget_ms

    def __str__(self) -> str:
        return self.line()

    def with_confidence_from(
        self, source: str, confidence: float, *, success: bool
    ) -> ScoreBreakdown:
        """Return the same breakdown, with the source of its confidence told.

        Args:
            source: Where the confidence comes from.
            confidence: The outcome's confidence, 0 to 1.
            success: Whether the run succeeded.
        """
        outcome = replace(
            self.outcome_confidence, why=why_outcome(confidence, source, success=success)
        )
        return replace(self, outcome_confidence=outcome, confidence_source=source)

    def line(self) -> str:
        """Return the score and its parts in one line."""
        parts = [
            f"complexity {_product(self.complexity)}",
            f"novelty {_product(self.novelty)}",
            f"tools {_product(self.tool_diversity)}",
            f"outcome {_product(self.outcome_confidence)}",
        ]
        line = f"score {self.total:.3f} = {' + '.join(parts)}"
        for rule in self.rules:
            line += f", {rule.name} {rule.before:.3f} -> {rule.after:.3f}"
        line += f" ({self.profile} profile"
        if self.nearest is None:
            line += f"; novelty: {self.novelty_source}"
        return line + ")"

    def text(self) -> str:
        """Return the explanation as lines: dimensions, what novelty rests on, rules, score."""
        rows = [
            ("complexity", self.complexity),
            ("novelty", self.novelty),
            ("tool diversity", self.tool_diversity),
            ("outcome confidence", self.outcome_confidence),
        ]
        lines = [f"score {self.total:.3f} with the weights of profile {self.profile}"]
        for label, part in rows:
            line = f"  {label:<20}{_product(part)} = {part.contribution:.3f}   {part.why}"
            lines.append(line.rstrip())
        lines.append(f"  {'weighted sum':<35}{self.weighted_sum:.3f}")
        for rule in self.rules:
            change = f"{rule.before:.3f} -> {rule.after:.3f}"
            lines.append(f"  rule {rule.name:<21}{change}   {REASONS.get(rule.name, '')}".rstrip())
        took = f"in {self.elapsed_ms:.2f} ms"
        if self.over_budget:
            took += f", over the budget of {self.latency_budget_ms:g} ms"
        lines.append(f"  {'score':<35}{self.total:.3f}   {took}")
        if self.nearest is None:
            share = self.unreadable_share if self.novelty_source == UNREADABLE else None
            why = "" if share is None else f", {share:.0%} of the tokens say nothing to the model"
            lines.append(f"  novelty from        {self.novelty_source}{why}")
        else:
            name = self.nearest.trace_id or "a vector without a key"
            lines.append(f"  novelty from        {self.novelty_source}, {name}")
        lines.append(f"  confidence from     {self.confidence_source}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists, strings and finite numbers, ready for JSON."""
        plain: dict[str, Any] = _READER.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScoreBreakdown:
        """Return the breakdown that `to_dict` wrote; keys it does not know are ignored.

        Raises:
            pydantic.ValidationError: A key is missing or its value is wrong; the message names it.
        """
        return _READER.validate_python(dict(data))


# Not made when first needed: in a forked child that may wait for ever for a lock of Python's.
_READER = TypeAdapter(ScoreBreakdown)


def why_outcome(confidence: float, source: str, *, success: bool) -> str:
    """Return what the dimension outcome confidence rests on, in words."""
    ended = "succeeded" if success else "failed, so x 0.3"
    known = f" ({source})" if source != UNKNOWN_SOURCE else ""
    return f"confidence {confidence:.2f}{known}, {ended}"


def _product(part: Dimension) -> str:
    return f"{part.value:.3f} x {part.weight:.2f}"
