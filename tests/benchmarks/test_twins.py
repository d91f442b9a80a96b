"""Which pairs of runs are twins, and what is kept of them."""

from __future__ import annotations

import numpy as np

from kp_langchain import trace_from_messages
from tests.benchmarks.quality.runs import Run
from tests.benchmarks.twins import Source, tables


def source(*degrees: float, tasks: str) -> Source:
    angles = np.radians(degrees)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    trace = trace_from_messages([("user", "a?"), ("ai", "b")], domain="default")
    runs = [Run("source", task, success=True, trace=trace) for task in tasks]
    return Source(runs, vectors @ vectors.T)


def test_pairs_of_one_task_are_counted_among_those_that_are_alike() -> None:
    runs = source(0, 10, 20, 90, tasks="aabb")
    assert runs.of_one_task(0.98) == (1, 2)
    assert runs.of_one_task(0.9) == (1, 3)
    assert runs.of_one_task(-1.0) == (2, 6)


def test_a_task_is_lost_if_all_its_runs_repeat_those_of_others() -> None:
    runs = source(0, 1, 90, tasks="abc")
    assert len(runs.kept(0.9)) == 2
    assert runs.lost_and_twins(0.9) == (1, 0.0)
    assert runs.kept(0.99999) == [*runs.kept(1.1)]
    assert runs.lost_and_twins(0.99999) == (0, 2 / 3)


def test_too_few_runs_have_no_confidence_to_compare() -> None:
    runs = source(0, 1, 2, tasks="aab")
    assert runs.surer() == []
    assert [table.splitlines()[0][:4] for table in tables({"one": runs})] == ["### "] * 3
