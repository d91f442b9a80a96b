"""Which traces are runs of the same task, as far as their embeddings say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAME_TASK = 0.95
"""Traces whose tasks are at least so similar, of 1, are taken as runs of one task."""


def task_numbers(are_same: NDArray[np.bool_]) -> list[int]:
    """Return a number for the task of each trace: the place of the first trace with that task.

    Args:
        are_same: Whether the tasks of each two are the same, shape (n, n).
    """
    import numpy as np

    numbers: list[int] = []
    firsts: list[int] = []
    for at in range(len(are_same)):
        same = np.flatnonzero(are_same[at, firsts])
        if not len(same):
            firsts.append(at)
        numbers.append(firsts[same[0]] if len(same) else at)
    return numbers
