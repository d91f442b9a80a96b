"""What a selection gains, by cases with known answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kp_langchain import Settings, trace_from_messages
from tests.benchmarks.quality.draws import LABELLED, split_by_task
from tests.benchmarks.quality.resampling import Selection, TaskResamples, mean
from tests.benchmarks.quality.runs import Run
from tests.benchmarks.quality.scores import scored
from tests.benchmarks.quality.selection import FORMS, IN_USE, WORTH, Candidates

TASKS = [f"task {number}" for number in range(40)]


def selection(successes: list[bool], tasks: list[str], kept: list[float]) -> Selection:
    return Selection(successes, tasks, kept, TaskResamples(tasks))


def width(found: Selection) -> float:
    """How wide the interval of its lift is."""
    estimate = found.lift().estimate
    assert estimate is not None
    return estimate["high"] - estimate["low"]


def test_keeping_all_runs_gains_nothing_and_keeping_the_good_ones_gains_all() -> None:
    successes = [number % 4 == 0 for number in range(40)]
    everything = selection(successes, TASKS, [1.0] * 40).lift()
    assert everything.estimate == {"value": 1.0, "low": 1.0, "high": 1.0}
    good = selection(successes, TASKS, [float(one) for one in successes])
    assert good.lift().value == pytest.approx(4.0)
    assert good.solved_per_run().value == 1.0


def test_an_interval_counts_tasks_and_not_runs() -> None:
    successes = [number % 4 != 0 for number in range(40)]
    kept = [float(number < 20) for number in range(40)]
    others = [f"{task} {copy}" for copy in range(5) for task in TASKS]
    once = width(selection(successes, TASKS, kept))
    assert width(selection(successes * 5, TASKS * 5, kept * 5)) == pytest.approx(once)
    assert width(selection(successes * 5, others, kept * 5)) < once / 1.5


def test_a_task_is_solved_once() -> None:
    found = selection([True, True, True, False], ["a", "a", "b", "c"], [1.0, 1.0, 0.0, 1.0])
    assert found.solved_per_run().value == pytest.approx(1 / 3)


def test_what_is_not_defined_has_no_figure_and_is_left_out_of_means() -> None:
    nothing_kept = selection([True, False] * 20, TASKS, [0.0] * 40)
    nothing_right = selection([False] * 40, TASKS, [1.0] * 40)
    assert nothing_kept.lift().estimate is None
    assert nothing_kept.solved_per_run().estimate is None
    assert nothing_right.lift().estimate is None
    everything = selection([True, False] * 20, TASKS, [1.0] * 40).lift()
    assert mean([everything, nothing_kept.lift()]).estimate == everything.estimate
    assert mean([nothing_kept.lift()]).estimate is None
    assert mean([]).estimate is None


class Letters:
    """Embeds a text as its number of each letter, and notes what it is asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += texts
        return np.array([[text.count(letter) for letter in "abcx"] for text in texts], np.float32)


def run_of(text: str, task: str, thoughts: Sequence[str] = ("x",)) -> Run:
    messages = [{"role": "user", "content": text}]
    messages += [{"role": "assistant", "content": thought} for thought in thoughts]
    return Run("s", task, True, trace_from_messages(messages, domain="default"))


def test_novelty_follows_the_order_of_runs_that_are_embedded_once() -> None:
    embedder = Letters()
    runs = [run_of(text, text) for text in ("aaaa", "bbbb", "aaab", "cccc")]
    source = scored("s", runs, Settings(), embedder)
    first, second, third, fourth = sorted(source.runs, key=lambda one: runs.index(one.run))
    forth = source.in_order([first, second, third, fourth])
    back = source.in_order([third, second, first])
    assert len(embedder.texts) == 4
    assert forth[0].breakdown.novelty.value == back[0].breakdown.novelty.value == 0.5
    assert forth[2].breakdown.novelty.value == pytest.approx(back[2].breakdown.novelty.value)
    assert forth[2].breakdown.nearest is not None
    assert forth[2].breakdown.nearest.trace_id == first.run.trace.id
    similarities = source.similarities([first, third, fourth])
    assert similarities[0, 1] == pytest.approx(forth[2].breakdown.nearest.similarity)
    assert similarities[0, 2] < 0.5
    without = scored("s", runs, Settings(), None)
    assert without.in_order([first])[0].breakdown.novelty.value == 0.5
    assert without.similarities([first, third]).tolist() == [[1, 0], [0, 1]]


def test_a_text_that_is_cut_before_it_is_embedded_is_compared_all_the_same() -> None:
    runs = [run_of(letter, letter, [f"{letter} x " * 1000] * 10) for letter in "ab"]
    source = scored("s", runs, Settings(), Letters())
    assert source.runs[1].breakdown.nearest is not None
    assert source.similarities(source.runs)[0, 1] > 0


@pytest.mark.parametrize("size", [31, 2 * LABELLED, 5 * LABELLED])
def test_labelled_and_later_runs_share_no_task(size: int) -> None:
    runs = [(f"task {number // 3}", number) for number in range(size)]
    labelled, further = split_by_task(runs, lambda run: run[0], seed=3)
    assert sorted(labelled + further) == sorted(runs)
    assert {task for task, _ in labelled}.isdisjoint(task for task, _ in further)
    wanted = min(LABELLED, size // 2)
    assert wanted <= len(labelled) < wanted + 3
    assert (labelled, further) == split_by_task(runs, lambda run: run[0], seed=3)
    assert (labelled, further) != split_by_task(runs, lambda run: run[0], seed=4)


def candidates() -> Candidates:
    """Thirty runs: 3 and 4 are the surest but twins, 5 is of the task of 3, 9 has the best score"""
    novelties = np.full(30, 0.5)
    novelties[4] = 0.02
    confidences = np.linspace(0.5, 0.2, 30)
    confidences[[3, 4, 5, 6]] = [0.95, 0.94, 0.9, 0.8]
    scores = np.linspace(0.3, 0.4, 30)
    scores[9], scores[29] = 0.7, 0.9
    similarities = np.eye(30)
    similarities[3, 4] = similarities[4, 3] = 0.97
    tasks = [f"task {number}" for number in range(30)]
    tasks[5] = tasks[3]
    return Candidates(
        scores=scores,
        model_scores=scores[::-1].copy(),
        confidences=confidences,
        worths=confidences * (0.5 + novelties / 2),
        novelties=novelties,
        tasks=tasks,
        similarities=similarities,
        gate_values=scores,
    )


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("score as it is", [29, 9, 28]),
        ("score with the model", [0, 20, 1]),
        ("confidence alone", [3, 4, 5]),
        (WORTH, [3, 5, 6]),
        ("confidence x novelty", [3, 5, 6]),
        ("score among the surest quarter", None),
        ("worth, a tenth of it for twins", [3, 5, 6]),
        ("worth, no twin of a kept run", [3, 5, 6]),
        ("worth, one run a task", [3, 6, 4]),
        (IN_USE, [29, 9, 28]),
    ],
)
def test_each_form_keeps_a_tenth(form: str, kept: list[int] | None) -> None:
    found = FORMS[form](candidates())
    assert len(found) == 3
    if kept is not None:
        assert found == kept
    else:  # the surest eight, and of these the best scores
        assert set(found) <= {0, 1, 2, 3, 4, 5, 6, 7}
