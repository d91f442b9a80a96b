"""Folds of labelled runs in which a task is never in both training and test set."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.errors import MissingExtraError

_MOST_FOLDS = 10


def folds(runs: Sequence[LabelledRun]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the indices of training runs and of test runs; the same runs give the same folds.

    There are ten folds, or as many as the rarer outcome has different tasks (at least two). Each
    has about the same share of successes.

    Args:
        runs: The runs; both outcomes must occur on two different tasks at least.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    selection = import_calibrate_extra("sklearn.model_selection")
    number = min(_MOST_FOLDS, tasks_with(runs, success=True), tasks_with(runs, success=False))
    splitter = selection.StratifiedGroupKFold(number, shuffle=True, random_state=0)
    tasks = task_numbers([run.task for run in runs])
    for training, test in splitter.split(range(len(runs)), [run.success for run in runs], tasks):
        yield training.tolist(), test.tolist()


def task_numbers(tasks: Sequence[str]) -> list[int]:
    """Return a number for each task, equal where tasks are; NumPy is slow with long texts."""
    numbers = {task: number for number, task in enumerate(sorted(set(tasks)))}
    return [numbers[task] for task in tasks]


def tasks_with(runs: Sequence[LabelledRun], *, success: bool) -> int:
    """Return how many different tasks the successes have, or the failures."""
    return len({run.task for run in runs if run.success is success})


def import_calibrate_extra(module: str) -> Any:
    """Import and return a module of scikit-learn, or of scipy, which comes with it.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "learning from verdicts needs scikit-learn: pip install 'kp-langchain[calibrate]'"
        ) from error
