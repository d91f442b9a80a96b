"""What the score says of labelled runs of one source, before anything is learned from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kp_langchain import ScoreBreakdown, Scorer
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.config import Settings
from kp_langchain.gate import decide, default_threshold
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
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


@dataclass(frozen=True)
class Source:
    """The scored runs of one source."""

    name: str
    runs: Sequence[Scored]

    @cached_property
    def ranking(self) -> Ranking:
        """The truth about them."""
        return Ranking([one.run.success for one in self.runs], [one.run.task for one in self.runs])

    @property
    def totals(self) -> list[float]:
        """Their scores."""
        return [one.breakdown.total for one in self.runs]


def scored(name: str, runs: Sequence[Run], settings: Settings, embedder: object) -> Source:
    """Score the runs of one source, one after the other, in an order shuffled by a fixed seed.

    Args:
        name: The source.
        runs: Its runs.
        settings: Where weights and thresholds of the user's own are found.
        embedder: What novelty is measured with.
    """
    order = list(runs)
    random.Random(ORDER_SEED).shuffle(order)
    profiles = {
        domain: policy.weights
        for domain in {run.trace.metadata.task_domain for run in order}
        if (policy := settings.policy_for(domain)).weights is not None
    }
    scorer = Scorer(profiles=profiles, embedder=embedder)
    breakdowns = scorer.evaluate_many(run.trace for run in order)
    return Source(
        name, [_scored(run, one, settings) for run, one in zip(order, breakdowns, strict=True)]
    )


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
    firsts = Source(source.name, list({one.run.task: one for one in reversed(runs)}.values()))
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
