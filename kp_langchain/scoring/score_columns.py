"""The scores of many traces, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kp_langchain.embedding.embedder import EmbeddedColumns
from kp_langchain.policy import ScoringWeights
from kp_langchain.scoring.breakdown import Nearest, ScoreBreakdown
from kp_langchain.scoring.dimensions import (
    DIMENSION_NAMES,
    NEUTRAL_NOVELTY,
    RULES,
    TRACE_SOURCE,
    choose,
    clamped_sum,
    complexity,
    novelty,
    sum_in_order,
    tool_diversity,
    trusted_confidence,
)
from kp_langchain.scoring.explanation import NoveltyMeasure, explain_score, source_of
from kp_langchain.scoring.novelty_memory import Matches
from kp_langchain.scoring.trace_columns import ShapeColumns, TraceColumns

Numbers = NDArray[np.float64]
Objects = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class NoveltyColumns:
    """What the novelty of many traces rests on.

    Attributes:
        nearest_id: Id of the most similar remembered trace; None if none was compared, or if its
            vector has no id.
        nearest_similarity: Its similarity, -1 to 1; NaN if none was compared.
        source: Where novelty comes from, as in `ScoreBreakdown.novelty_source`.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
        unreadable_share: Share of the text's tokens that the model cannot read, 0 to 1; NaN if
            unknown.
        elapsed_ms: Milliseconds that measuring it took; of traces measured together, their mean.
    """

    nearest_id: Objects
    nearest_similarity: Numbers
    source: Objects
    baseline: Numbers
    unreadable_share: Numbers
    elapsed_ms: Numbers

    @classmethod
    def of(cls, measures: Sequence[NoveltyMeasure], elapsed_ms: Sequence[float]) -> NoveltyColumns:
        """Return the columns of measures and the milliseconds that they took."""
        nearest = [measure.nearest for measure in measures]
        return cls(
            objects([None if one is None else one.trace_id for one in nearest]),
            numbers([None if one is None else one.similarity for one in nearest]),
            objects([measure.source for measure in measures]),
            numbers([measure.baseline for measure in measures]),
            numbers([measure.unreadable_share for measure in measures]),
            numbers(elapsed_ms),
        )

    @classmethod
    def of_matches(
        cls, matches: Matches, embedded: EmbeddedColumns, elapsed_ms: float
    ) -> NoveltyColumns:
        """Return the columns of traces that were compared together.

        Args:
            matches: What is similar to each of them.
            embedded: Their embeddings.
            elapsed_ms: Milliseconds that all of them took.
        """
        count = len(matches.repeats)
        ids, similarities = list(matches.nearest_ids), list(matches.similarities)
        sources = []
        for row, (repeat, problem) in enumerate(
            zip(matches.repeats, embedded.problems, strict=True)
        ):
            is_repeat = repeat is not None
            sources.append(source_of(similarities[row], is_repeat=is_repeat, problem=problem))
            if repeat is not None:
                ids[row], similarities[row] = repeat.trace_id, repeat.similarity
        return cls(
            objects(ids),
            numbers(similarities),
            objects(sources),
            np.full(count, embedded.identity.baseline),
            numbers(embedded.unreadable_shares),
            np.full(count, elapsed_ms / max(1, count)),
        )

    @classmethod
    def joined(cls, parts: Sequence[NoveltyColumns]) -> NoveltyColumns:
        """Return the columns one part after the other."""
        parts = parts or [cls.of([], [])]
        names = [field.name for field in fields(cls)]
        return cls(*[np.concatenate([getattr(part, name) for part in parts]) for name in names])


def objects(values: Sequence[str | None]) -> Objects:
    """Return a column of texts."""
    return np.array(values, dtype=object)


def numbers(values: Sequence[float | None]) -> Numbers:
    """Return a column of numbers, with NaN for None."""
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreColumns:
    """The scores of many traces: numpy arrays with a row for each trace, in order.

    `breakdown` explains one row, and `to_dict` returns the columns of a DataFrame.

    Attributes:
        trace_id: The trace's id.
        total: The score, 0 to 1.
        complexity: How varied and long the run was, 0 to 1.
        novelty: How unlike the remembered traces it was, 0 to 1.
        tool_diversity: How many different tools it used, 0 to 1.
        outcome_confidence: How far its outcome can be trusted, 0 to 1.
        weights: The weights of these four, shape (n, 4).
        weighted_sum: Values times weights, before the rules.
        profile: Name of the weight profile, or `custom` for weights given with the call.
        rules: Names of the rules that applied, in order, joined by commas.
        measure: What novelty rests on: source, nearest trace, similarity, and more.
        shape: The shapes of the traces.
        confidence: The outcomes' confidence, 0 to 1.
        success: Whether the runs succeeded.
        step_cap: As for `Scorer`.
        latency_budget_ms: As for `Scorer`.
    """

    trace_id: Objects
    total: Numbers
    complexity: Numbers
    novelty: Numbers
    tool_diversity: Numbers
    outcome_confidence: Numbers
    weights: Numbers
    weighted_sum: Numbers
    profile: Objects
    rules: Objects
    measure: NoveltyColumns
    shape: ShapeColumns
    confidence: Numbers
    success: NDArray[np.bool_]
    step_cap: int | None = None
    latency_budget_ms: float | None = None

    @classmethod
    def of(
        cls,
        traces: TraceColumns,
        measure: NoveltyColumns,
        profiles: Mapping[str, ScoringWeights],
        profile_names: Sequence[str],
        *,
        step_cap: int | None = None,
        latency_budget_ms: float | None = None,
    ) -> ScoreColumns:
        """Score traces whose novelty has been measured.

        Args:
            traces: The traces.
            measure: Their novelty.
            profiles: Weights by name.
            profile_names: The name of the weights that count, of each trace.
            step_cap: As for `Scorer`.
            latency_budget_ms: As for `Scorer`.
        """
        shape, success, similarity = traces.shape, traces.success, measure.nearest_similarity
        values: dict[str, Numbers] = {
            "complexity": complexity(shape, step_cap=step_cap),
            "novelty": choose(
                np.isnan(similarity), NEUTRAL_NOVELTY, novelty(similarity, measure.baseline)
            ),
            "tool_diversity": tool_diversity(shape),
            "outcome_confidence": trusted_confidence(traces.confidence, success),
        }
        places = {name: place for place, name in enumerate(dict.fromkeys(profile_names))}
        table = [[getattr(profiles[name], one) for one in DIMENSION_NAMES] for name in places]
        weights = np.array(table, dtype=np.float64).reshape(-1, len(DIMENSION_NAMES))[
            np.array([places[name] for name in profile_names], dtype=np.int64)
        ]
        contributions = [values[name] * weights[:, at] for at, name in enumerate(DIMENSION_NAMES)]
        weighted_sum = sum_in_order(contributions)
        total, rules = clamped_sum(weighted_sum), np.zeros(len(traces), dtype=np.int64)
        for at, rule in enumerate(RULES):
            applies = rule.applies(shape, success)
            total = choose(applies, rule.change(total), total)
            rules |= applies.astype(np.int64) << at
        return cls(
            objects(traces.trace_ids),
            total,
            **values,
            weights=weights,
            weighted_sum=weighted_sum,
            profile=objects(profile_names),
            rules=_RULE_NAMES[rules],
            measure=measure,
            shape=shape,
            confidence=traces.confidence,
            success=success,
            step_cap=step_cap,
            latency_budget_ms=latency_budget_ms,
        )

    def __len__(self) -> int:
        return len(self.total)

    @property
    def novelty_source(self) -> Objects:
        """Where novelty came from, as in `ScoreBreakdown`."""
        return self.measure.source

    @property
    def nearest_id(self) -> Objects:
        """Id of the most similar remembered trace; None if none was compared."""
        return self.measure.nearest_id

    @property
    def nearest_similarity(self) -> Numbers:
        """Its cosine similarity, -1 to 1; NaN if none was compared."""
        return self.measure.nearest_similarity

    def breakdown(self, row: int) -> ScoreBreakdown:
        """Return the score of one trace with all that it follows from.

        Args:
            row: Its row, from 0; from the end if negative.

        Raises:
            IndexError: There is no such row.
        """
        measure = self.measure
        similarity, share = float(measure.nearest_similarity[row]), measure.unreadable_share[row]
        return explain_score(
            self.shape.row(row),
            NoveltyMeasure(
                None if np.isnan(similarity) else Nearest(measure.nearest_id[row], similarity),
                measure.source[row],
                float(measure.baseline[row]),
                None if np.isnan(share) else float(share),
            ),
            confidence=float(self.confidence[row]),
            success=bool(self.success[row]),
            profile=self.profile[row],
            weights=ScoringWeights(*self.weights[row].tolist()),
            step_cap=self.step_cap,
            elapsed_ms=float(measure.elapsed_ms[row]),
            latency_budget_ms=self.latency_budget_ms,
        )

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, such as for a DataFrame.

        The names are those of `ScoreBreakdown.to_row` and `trace_id`, without worth, agreement and
        flags, which no scorer knows.
        """
        parts: dict[str, Numbers] = {}
        for at, name in enumerate(DIMENSION_NAMES):
            values, weights = getattr(self, name), self.weights[:, at]
            parts |= {
                name: values,
                f"{name}_weight": weights,
                f"{name}_contribution": values * weights,
            }
        return {
            "trace_id": self.trace_id,
            "score": self.total,
            **parts,
            "weighted_sum": self.weighted_sum,
            "profile": self.profile,
            "rules": self.rules,
            "novelty_source": self.novelty_source,
            "nearest_id": self.nearest_id,
            "nearest_similarity": self.nearest_similarity,
            "confidence_source": objects([TRACE_SOURCE] * len(self)),
            "elapsed_ms": self.measure.elapsed_ms,
        }


# By a number whose bits say which rules applied.
_RULE_NAMES = objects(
    [
        ",".join(rule.name for at, rule in enumerate(RULES) if bits >> at & 1)
        for bits in range(2 ** len(RULES))
    ]
)
