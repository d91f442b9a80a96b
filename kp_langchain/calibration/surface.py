"""`SurfaceFeature`: the size or count that alone separates successes from failures best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kp_langchain.calibration.feature_meanings import meaning_of

# Chosen on recorded runs, so that labels that follow one size but for a tenth are warned of nearly
# always and true ones rarely; `python -m tests.benchmarks.quality` counts both.
_MARGIN = 0.03
_LEAST_AUC = 0.75


@dataclass(frozen=True, slots=True)
class SurfaceFeature:
    """The size or count that alone separates successes from failures best.

    Attributes:
        feature: Its name.
        auc: Area under the ROC curve of it alone, chosen without the tasks that it is judged on.
        model_auc: That of the model, on the same runs.
    """

    feature: str
    auc: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    model_auc: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

    @property
    def warning(self) -> str | None:
        """What to say if it alone explains what the model knows; None if it does not."""
        if self.auc < max(_LEAST_AUC, self.model_auc - _MARGIN):
            return None
        return (
            f"one figure alone, {meaning_of(self.feature)}, reaches AUC {self.auc:.2f}, the model "
            f"{self.model_auc:.2f}: it may have learned little else; check that the verdicts do "
            "not simply follow that figure"
        )
