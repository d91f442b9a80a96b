"""Which traces are runs of the same task, as far as their embeddings say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAME_TASK = 0.95
"""Traces whose tasks are at least so similar, of 1, are taken as runs of one task."""


def task_numbers(vectors: NDArray[np.float32], baseline: float) -> NDArray[np.intp]:
    """Return a number for the task of each trace: the place of the first trace with that task.

    Args:
        vectors: The normalised embeddings of the tasks, shape (n, dimensions).
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    import numpy as np

    least = baseline + SAME_TASK * (1.0 - baseline)
    numbers = np.arange(len(vectors))
    others = numbers.copy()
    while len(others):
        first, others = others[0], others[1:]
        are_same = vectors[others] @ vectors[first] >= least
        numbers[others[are_same]] = first
        others = others[~are_same]
    return numbers
