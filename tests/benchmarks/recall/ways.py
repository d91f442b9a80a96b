"""The ways to choose what is shown to a run, among runs of other tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kp_langchain.recall.floor import calibrate_floor
from kp_langchain.recall.ranking import rank
from kp_langchain.recall.usable_calls import similarity_weight
from tests.benchmarks.quality.resampling import Array
from tests.benchmarks.recall.knowledge import Knowledge
from tests.benchmarks.recall.recorded_runs import RecallSource

MOST_RANKED = 50  # as the index of recall does it


@dataclass(frozen=True)
class Store:
    """Runs of one source that may be shown.

    Args:
        source: The source.
        kept: Whether each of its runs is in the store.
        knowledge: What the store knows of them.
        same_task: Whether other runs of the same task may be shown, too.
        scans: Whether recall leaves out what looks like planted instructions.
    """

    source: RecallSource
    kept: np.ndarray[Any, Any]
    knowledge: Knowledge
    same_task: bool = False
    scans: bool = True

    @cached_property
    def floor(self) -> float:
        """What recall calibrates on the successes that it may show."""
        at = np.flatnonzero(self._may_be_shown)
        plans = [self.source.plans[one] for one in at]
        return calibrate_floor(self.source.vectors[at], plans, self.source.baseline)

    @cached_property
    def _may_be_shown(self) -> np.ndarray[Any, Any]:
        left_out = self.source.look_planted if self.scans else ~self.kept
        return np.asarray(self.kept & self.knowledge.successes & ~left_out)

    def of_other_tasks(self, query: int) -> np.ndarray[Any, Any]:
        """Whether each run is in the store, and may be shown to a query for its task."""
        if self.same_task:
            return np.asarray(self.kept & (np.arange(len(self.source)) != query))
        return np.asarray(self.kept & self.source.others(query))

    def recall(
        self,
        query: int,
        *,
        floor: float | None = None,
        limit: int = 1,
        confidence: bool = True,
        agreement: bool = True,
        verdicts_first: bool = False,
    ) -> list[int]:
        """Return what recall shows to a run, the best first.

        Args:
            query: The run.
            floor: The floor; by default the calibrated one.
            limit: At most so many.
            confidence: Whether it goes by the confidence that a trace succeeded.
            agreement: Whether it goes by what the plans of the nearest have in common.
            verdicts_first: Whether a success that a verdict states comes first in any case.
        """
        similarities = self.source.similarities[query]
        at = np.flatnonzero(self._may_be_shown & self.of_other_tasks(query))
        nearest = at[np.argsort(-similarities[at], kind="stable")[:MOST_RANKED]]
        candidates = [
            replace(self.knowledge.candidates[one], similarity=float(similarities[one]))
            for one in nearest
        ]
        if not confidence:
            candidates = [replace(one, trust="own", confidence=1.0) for one in candidates]
        if not agreement:
            candidates = [replace(one, plan={}) for one in candidates]
        ranked = rank(candidates, floor=self.floor if floor is None else floor)
        if verdicts_first:
            ranked.sort(key=lambda one: one.trust != "verdict")
        return [int(one.trace_id) for one in ranked[:limit]]

    def has_example(self, other: RecallSource, query: int, tools: Collection[str]) -> bool:
        """Return whether recall shows something to a run of any source.

        Args:
            other: The source of the run.
            query: The run.
            tools: The names of its agent's tools; empty if unknown.
        """
        may_be_shown = self._may_be_shown
        if other.name == self.source.name:
            may_be_shown = may_be_shown & self.of_other_tasks(query)
        cosines = self.source.vectors[may_be_shown] @ other.vectors[query]
        plans = [self.source.plans[at] for at in np.flatnonzero(may_be_shown)]
        weights = np.array([similarity_weight(plan, tools) for plan in plans])
        similarities = (cosines - self.source.baseline) / (1.0 - self.source.baseline)
        return bool((similarities * weights >= self.floor).any())

    def nearest(self, query: int, among: np.ndarray[Any, Any]) -> int | None:
        """Return the run of the store whose task is most similar to that of a query.

        Args:
            query: The run.
            among: Whether each run may be returned.
        """
        at = np.flatnonzero(self.of_other_tasks(query) & among)
        if not len(at):
            return None
        return int(at[np.argmax(self.source.similarities[query][at])])

    def random(self, query: int, among: np.ndarray[Any, Any], seed: int) -> int | None:
        """Return any run of the store; the same for the same query and seed."""
        at = np.flatnonzero(self.of_other_tasks(query) & among)
        if not len(at):
            return None
        return int(np.random.default_rng([seed, query]).choice(at))

    def mean_f1(self, query: int, among: np.ndarray[Any, Any]) -> float:
        """Return the mean plan F1 over all runs that `random` may return."""
        at = np.flatnonzero(self.of_other_tasks(query) & among)
        return float(self.source.plan_f1s[query][at].mean()) if len(at) else 0.0


NOTHING, ELSEWHERE = "nothing", "from elsewhere"
RANDOM, RANDOM_SUCCESS = "random", "random success"
NEAREST_FAILURE, NEAREST, NEAREST_SUCCESS = "nearest failure", "nearest of all", "nearest success"
RECALL, RECALL_ANY = "recall", "recall without a floor"
NO_CONFIDENCE, NO_AGREEMENT = "recall without confidence", "recall without agreement"
NEITHER, VERDICTS_FIRST = "recall without either", "recall with verdicts first"
"""The ways by name. Success is the truth, which recall does not know."""

Choice = Callable[[Store, int], int | None]


def _first(found: list[int]) -> int | None:
    return found[0] if found else None


WAYS: dict[str, Choice] = {
    NOTHING: lambda store, query: None,
    RANDOM: lambda store, query: store.random(query, store.kept, seed=1),
    RANDOM_SUCCESS: lambda store, query: store.random(query, store.source.successes, seed=2),
    NEAREST_FAILURE: lambda store, query: store.nearest(query, ~store.source.successes),
    NEAREST: lambda store, query: store.nearest(query, store.kept),
    NEAREST_SUCCESS: lambda store, query: store.nearest(query, store.source.successes),
    RECALL_ANY: lambda store, query: _first(store.recall(query, floor=0.0)),
    NO_CONFIDENCE: lambda store, query: _first(store.recall(query, confidence=False)),
    NO_AGREEMENT: lambda store, query: _first(store.recall(query, agreement=False)),
    NEITHER: lambda store, query: _first(store.recall(query, confidence=False, agreement=False)),
    VERDICTS_FIRST: lambda store, query: _first(store.recall(query, verdicts_first=True)),
    RECALL: lambda store, query: _first(store.recall(query)),
}
KNOWING = (RECALL_ANY, NO_CONFIDENCE, NO_AGREEMENT, NEITHER, VERDICTS_FIRST, RECALL)
"""The ways that depend on what is known of runs."""


def f1_of(store: Store, way: str, query: int) -> float:
    """Return the plan F1 of what a way shows; 0 where it shows nothing, a mean where by chance."""
    if way == RANDOM:
        return store.mean_f1(query, store.kept)
    if way == RANDOM_SUCCESS:
        return store.mean_f1(query, store.source.successes)
    chosen = WAYS[way](store, query)
    return 0.0 if chosen is None else float(store.source.plan_f1s[query, chosen])


def column(store: Store, way: str) -> Array:
    """Return that F1 for each query of the source."""
    return np.array([f1_of(store, way, query) for query in store.source.queries])
