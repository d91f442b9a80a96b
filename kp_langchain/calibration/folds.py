"""Folds of labelled runs in which a task never stands on both sides."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.errors import MissingExtraError

_MOST = 10


def folds(runs: Sequence[LabelledRun]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the places of runs to learn from and of runs to judge by, the same each time.

    There are ten folds, or as many as the rarer outcome has different tasks (at least two); each
    has about the same share of successes.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    selection = library("sklearn.model_selection")
    number = min(_MOST, tasks_with(runs, success=True), tasks_with(runs, success=False))
    splitter = selection.StratifiedGroupKFold(number, shuffle=True, random_state=0)
    places = range(len(runs))
    tasks = numbered([run.task for run in runs])
    split = splitter.split(places, [run.success for run in runs], tasks)
    for learned, judged in split:
        yield learned.tolist(), judged.tolist()


def numbered(tasks: Sequence[str]) -> list[int]:
    """Return a number for each task, equal where tasks are; NumPy is slow with long texts."""
    numbers = {task: number for number, task in enumerate(sorted(set(tasks)))}
    return [numbers[task] for task in tasks]


def tasks_with(runs: Sequence[LabelledRun], *, success: bool) -> int:
    """Return how many different tasks the successes have, or the failures."""
    return len({run.task for run in runs if run.success is success})


def library(module: str) -> Any:
    """Return a module of scikit-learn, or of scipy, which comes with it.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "learning from verdicts needs scikit-learn: pip install 'kp-langchain[calibrate]'"
        ) from error
