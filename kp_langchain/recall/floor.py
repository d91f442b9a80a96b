"""The floor: how similar a kept trace's task must be for the trace to be shown.

A domain's own successes say how much a similarity promises there. Each is taken for a new task, and
two of another task for its examples: the most similar one, and any. The plans are compared: how
often each tool was called. An example helps if the plans have more than a fifth in common, and else
misleads: by as much as the F1 of the plans is above 0.2 or below.

The floor is `DEFAULT_FLOOR` until examples prove otherwise. It is lower if those below it help, and
higher if those above it mislead: as far as the sum over them is greatest, and if that is more than
chance may explain. By chance it is about the root of the sum of the squares. To be lower, the floor
must exceed that; to be higher, twice of it, because a needless example costs little.

With recorded runs, AgentDojo and tau-bench keep about the default, which leaves out 1 to 3 % of
their tasks. The plans of FEVER and HotpotQA are alike whatever the task, so that any example of the
domain helps; they have no floor. See tests/benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_FLOOR = 0.4
"""The floor of a domain of which nothing is known.

Nine in ten recorded runs are less similar to the nearest run of another source.
"""

HIGHEST_FLOOR = 0.7
"""No floor lies above this."""

_USEFUL_F1 = 0.2
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
    examples = _examples(vectors, plans, baseline)
    above = sorted(one for one in examples if one[0] >= DEFAULT_FLOOR)
    below = sorted((one for one in examples if one[0] < DEFAULT_FLOOR), reverse=True)
    floor = DEFAULT_FLOOR
    if left_out := _most([_USEFUL_F1 - f1 for _, f1 in above], 2.0):
        floor = above[left_out - 1][0]
    elif shown := _most([f1 - _USEFUL_F1 for _, f1 in below], 1.0):
        floor = below[shown - 1][0] if shown < len(below) else 0.0
    return min(floor, HIGHEST_FLOOR)


def _most(gains: Sequence[float], times_chance: float) -> int:
    """Return how many of the first have the greatest sum; 0 if that may be chance."""
    import numpy as np

    if not gains:
        return 0
    sums, by_chance = np.cumsum(gains), np.sqrt(np.cumsum(np.square(gains)))
    certain = np.where(sums > times_chance * by_chance + 1e-9, sums, 0.0)
    return int(certain.argmax()) + 1 if certain.max() > 0 else 0


def _examples(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float
) -> list[tuple[float, float]]:
    """Return the similarity of successes to examples of other tasks, and the F1 of the plans."""
    import numpy as np

    number = min(len(vectors), len(plans))
    if number < 2:
        return []
    rows = np.nan_to_num(vectors[:number], posinf=0.0, neginf=0.0)
    sampled = np.unique(np.linspace(0, number - 1, min(number, _MOST_SAMPLED)).astype(int))
    similarities = np.clip((rows[sampled] @ rows.T - baseline) / (1.0 - baseline), 0.0, 1.0)
    similarities[similarities >= _SAME_TASK] = -1.0
    places = np.arange(len(sampled))
    similarities[places, sampled] = -1.0
    found: dict[tuple[int, int], float] = {}  # each pair once, whichever is taken for the task
    for others in (similarities.argmax(axis=1), (sampled + number // 2) % number):
        at = similarities[places, others]
        for one, other, similarity in zip(
            *(x.tolist() for x in (sampled, others, at)), strict=True
        ):
            if similarity >= 0 and (plans[one] or plans[other]):  # else there is nothing to compare
                found[min(one, other), max(one, other)] = similarity
    return [(found[pair], plan_f1(*(plans[one] for one in pair))) for pair in found]


def plan_f1(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return what two plans have in common, 0 to 1: the F1 of their calls, by tool and number.

    Args:
        one: How often each tool was called, by its name.
        other: The same of the other.
    """
    calls = sum(max(count, 0) for plan in (one, other) for count in plan.values())
    common = sum(max(min(count, other.get(tool, 0)), 0) for tool, count in one.items())
    return 2 * common / calls if calls else 1.0
