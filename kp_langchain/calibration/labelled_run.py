"""`LabelledRun`: a scored run with a verdict on its success."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kp_langchain.calibration.features import FEATURES_VERSION, PROVES_FAILURE, VERSION


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """The figures of a run with a verdict; its text need not be stored any more.

    Attributes:
        task: The task; runs with an equal task are repeats of it.
        success: The verdict.
        features: The result of `features_of` for the run.
        looked_successful: Whether the run looked successful before any report or verdict.
        values: The values of the score's dimensions when the run was scored, by name, 0 to 1.
        created_at: When the run began.
        trace_id: The id of its trace; empty if it has none.
    """

    task: str
    success: bool
    features: Mapping[str, float]
    looked_successful: bool
    values: Mapping[str, float]
    created_at: datetime
    trace_id: str = ""

    @property
    def proves_failure(self) -> bool:
        """Whether the run itself proves that it failed; False for one stored without that."""
        return bool(self.features.get(PROVES_FAILURE, 0.0))

    @property
    def is_current(self) -> bool:
        """Whether its features are of the version that this package computes."""
        return self.features.get(VERSION, FEATURES_VERSION) == FEATURES_VERSION


def task_key(task: str | None, objective: str) -> str:
    """Return what is equal for the repeats of a task.

    Args:
        task: The hash of the run's `kp_task`; None if it has none.
        objective: The run's objective; differences in case and white space do not count.
    """
    return task or " ".join(objective.casefold().split())
