"""What the gate saw of each domain's last runs, which is read from the store at first use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.decision import gated_value
from kp_langchain.gate.recent_values import RecentValues

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.domain_policy import Gate
    from kp_langchain.scoring.breakdown import ScoreBreakdown

Read = Callable[[str, "Gate", datetime | None], Iterable[tuple[float, bool]]]
"""Returns value and fate of a domain's last runs since a time, the oldest first."""

_MOST_DOMAINS = 200


class RecentRuns:
    """The recent values of each domain, by score and by worth. Safe to use from several threads.

    Args:
        read: Reads them from the store; None without a store.
    """

    def __init__(self, read: Read | None) -> None:
        self._read = read
        self._lock = ForkSafeLock()
        self._values: OrderedDict[tuple[str, Gate], tuple[datetime | None, RecentValues]] = (
            OrderedDict()
        )

    def of(self, domain: str, gate: Gate, model: ConfidenceModel | None) -> RecentValues:
        """Return the recent values of a domain.

        Args:
            domain: The domain.
            gate: Scores or worths.
            model: The domain's model. Those of another model are not comparable, so the values
                begin with the held-out ones of the runs that it was fitted to.
        """
        since = None if model is None else model.created_at
        key = domain, gate
        with self._lock:
            known = self._values.get(key)
        if known is not None and known[0] == since:
            return known[1]
        of_model = () if model is None else _held_out(model, gate)
        values = RecentValues(of_model, self._read_safely(domain, gate, since))
        with self._lock:
            self._values[key] = since, values
            self._values.move_to_end(key)
            while len(self._values) > _MOST_DOMAINS:  # runs name their domains themselves
                self._values.popitem(last=False)
        return values

    def add(self, domain: str, breakdown: ScoreBreakdown, *, passes: bool) -> None:
        """Add a run to those values of its domain that are in use.

        Args:
            domain: The run's domain.
            breakdown: Its score.
            passes: Whether it passed.
        """
        worth = None if breakdown.worth is None else breakdown.worth.value
        with self._lock:
            in_use = [(gate, self._values.get((domain, gate))) for gate in _GATES]
        for gate, known in in_use:
            if known is not None:
                value = gated_value(gate, breakdown.total, worth)
                known[1].add(value, passes=passes)

    def _read_safely(
        self, domain: str, gate: Gate, since: datetime | None
    ) -> Iterable[tuple[float, bool]]:
        if self._read is None:
            return ()
        try:
            return self._read(domain, gate, since)
        except Exception as error:  # noqa: BLE001 - an unreachable store
            warn_once(
                f"recent:{type(error).__name__}",
                "the last runs cannot be read from the store (%s); the gate's pass rate counts "
                "only those of this process",
                describe_error(error),
            )
            return ()


def _held_out(model: ConfidenceModel, gate: Gate) -> tuple[float, ...]:
    return model.worths if gate == "worth" else model.scores


_GATES: tuple[Gate, ...] = ("score", "worth")
