"""`TaskSnapshot`: the traces of a domain that may be shown, as they are searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain._forksafe import fork_gate
from kp_langchain.recall.credit import NO_CREDIT, Credit
from kp_langchain.recall.floor import DEFAULT_FLOOR, calibrate_floor, task_numbers
from kp_langchain.recall.ranking import Candidate, Trust
from kp_langchain.recall.usable_calls import similarity_weight
from kp_langchain.scoring.dimensions import novelty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.store.recall_entries import StoredTask

# Ranked by more than similarity are only the most similar ones, of runs and of units.
_MOST_RANKED = 50
# Among so many are further tasks looked for, if the most similar ones are runs of too few.
_MOST_LOOKED_AT = 800
# Agents of one domain with other tools; for each, an array of as many numbers as there are traces.
_MOST_TOOLSETS = 16


class Found(NamedTuple):
    """What a search in a snapshot returns.

    Attributes:
        candidates: The most similar traces that the run may be shown.
        floor: The domain's floor, 0 to 1.
    """

    candidates: list[Candidate]
    floor: float


@dataclass(frozen=True, slots=True, eq=False)
class TaskSnapshot:
    """The traces of a domain that may be shown. Safe to use from several threads.

    Attributes:
        tasks: The tasks of the traces.
        credits: The credit of each trace that was shown, by its id.
        matrix: Their normalised vectors, float32, shape (n, dimensions).
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
        namespaces: A number for the namespace of each, 0 for none, shape (n,).
        are_open: Whether each may be shown in every namespace, shape (n,).
        are_own: Whether each is a run of this store, and not of a registry, shape (n,).
        numbers: The numbers of the namespaces.
        plans: The different plans.
        plan_places: The place of the plan of each among them, shape (n,).
        weights: By the names of an agent's tools, how much of the similarity of each counts, shape
            (n,).
        floor: The similarity that an example must have, 0 to 1.
    """

    tasks: Sequence[StoredTask]
    credits: Mapping[str, Credit]
    matrix: NDArray[np.float32]
    baseline: float
    namespaces: NDArray[np.int32]
    are_open: NDArray[np.bool_]
    are_own: NDArray[np.bool_]
    numbers: Mapping[str, int]
    plans: list[Mapping[str, int]]
    plan_places: NDArray[np.intp]
    weights: dict[frozenset[str], NDArray[np.float64]] = field(default_factory=dict)
    floor: float = DEFAULT_FLOOR

    @classmethod
    def of(
        cls, eligible: Sequence[StoredTask], credits_: Mapping[str, Credit], baseline: float
    ) -> TaskSnapshot:
        """Return a snapshot of traces, with the default floor.

        Args:
            eligible: The tasks of the traces, which have a vector. One whose vector has another
                length than most is left out: the embedder has changed, and kept its name.
            credits_: The credit of each trace that was shown, by its id.
            baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
        """
        import numpy as np

        pairs = [(task, entry) for task in eligible if (entry := task.entry) is not None]
        sizes = Counter(0 if entry.vector is None else len(entry.vector) for _, entry in pairs)
        size = sizes.most_common(1)[0][0] if sizes else 0
        pairs = [
            pair for pair in pairs if pair[1].vector is not None and len(pair[1].vector) == size
        ]
        tasks = [task for task, _ in pairs]
        numbers: dict[str, int] = {}
        plans: dict[tuple[tuple[str, int], ...], int] = {}
        plan_places = [
            plans.setdefault(tuple(sorted(entry.plan.items())), len(plans)) for _, entry in pairs
        ]
        for task in tasks:
            if task.namespace is not None:
                numbers.setdefault(task.namespace, len(numbers) + 1)
        with fork_gate:
            rows = [entry.vector for _, entry in pairs]
            matrix = np.array(rows, dtype=np.float32).reshape(len(tasks), size)
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
            np.divide(matrix, lengths, out=matrix, where=lengths > 0)
        return cls(
            tasks,
            credits_,
            matrix,
            baseline,
            np.array([numbers.get(task.namespace or "", 0) for task in tasks], dtype=np.int32),
            np.array([task.namespace is None and not task.stays_local for task in tasks], bool),
            np.array([task.is_own for task in tasks], bool),
            numbers,
            [dict(plan) for plan in plans],
            np.array(plan_places, dtype=np.intp),
        )

    def __len__(self) -> int:
        return len(self.tasks)

    def calibrated_floor(self) -> float:
        """Return the floor that the runs of this store prove.

        Units of a registry say nothing of this domain's tasks; whoever sends them chose them.
        """
        plans = [self.plans[at] for at in self.plan_places[self.are_own].tolist()]
        with fork_gate:
            return calibrate_floor(self.matrix[self.are_own], plans, self.baseline)

    def nearest(
        self,
        vector: NDArray[np.float32],
        namespaces: Sequence[str],
        *,
        tools: frozenset[str] = frozenset(),
        tasks: int = 1,
    ) -> Found:
        """Return the traces whose tasks are most similar to one, the runs before the units.

        Args:
            vector: The embedding of the task, shape (dimensions,).
            namespaces: The forms of the run's namespace; traces of others are left out.
            tools: The names of the tools that the agent has; empty if unknown.
            tasks: Return traces of so many different tasks, if the nearest few hundred have them.
        """
        import numpy as np

        if self.matrix.shape[1] != len(vector):
            return Found([], DEFAULT_FLOOR)
        own = [self.numbers[name] for name in namespaces if name in self.numbers]
        weights = self._weights(tools)
        with fork_gate:
            length = float(np.linalg.norm(vector))
            cosines = self.matrix @ (vector / length if length else vector)
            counted = np.maximum(cosines - self.baseline, 0.0) * weights
            may_be_shown = self.are_open
            if own:
                may_be_shown = may_be_shown | np.isin(self.namespaces, own)
            # Of each kind by itself, so that a flood of units cannot push out this store's runs.
            nearest = [
                at
                for are_of_kind in (self.are_own, ~self.are_own)
                for at in self._first(may_be_shown & are_of_kind, counted, tasks)
            ]
            numbers = task_numbers(self.matrix[nearest], self.baseline)
        candidates = [
            self._candidate(at, float(cosines[at]), float(weights[at]), int(number))
            for at, number in zip(nearest, numbers, strict=True)
        ]
        return Found(candidates, self.floor)

    def _candidate(self, at: int, cosine: float, weight: float, number: int) -> Candidate:
        task = self.tasks[at]
        trust: Trust = "verdict" if task.is_stated else "own" if task.is_own else "registry"
        credit = self.credits.get(task.trace_id, NO_CREDIT)
        return Candidate(
            trace_id=task.trace_id,
            similarity=1.0 - novelty(cosine, self.baseline) if cosine > self.baseline else 0.0,
            trust=trust,
            success=task.success,
            confidence=task.confidence,
            worth=task.worth,
            credit=credit.value,
            hurts=credit.hurts,
            plan=self.plans[self.plan_places[at]],
            weight=weight,
            task=number,
        )

    def _first(
        self, are_meant: NDArray[np.bool_], similarities: NDArray[np.floating], tasks: int
    ) -> list[int]:
        """Return the places of the most similar traces, and of more if these have too few tasks."""
        import numpy as np

        places = np.flatnonzero(are_meant)
        number = _MOST_RANKED
        while True:
            first = places
            if len(places) > number:
                first = places[np.argpartition(similarities[places], -number)[-number:]]
            nearest = sorted(
                first.tolist(), key=lambda at: (-similarities[at], self.tasks[at].trace_id)
            )
            different = np.unique(task_numbers(self.matrix[nearest], self.baseline)).tolist()
            if len(different) >= tasks or number >= min(len(places), _MOST_LOOKED_AT):
                further = [nearest[at] for at in different if at >= _MOST_RANKED]
                return nearest[:_MOST_RANKED] + further
            number *= 4

    def _weights(self, tools: frozenset[str]) -> NDArray[np.float64]:
        """Return how much of the similarity of each trace counts, shape (n,)."""
        import numpy as np

        weights = self.weights.get(tools)
        if weights is None:
            of_plans = np.array([similarity_weight(plan, tools) for plan in self.plans])
            weights = of_plans[self.plan_places]
            if len(self.weights) >= _MOST_TOOLSETS:
                self.weights.clear()
            self.weights[tools] = weights
        return weights
