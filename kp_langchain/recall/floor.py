"""The floor: how similar a kept trace's task must be for the trace to be shown.

A domain's own successes say how much a similarity promises there. Each is taken for a new task, and
the most similar one of another task for its example. Their plans are compared: how often each tool
was called. An example whose plan has less than a quarter in common with that of the task misleads
more than it helps. The floor leaves out the least similar examples, as many as do most harm in all:

    the largest sum of (0.25 - F1 of the plans) over the examples below the floor

if that is more than chance may explain, which is the root of the sum of its squares.

That gives recorded runs of AgentDojo a floor of 0.42, which leaves out 3 % of the tasks. The plans
of tau-bench, FEVER and HotpotQA are alike whatever the task, so that any example of the domain
helps; they get the lowest floor. See tests/benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_FLOOR = 0.4
"""The floor of a domain with too few successes to calibrate one.

Nine in ten recorded runs are less similar to the nearest run of another source.
"""

LOWEST_FLOOR, HIGHEST_FLOOR = 0.2, 0.7
"""No calibrated floor lies outside these."""

FEWEST_EXAMPLES = 30
"""A floor is calibrated only on at least so many successes that have an example."""

_USEFUL_F1 = 0.25
_SAME_TASK = 0.95  # traces whose tasks are at least so similar are taken as runs of one task
_MOST_SAMPLED = 500


def calibrate_floor(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float = 0.0
) -> float:
    """Return the similarity (0 to 1) below which no trace of a domain should be shown.

    Args:
        vectors: The normalised embeddings of the tasks of its successes, shape (n, dimensions).
        plans: How often each of them called each tool, by the tool's name.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    import numpy as np

    number = min(len(vectors), len(plans))
    if number < FEWEST_EXAMPLES:
        return DEFAULT_FLOOR
    rows = np.nan_to_num(np.asarray(vectors[:number], dtype=np.float32))
    sampled = np.unique(np.linspace(0, number - 1, min(number, _MOST_SAMPLED)).astype(int))
    similarities = np.clip((rows[sampled] @ rows.T - baseline) / (1.0 - baseline), 0.0, 1.0)
    similarities[similarities >= _SAME_TASK] = -1.0
    similarities[np.arange(len(sampled)), sampled] = -1.0
    nearest = similarities.argmax(axis=1)
    highest = similarities[np.arange(len(sampled)), nearest]
    examples = [
        (float(similarity), plan_f1(plans[one], plans[other]))
        for one, other, similarity in zip(sampled, nearest, highest, strict=True)
        if similarity >= 0 and (plans[one] or plans[other])  # without tools, no plans to compare
    ]
    if len(examples) < FEWEST_EXAMPLES:
        return DEFAULT_FLOOR
    examples.sort()
    harm = np.array([_USEFUL_F1 - f1 for _, f1 in examples])
    sums, by_chance = np.cumsum(harm), np.sqrt(np.cumsum(harm**2))
    most = np.where(sums > by_chance, sums, 0.0)
    left_out = int(most.argmax()) + 1 if most.max() > 0 else 0
    above = examples[left_out][0] if left_out < len(examples) else HIGHEST_FLOOR
    return min(max(above if left_out else LOWEST_FLOOR, LOWEST_FLOOR), HIGHEST_FLOOR)


def plan_f1(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return what two plans have in common, 0 to 1: the F1 of their calls, by tool and number.

    Args:
        one: How often each tool was called, by its name.
        other: The same of the other.
    """
    calls = sum(max(count, 0) for plan in (one, other) for count in plan.values())
    common = sum(max(min(count, other.get(tool, 0)), 0) for tool, count in one.items())
    return 2 * common / calls if calls else 1.0
