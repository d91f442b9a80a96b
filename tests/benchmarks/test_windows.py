"""How often two runs of one task are more alike than two of different ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.windows import same_task_auc


def at(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize(
    ("degrees", "tasks", "auc"),
    [
        ((0, 1, 90, 91), "aabb", 1.0),
        ((0, 90, 1, 91), "aabb", 0.25),  # nearer than one of four
        ((0, 0, 0, 0), "aabb", 0.5),
        ((0, 10, 30), "abb", 0.5),  # nearer than one of two
    ],
)
def test_the_share_of_pairs_in_order(degrees, tasks, auc):
    found, others = same_task_auc(at(*degrees), list(tasks))
    assert found == pytest.approx(auc)
    assert -1 <= others <= 1


def test_tasks_that_were_run_once_have_none():
    found, others = same_task_auc(at(0, 60, 120), list("abc"))
    assert found is None
    assert others == pytest.approx((0.5 + 0.5 - 0.5) / 3)
    assert same_task_auc(at(0, 60), list("aa"))[0] is None
