"""`ScoreBreakdown`: a score that explains itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from kp_langchain.novelty_sources import UNREADABLE, is_measured, why_neutral
from kp_langchain.scoring.dimensions import (
    DIMENSION_NAMES,
    DIMENSIONS,
    REASONS,
    SINGLE_THOUGHT,
    TRACE_SOURCE,
    FiniteNumber,
    RuleFired,
    TraceShape,
    combine,
    outcome_confidence,
    why_outcome,
)
from kp_langchain.scoring.evidence import Agreement, Worth, flag_meaning, novelty_factor


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a score.

    Attributes:
        value: The result of the dimension's formula, 0 to 1.
        weight: How much it counts, 0 to 1.
        contribution: Value times weight: what it adds to the weighted sum.
        why: What the value rests on, in a few words.
    """

    value: FiniteNumber
    weight: FiniteNumber
    contribution: FiniteNumber
    why: str = ""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The remembered trace that is most similar to the scored one.

    Attributes:
        trace_id: Its id; None for a vector that was added to the cache without a key.
        similarity: Cosine similarity of the two embeddings, -1 to 1.
    """

    trace_id: str | None
    similarity: FiniteNumber


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


@dataclass(frozen=True, slots=True)
class ScoreBreakdown:
    """A score and everything that it follows from.

    Attributes:
        total: The score, 0 to 1.
        complexity: How varied and long the run was.
        novelty: How unlike the remembered traces it was.
        tool_diversity: How many different tools it used.
        outcome_confidence: How far its outcome can be trusted.
        weighted_sum: The sum of the contributions of the dimensions, before the rules.
        profile: Name of the weight profile, or `custom` for weights given with the call.
        rules: The rules that applied, in order.
        novelty_source: Where novelty came from: `nearest remembered trace`, `exact repeat` of a
            trace whose embedding is not in the memory (novelty 0), `empty cache`, `remembered
            traces left out` (all were shown to the run, or are of it), `no embedder`,
            `embeddings extra not installed`, `embedding model still loading`, `unreadable` (the
            model cannot read the text's language), `embedder failed: <error type>`,
            `memory failed: <error type>`, or `scorer failed: <error type>`; in all cases but the
            first two novelty is 0.5.
        nearest: The most similar remembered trace; None if none was compared.
        confidence_source: Where the outcome's confidence came from; `trace` unless a report or
            verdict replaced the trace's own.
        elapsed_ms: Milliseconds that scoring took.
        latency_budget_ms: Milliseconds that scoring was allowed to take; None for no limit.
        unreadable_share: Share of the text's tokens that the embedding model cannot read, 0 to 1;
            None if unknown.
        worth: How much the run is worth keeping, beside the score; None where nothing is known of
            that but the score.
        agreement: How far it agrees with other runs of its task; None if it was compared with none.
        flags: What speaks against it, by the names in `evidence.VETO_FLAGS`.
    """

    total: FiniteNumber
    complexity: Dimension
    novelty: Dimension
    tool_diversity: Dimension
    outcome_confidence: Dimension
    weighted_sum: FiniteNumber
    profile: str
    rules: tuple[RuleFired, ...]
    novelty_source: str
    nearest: Nearest | None = None
    confidence_source: str = TRACE_SOURCE
    elapsed_ms: FiniteNumber = 0.0
    latency_budget_ms: FiniteNumber | None = None
    unreadable_share: FiniteNumber | None = None
    worth: Worth | None = None
    agreement: Agreement | None = None
    flags: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The score, 0 to 1: the same as `total` and `float(breakdown)`."""
        return self.total

    def __float__(self) -> float:
        return float(self.total)

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """The dimensions by name, in the order in which the weighted sum adds them."""
        return {name: getattr(self, name) for name in DIMENSION_NAMES}

    @property
    def over_budget(self) -> bool:
        """Whether scoring took longer than its latency budget."""
        return self.latency_budget_ms is not None and self.elapsed_ms > self.latency_budget_ms

    def __str__(self) -> str:
        return self.line()

    def with_confidence_from(
        self, source: str, confidence: float, *, success: bool, lowers_confidence: bool = True
    ) -> ScoreBreakdown:
        """Return the same breakdown with another source of its confidence.

        Args:
            source: Where the confidence comes from.
            confidence: The outcome's confidence, 0 to 1.
            success: Whether the run succeeded.
            lowers_confidence: Whether a failure lowers the confidence.
        """
        why = why_outcome(confidence, source, success=success, lowers_confidence=lowers_confidence)
        outcome = replace(self.outcome_confidence, why=why)
        return replace(self, outcome_confidence=outcome, confidence_source=source)

    def with_outcome(
        self,
        *,
        success: bool,
        confidence: float,
        source: str,
        shape: TraceShape,
        lowers_confidence: bool = True,
    ) -> ScoreBreakdown:
        """Return the breakdown that the same run would have had with another outcome.

        All but outcome confidence, the rules and the worth stays as it was when the run was scored.

        Args:
            success: Whether the run succeeded.
            confidence: The outcome's confidence, 0 to 1.
            source: Where it comes from, such as a verdict.
            shape: The shape of the run's trace.
            lowers_confidence: Whether a failure lowers the confidence. A model has seen already
                that a run looks like one.

        Raises:
            ValueError: `confidence` is not within 0..1.
        """
        value = outcome_confidence(confidence, success=success or not lowers_confidence)
        contribution = value * self.outcome_confidence.weight
        outcome = replace(self.outcome_confidence, value=value, contribution=contribution)
        dimensions = self.dimensions | {"outcome_confidence": outcome}
        contributions = [dimension.contribution for dimension in dimensions.values()]
        weighted_sum, total, rules = combine(contributions, shape, success=success)
        changed = replace(
            self, outcome_confidence=outcome, weighted_sum=weighted_sum, total=total, rules=rules
        ).with_confidence_from(
            source, confidence, success=success, lowers_confidence=lowers_confidence
        )
        return changed if self.worth is None else changed.with_worth(value, f"a verdict ({source})")

    def with_unmeasured_novelty(self, source: str) -> ScoreBreakdown:
        """Return the same breakdown with another reason why novelty was not measured.

        Args:
            source: The reason, as in `novelty_source`.
        """
        novelty = replace(self.novelty, why=why_neutral(source))
        return replace(self, novelty=novelty, novelty_source=source)

    def with_worth(self, confidence: float, basis: str) -> ScoreBreakdown:
        """Return the same breakdown with the run's worth.

        Args:
            confidence: The confidence that the run is right, 0 to 1.
            basis: What that rests on, in words.
        """
        return replace(self, worth=Worth.of(confidence, self.novelty.value, basis))

    def largest_loss(self, gate: str = "score") -> tuple[str, float] | None:
        """Return what lowered the score or the worth most; None if nothing did.

        A dimension, or a factor of a worth, costs what the total would gain if it were
        1. Novelty that was not measured costs nothing, and neither does a dimension where the
        rule `single_thought` sets the score.

        Args:
            gate: `score`, or `worth` for the worth where there is one.

        Returns:
            The dimension, factor or rule in words, and what it cost, 0 to 1.
        """
        if gate == "worth" and self.worth is not None:
            factor = novelty_factor(self.novelty.value)
            losses = {
                "confidence": factor * (1 - self.worth.confidence),
                "novelty": self.worth.confidence * (1 - factor),
            }
        else:
            losses = {f"rule {rule.name}": rule.before - rule.after for rule in self.rules}
            if all(rule.name != SINGLE_THOUGHT for rule in self.rules):
                losses |= {
                    row.label: one.weight * (1 - one.value)
                    for row, one in zip(DIMENSIONS, self.dimensions.values(), strict=True)
                }
        if not is_measured(self.novelty_source):
            losses.pop("novelty", None)
        name = max(losses, key=losses.__getitem__)
        return (name, losses[name]) if losses[name] > 0 else None

    def line(self) -> str:
        """Return the score, its dimensions and rules, worth, agreement and flags in one line."""
        products = [f"{row.short_label} {_product(getattr(self, row.name))}" for row in DIMENSIONS]
        line = f"score {self.total:.3f} = {' + '.join(products)}"
        for rule in self.rules:
            line += f", {rule.name} {rule.before:.3f} -> {rule.after:.3f}"
        line += f" ({self.profile} profile"
        if self.nearest is None:
            line += f"; novelty: {self.novelty_source}"
        line += ")" if self.worth is None else f"); worth {self.worth.value:.3f}"
        parts = [str(self.agreement)] if self.agreement is not None else []
        return "; ".join([line, *parts, *(f"flag {flag}" for flag in self.flags)])

    def text(self) -> str:
        """Return the explanation as lines.

        They have the dimensions, the rules, the score, the worth if there is one, the sources of
        novelty and confidence, the agreement with other runs of the task, and the flags.
        """
        lines = [f"score {self.total:.3f} with the weights of profile {self.profile}"]
        for row in DIMENSIONS:
            dimension: Dimension = getattr(self, row.name)
            product = f"{_product(dimension)} = {dimension.contribution:.3f}"
            lines.append(f"  {row.label:<20}{product}   {dimension.why}".rstrip())
        lines.append(f"  {'weighted sum':<35}{self.weighted_sum:.3f}")
        for rule in self.rules:
            change = f"{rule.before:.3f} -> {rule.after:.3f}"
            lines.append(f"  rule {rule.name:<21}{change}   {REASONS.get(rule.name, '')}".rstrip())
        duration = f"in {self.elapsed_ms:.2f} ms"
        if self.over_budget:
            duration += f", over the budget of {self.latency_budget_ms:g} ms"
        lines.append(f"  {'score':<35}{self.total:.3f}   {duration}")
        if self.worth is not None:
            factor = f"{self.worth.confidence:.3f} x {novelty_factor(self.novelty.value):.2f}"
            lines.append(f"  {'worth':<20}{factor} = {self.worth.value:.3f}   {_WHY_WORTH}")
        lines.append(f"  novelty from        {self.novelty_source}{self._novelty_detail()}")
        lines.append(f"  confidence from     {self.confidence_source}")
        if self.worth is not None:
            lines.append(f"  worth from          {self.worth.basis}")
        if self.agreement is not None:
            lines.append(f"  agreement           {self.agreement.text()}")
        lines += [f"  flag                {one}: {flag_meaning(one)}" for one in self.flags]
        return "\n".join(lines)

    def _novelty_detail(self) -> str:
        if self.nearest is not None:
            return f", {self.nearest.trace_id or 'a vector without a key'}"
        if self.novelty_source == UNREADABLE and self.unreadable_share is not None:
            return f", {self.unreadable_share:.0%} of the tokens say nothing to the model"
        return ""

    def waterfall(self) -> Iterator[WaterfallRow]:
        """Yield its steps from zero: the dimensions, the rules, the score, and the worth if any."""
        level = 0.0
        for definition in DIMENSIONS:
            one: Dimension = getattr(self, definition.name)
            before, level = level, level + one.contribution
            label = definition.label
            yield WaterfallRow("dimension", label, _product(one), before, level, one.why)
        for rule in self.rules:
            why = REASONS.get(rule.name, "")
            yield WaterfallRow("rule", rule.name, "", rule.before, rule.after, why)
        yield WaterfallRow("score", "score", "", 0.0, self.total, "")
        if self.worth is not None:
            figures = f"{self.worth.confidence:.3f} x {novelty_factor(self.novelty.value):.2f}"
            yield WaterfallRow("worth", "worth", figures, 0.0, self.worth.value, _WHY_WORTH)

    def to_row(self) -> dict[str, Any]:
        """Return it as one flat row, such as of a DataFrame.

        The columns are `score`; for each dimension its value, and with `_weight` and
        `_contribution` appended those; `weighted_sum`, `profile`, `rules` (names, joined by
        commas), `novelty_source`, `nearest_id`, `nearest_similarity`, `confidence_source`,
        `elapsed_ms`, `worth`, `worth_confidence`, `agreement`, `agreeing_runs`, `compared_runs` and
        `flags` (joined by commas).
        """
        parts: dict[str, Any] = {}
        for name, one in self.dimensions.items():
            parts |= {
                name: one.value,
                f"{name}_weight": one.weight,
                f"{name}_contribution": one.contribution,
            }
        nearest, worth, agreement = self.nearest, self.worth, self.agreement
        return {
            "score": self.total,
            **parts,
            "weighted_sum": self.weighted_sum,
            "profile": self.profile,
            "rules": ",".join(rule.name for rule in self.rules),
            "novelty_source": self.novelty_source,
            "nearest_id": None if nearest is None else nearest.trace_id,
            "nearest_similarity": None if nearest is None else nearest.similarity,
            "confidence_source": self.confidence_source,
            "elapsed_ms": self.elapsed_ms,
            "worth": None if worth is None else worth.value,
            "worth_confidence": None if worth is None else worth.confidence,
            "agreement": None if agreement is None else agreement.value,
            "agreeing_runs": 0 if agreement is None else agreement.agreeing,
            "compared_runs": 0 if agreement is None else agreement.runs,
            "flags": ",".join(self.flags),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists, strings and finite numbers, ready for JSON."""
        data: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScoreBreakdown:
        """Return the breakdown that `to_dict` wrote; unknown keys are ignored.

        Raises:
            pydantic.ValidationError: A key is missing or its value is wrong; the message names it.
        """
        return _ADAPTER.validate_python(dict(data) if isinstance(data, Mapping) else data)


_WHY_WORTH = "confidence x (0.75 + novelty / 4)"

# Made at import: made on first use in a forked child, it may wait for ever for a lock of Python's.
_ADAPTER = TypeAdapter(ScoreBreakdown)


def _product(dimension: Dimension) -> str:
    return f"{dimension.value:.3f} x {dimension.weight:.2f}"
