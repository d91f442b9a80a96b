"""`LabelledRun`: a scored run of which somebody said whether it succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kp_langchain.calibration.features import FEATURES_VERSION, VERSION


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """What is known of a run with a verdict; the run's text may be gone.

    Args:
        task: What was to be done; runs with equal task are repeats of one task.
        success: The verdict.
        features: What `features_of` gave for the run.
        looked_successful: Whether the run looked successful before anybody said anything of it.
        values: The values of the score's dimensions when the run was scored, by name, 0 to 1.
        created_at: When the run began.
    """

    task: str
    success: bool
    features: Mapping[str, float]
    looked_successful: bool
    values: Mapping[str, float]
    created_at: datetime

    @property
    def is_current(self) -> bool:
        """Whether its features are of the version that this package computes."""
        return self.features.get(VERSION, FEATURES_VERSION) == FEATURES_VERSION
