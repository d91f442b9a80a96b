"""The floor: how similar a kept trace's task must be for the trace to be shown.

It is `DEFAULT_FLOOR`, unless a domain's own successes prove another. Each of their tasks is taken
for a new one, and two of another task for its examples: the most similar one, and any. The plans
are compared: how often each tool was called. An example helps if the plans have more than a fifth
in common, and else misleads: by as much as the F1 of the plans is above 0.2 or below.

The floor is lower if examples below the default help, and higher if those above it mislead: as far
as the sum over them is greatest. That sum must be more than chance may explain, which is twice the
root of the sum of the squares. The floor is not lower than the similarity that 49 of 50 tasks have
to others: to the third most similar one, because the first may be the same task in other words.
What is less similar to everything kept is hardly a task of the domain. Finally, the floor is drawn
towards the default, because a few tasks may agree by chance:

    default + (proved - default) * tasks / (tasks + 3)

So where the plans are alike whatever the task (FEVER, HotpotQA), the floor sinks to what the tasks
of the domain need, and no further. See tests/benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_FLOOR = 0.4
"""The floor of a domain of which nothing is known.

Nine in ten recorded runs are less similar to the nearest success of another source.
"""

LOWEST_FLOOR, HIGHEST_FLOOR = 0.15, 0.7
"""No floor lies outside these."""

_USEFUL_F1 = 0.2
_BEYOND_CHANCE = 2.0
_SHARE_OF_STRANGERS = 0.02  # of a domain's own tasks, so many may have no example
_PRIOR_TASKS = 3  # for so many the default counts
_OTHERS = 3  # the similarity to this one says how similar the tasks of a domain are
_MOST_SAMPLED = 1000

# Traces whose tasks are at least so similar, of 1, are taken as runs of one task.
_SAME_TASK = 0.95


def calibrate_floor(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float = 0.0
) -> float:
    """Return the similarity (0 to 1) below which no trace of a domain should be shown.

    Args:
        vectors: The normalised embeddings of the tasks of its successes, shape (n, dimensions).
        plans: How often each of them called each tool, by the tool's name.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    examples, usual = _examples(vectors, plans, baseline)
    above = sorted(one for one in examples if one.similarity >= DEFAULT_FLOOR)
    below = sorted((one for one in examples if one.similarity < DEFAULT_FLOOR), reverse=True)
    proved = DEFAULT_FLOOR
    if left_out := _most([_USEFUL_F1 - one.f1 for one in above]):
        proved = above[left_out - 1].similarity
    elif shown := _most([one.f1 - _USEFUL_F1 for one in below]):
        lowest = below[shown - 1].similarity if shown < len(below) else 0.0
        proved = min(max(lowest, _reached_by_most(usual)), DEFAULT_FLOOR)
    proved = min(max(proved, LOWEST_FLOOR), HIGHEST_FLOOR)
    tasks = len(usual)
    return DEFAULT_FLOOR + (proved - DEFAULT_FLOOR) * tasks / (tasks + _PRIOR_TASKS)


class _Example(NamedTuple):
    """Two successes of different tasks, one of which is an example for the other.

    Attributes:
        similarity: Of the tasks, 0 to 1.
        f1: Of the plans.
    """

    similarity: float
    f1: float


def _most(gains: Sequence[float]) -> int:
    """Return how many of the first have the greatest sum; 0 if that may be chance."""
    import numpy as np

    if not gains:
        return 0
    sums, by_chance = np.cumsum(gains), np.sqrt(np.cumsum(np.square(gains)))
    certain = np.where(sums > _BEYOND_CHANCE * by_chance + 1e-9, sums, 0.0)
    return int(certain.argmax()) + 1 if certain.max() > 0 else 0


def _reached_by_most(usual: Sequence[float]) -> float:
    import numpy as np

    return float(np.quantile(usual, _SHARE_OF_STRANGERS)) if usual else DEFAULT_FLOOR


def _examples(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float
) -> tuple[list[_Example], list[float]]:
    """Return examples for tasks, and how similar each task is to others.

    Of the runs of a task the first alone counts, and none without a call.
    """
    import numpy as np

    called = [at for at, plan in enumerate(plans[: len(vectors)]) if plan]
    sampled = np.linspace(0, len(called) - 1, min(len(called), _MOST_SAMPLED)).astype(int)
    places = [called[at] for at in sampled.tolist()]
    rows = np.nan_to_num(vectors[places], posinf=0.0, neginf=0.0)
    first = np.unique(task_numbers(rows, baseline))
    number = len(first)
    if number <= _OTHERS:
        return [], []
    rows, places = rows[first], [places[at] for at in first.tolist()]
    similarities = np.clip((rows @ rows.T - baseline) / (1.0 - baseline), 0.0, 1.0)
    np.fill_diagonal(similarities, -1.0)
    found: dict[tuple[int, int], _Example] = {}  # each two once, whichever is taken for the task
    for others in (similarities.argmax(axis=1), np.roll(np.arange(number), number // 2)):
        for one, other in enumerate(others.tolist()):
            f1 = plan_f1(plans[places[one]], plans[places[other]])
            found[min(one, other), max(one, other)] = _Example(float(similarities[one, other]), f1)
    usual = np.partition(similarities, -_OTHERS, axis=1)[:, -_OTHERS]
    return list(found.values()), usual.tolist()


def plan_f1(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return what two plans have in common, 0 to 1: the F1 of their calls, by tool and number.

    Args:
        one: How often each tool was called, by its name.
        other: The same of the other.
    """
    calls = sum(max(count, 0) for plan in (one, other) for count in plan.values())
    common = sum(max(min(count, other.get(tool, 0)), 0) for tool, count in one.items())
    return 2 * common / calls if calls else 1.0


def task_numbers(vectors: NDArray[np.float32], baseline: float) -> NDArray[np.intp]:
    """Return a number for the task of each trace: the place of the first trace with that task.

    Args:
        vectors: The normalised embeddings of the tasks, shape (n, dimensions).
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    import numpy as np

    least = baseline + _SAME_TASK * (1.0 - baseline)
    numbers = np.arange(len(vectors))
    others = numbers.copy()
    while len(others):
        first, others = others[0], others[1:]
        are_same = vectors[others] @ vectors[first] >= least
        numbers[others[are_same]] = first
        others = others[~are_same]
    return numbers
