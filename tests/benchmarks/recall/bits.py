"""Bits a token that a small model needs for what agents did, with an example and without one."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kp_langchain import to_few_shot
from kp_langchain.recall.ranking import Trust
from tests.benchmarks.quality.resampling import Array
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.surprise import SmallModel
from tests.benchmarks.recall.targets import parts_of
from tests.benchmarks.recall.ways import WAYS, Store

MOST_TARGETS = 30


def targets(source: RecallSource, most: int = MOST_TARGETS) -> list[int]:
    """Return the runs whose actions are to be foreseen, one successful run of each of some tasks.

    Args:
        source: The source.
        most: Of so many tasks at most, drawn by a fixed seed.
    """
    by_task: defaultdict[str, list[int]] = defaultdict(list)
    for query in source.queries.tolist():
        if any(part.is_action for part in parts_of(source.messages[query])):
            by_task[source.tasks[query]].append(query)
    tasks = sorted(by_task)
    random.Random(1).shuffle(tasks)
    return [random.Random(task).choice(by_task[task]) for task in tasks[:most]]


@dataclass
class Meter:
    """Measures runs with examples before them.

    Args:
        model: The model.
    """

    model: SmallModel
    _texts: dict[tuple[str, int, bool, Trust], str] = field(default_factory=dict)

    def text(self, source: RecallSource, shown: int, *, success: bool, trust: Trust) -> str:
        """Return a run as an example for a prompt.

        Args:
            source: Its source.
            shown: The run.
            success: Whether it is known as a success.
            trust: Who says so.
        """
        key = (source.name, shown, success, trust)
        if key not in self._texts:
            trace = source.traces[shown]
            metadata = trace.metadata.model_copy(update={"success": success})
            self._texts[key] = to_few_shot(
                trace.model_copy(update={"metadata": metadata}), trust=trust
            )
        return self._texts[key]

    def bits(self, source: RecallSource, target: int, example: str = "") -> float:
        """Return the bits a token of what a run did.

        Args:
            source: Its source.
            target: The run.
            example: What is shown before it.
        """
        prompt = f"{example}\n\n" if example else ""
        return self.model.surprise(prompt, parts_of(source.messages[target])).per_token

    def column(self, store: Store, way: str, runs: Sequence[int]) -> Array:
        """Return the bits of runs, each with what a way shows of a store."""
        return np.array([self.with_shown(store, run, WAYS[way](store, run)) for run in runs])

    def with_shown(self, store: Store, run: int, shown: int | None) -> float:
        """Return the bits of a run with one of a store before it, or with nothing."""
        if shown is None:
            return self.bits(store.source, run)
        known = store.knowledge.candidates[shown]
        text = self.text(store.source, shown, success=known.success, trust=known.trust)
        return self.bits(store.source, run, text)

    def from_elsewhere(
        self, source: RecallSource, others: Sequence[RecallSource], runs: Sequence[int]
    ) -> Array:
        """Return the bits of runs, each with any run of another source before it."""
        found = []
        for run in runs:
            drawn = random.Random(run)
            other = drawn.choice([one for one in others if one.name != source.name])
            shown = drawn.randrange(len(other))
            success = bool(other.successes[shown])
            found.append(
                self.bits(source, run, self.text(other, shown, success=success, trust="verdict"))
            )
        return np.array(found)
