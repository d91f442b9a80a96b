"""The confidence that a domain's installed model gives a run that nobody judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from kp_langchain.calibration.model import ConfidenceModel

_READ_AGAIN_S = 60.0
_MAX_DOMAINS = 1000


class CalibratedConfidence:
    """The models in force in one store, each read again after a minute.

    Args:
        model_in_force: Reads a domain's model from the store.
    """

    def __init__(self, model_in_force: Callable[[str], ConfidenceModel | None]) -> None:
        self._model_in_force = model_in_force
        self._models: dict[str, tuple[float, ConfidenceModel | None]] = {}

    def model(self, domain: str) -> ConfidenceModel | None:
        """Return the model in force for a domain; None without one, or if it cannot be used.

        Args:
            domain: The run's domain.
        """
        try:
            model = self._current_model(domain)
            if model is not None:
                model.check_current()
        except Exception as error:  # noqa: BLE001 - a broken model, or an unreachable store
            warn_once(
                f"model:{type(error).__name__}",
                "no confidence model can be used for now (%s); runs get the default confidence",
                describe_error(error),
            )
            return None
        return model

    def _current_model(self, domain: str) -> ConfidenceModel | None:
        read_at, model = self._models.get(domain, (float("-inf"), None))
        now = time.monotonic()
        if now < read_at + _READ_AGAIN_S:
            return model
        if len(self._models) >= _MAX_DOMAINS:  # runs name their domains themselves
            self._models.clear()
        # Noted first, so that an unreachable store is not asked again for each run.
        self._models[domain] = (now, model)
        model = self._model_in_force(domain)
        self._models[domain] = (now, model)
        return model
