"""What the score says of labelled runs of one source, before anything is learned from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kp_langchain import ScoreBreakdown, Scorer
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.config import Settings
from kp_langchain.embedding.checks import clean_texts
from kp_langchain.embedding.embedder_protocol import Embedder
from kp_langchain.embedding.embedding_result import embed_texts
from kp_langchain.embedding.identity import identity_of
from kp_langchain.gate import decide, default_threshold
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.scoring.trace_text import embedded_text
from kp_langchain.weights import ScoringWeights
from tests.benchmarks.quality.ranking import Ranking
from tests.benchmarks.quality.runs import Run

ORDER_SEED = 1


@dataclass(frozen=True, slots=True)
class Scored:
    """A run with its score and all that can be learned from.

    Args:
        run: The run.
        breakdown: Its score with the outcome it looked to have.
        passed: Whether that reached the threshold in force.
        labelled: What calibration sees of it.
    """

    run: Run
    breakdown: ScoreBreakdown
    passed: bool
    labelled: LabelledRun

    @property
    def weights(self) -> ScoringWeights:
        """The weights it was scored with."""
        return ScoringWeights(*(getattr(self.breakdown, name).weight for name in DIMENSION_NAMES))

    @property
    def characters(self) -> int:
        """How long the texts of its steps are."""
        return sum(len(step.content or "") for step in self.run.trace.steps)


class KnownEmbeddings:
    """An embedder of runs that were embedded before, so that other orders cost nothing.

    Args:
        embedder: What embeds them, once.
        runs: The runs. Those that it cannot read have no vector, and so a novelty of 0.5.
    """

    def __init__(self, embedder: Embedder, runs: Sequence[Run]) -> None:
        self.identity = identity_of(embedder)
        texts = list({_text(run): None for run in runs})
        embeddings = embed_texts(embedder, texts)
        self._vectors = {
            text: one.vector
            for text, one in zip(texts, embeddings, strict=True)
            if one.vector is not None
        }

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._vectors[text] for text in texts])

    def similarities(self, runs: Sequence[Run]) -> NDArray[np.float64]:
        """The cosine similarity of each two runs; 0 where one has no vector."""
        found = [self._vectors.get(_text(run)) for run in runs]
        length = next((len(one) for one in found if one is not None), 1)
        vectors = np.array([np.zeros(length) if one is None else one for one in found], dtype=float)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        return np.asarray(unit @ unit.T)


def _text(run: Run) -> str:
    """The text of a run as it reaches an embedder."""
    return clean_texts([embedded_text(run.trace)])[0]


@dataclass(frozen=True)
class Source:
    """The scored runs of one source.

    Args:
        name: Its name.
        runs: They, scored one after the other in an order shuffled by a fixed seed.
        settings: Where weights and thresholds of the user's own are found.
        embeddings: What novelty is measured with; None for a novelty of 0.5.
    """

    name: str
    runs: Sequence[Scored]
    settings: Settings
    embeddings: KnownEmbeddings | None

    @cached_property
    def ranking(self) -> Ranking:
        """The truth about them."""
        return Ranking([one.run.success for one in self.runs], [one.run.task for one in self.runs])

    @property
    def totals(self) -> list[float]:
        """Their scores."""
        return [one.breakdown.total for one in self.runs]

    def in_order(self, runs: Sequence[Scored]) -> list[Scored]:
        """Score some of them anew, one after the other; their novelty depends on the order."""
        return _in_order([one.run for one in runs], self.settings, self.embeddings)

    def similarities(self, runs: Sequence[Scored]) -> NDArray[np.float64]:
        """The cosine similarity of each two of these runs; 0 where it is not measured."""
        if self.embeddings is None:
            return np.eye(len(runs))
        return self.embeddings.similarities([one.run for one in runs])


def scored(name: str, runs: Sequence[Run], settings: Settings, embedder: Embedder | None) -> Source:
    """Score the runs of one source, one after the other, in an order shuffled by a fixed seed.

    Args:
        name: The source.
        runs: Its runs.
        settings: Where weights and thresholds of the user's own are found.
        embedder: What novelty is measured with.
    """
    order = list(runs)
    random.Random(ORDER_SEED).shuffle(order)
    embeddings = None if embedder is None else KnownEmbeddings(embedder, order)
    return Source(name, _in_order(order, settings, embeddings), settings, embeddings)


def _in_order(
    runs: Sequence[Run], settings: Settings, embeddings: KnownEmbeddings | None
) -> list[Scored]:
    profiles = {
        domain: policy.weights
        for domain in {run.trace.metadata.task_domain for run in runs}
        if (policy := settings.policy_for(domain)).weights is not None
    }
    scorer = Scorer(profiles=profiles, embedder=embeddings)
    return [_scored(run, scorer.evaluate(run.trace), settings) for run in runs]


def _scored(run: Run, breakdown: ScoreBreakdown, settings: Settings) -> Scored:
    domain = run.trace.metadata.task_domain
    threshold = settings.policy_for(domain).threshold
    if threshold is None:
        threshold = default_threshold(domain, novelty_measured=breakdown.nearest is not None)
    return Scored(
        run,
        breakdown,
        decide(breakdown.total, threshold) == "contributed",
        LabelledRun(
            task=run.task,
            success=run.success,
            features=features_of(run.trace, looked_successful=run.trace.metadata.success),
            looked_successful=run.trace.metadata.success,
            values={name: one.value for name, one in breakdown.dimensions.items()},
            created_at=run.trace.metadata.created_at,
        ),
    )


def figures(source: Source) -> dict[str, Any]:
    """Everything about the score of a source's runs that needs no model."""
    runs, ranking = source.runs, source.ranking
    columns: dict[str, list[float]] = {
        "score": source.totals,
        **{name: [getattr(one.breakdown, name).value for one in runs] for name in DIMENSION_NAMES},
        "steps": [float(len(one.run.trace.steps)) for one in runs],
        "characters": [float(one.characters) for one in runs],
        "true_outcome": [_with_the_truth(one) for one in runs],
    }
    passed = [one for one in runs if one.passed]
    # Where only failures are tried again, a repeat tells of failure, and so does low novelty.
    firsts = replace(source, runs=list({one.run.task: one for one in reversed(runs)}.values()))
    return {
        "runs": len(runs),
        "tasks": len({one.run.task for one in runs}),
        "successes": sum(one.run.success for one in runs),
        "base_rate": ranking.base_rate,
        "novelty_measured": sum(one.breakdown.nearest is not None for one in runs),
        "auc": {name: ranking.auc(column) for name, column in columns.items()},
        "auc_of_firsts": firsts.ranking.auc(firsts.totals),
        "pairs_within_task": ranking.pairs(),
        "within_task": {name: ranking.within_task(column) for name, column in columns.items()},
        "passed": len(passed),
        "good_of_passed": sum(one.run.success for one in passed),
        "top_rate": ranking.top(source.totals),
    }


def _with_the_truth(one: Scored) -> float:
    """The score it would have if the truth had been reported."""
    truth = one.run.success
    return hypothetical_score(one.labelled, one.weights, confidence=float(truth), success=truth)
