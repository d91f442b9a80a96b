"""What the gate saw of each domain's last runs, which is read from the store at first use."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.check import JudgedRun, RecentValues
from kp_langchain.gate.scored_trace import gated_value

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.domain_policy import Gate
    from kp_langchain.gate import ScoredTrace


class Read(Protocol):
    """Reads the last runs as `TraceStore.recent_values` does."""

    def __call__(self, domain: str, gate: Gate, *, since: datetime | None) -> Iterable[JudgedRun]:
        """Return value and fate of a domain's last runs since a time, the oldest first."""
        ...


_MOST_DOMAINS = 200
_READ_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Domain:
    """The recent values of one domain by one gate.

    Attributes:
        since: When the model of these values was fitted; None without a model.
        values: The values.
        read_again_at: When to read them once more, by the monotonic clock, because the store could
            not be read.
    """

    since: datetime | None
    values: RecentValues
    read_again_at: float


class RecentRuns:
    """The recent values of each domain, by score and by worth. Safe to use from several threads.

    Args:
        read: Reads them from the store; None without a store.
    """

    def __init__(self, read: Read | None) -> None:
        self._read = read
        self._lock = ForkSafeLock()
        self._domains: OrderedDict[tuple[str, Gate], _Domain] = OrderedDict()

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
            known = self._domains.get(key)
        if known is not None and known.since == since and time.monotonic() < known.read_again_at:
            return known.values
        held_out = () if model is None else _held_out(model, gate)
        judged = self._read_safely(domain, gate, since)
        read_again_at = math.inf if judged is not None else time.monotonic() + _READ_AGAIN_S
        latest = _Domain(since, RecentValues(held_out, judged or ()), read_again_at)
        with self._lock:
            if self._domains.get(key) is known:  # else another thread was faster
                self._domains[key] = latest
            self._domains.move_to_end(key)
            while len(self._domains) > _MOST_DOMAINS:  # runs name their domains themselves
                self._domains.popitem(last=False)
            return self._domains[key].values

    def add(self, scored: ScoredTrace) -> None:
        """Add a run to those values of its domain that are in use."""
        domain, score = scored.trace.metadata.task_domain, scored.breakdown.total
        with self._lock:
            in_use = [(gate, self._domains.get((domain, gate))) for gate in _GATES]
        for gate, known in in_use:
            if known is not None:
                value = gated_value(gate, score, scored.worth)
                run = JudgedRun(value, scored.is_one_more_kept, scored.pass_rate)
                known.values.add(run)

    def _read_safely(
        self, domain: str, gate: Gate, since: datetime | None
    ) -> Iterable[JudgedRun] | None:
        """Return what the store has; None if it cannot be read now."""
        if self._read is None:
            return ()
        try:
            return self._read(domain, gate, since=since)
        except Exception as error:  # noqa: BLE001 - an unreachable store
            warn_once(
                f"recent:{type(error).__name__}",
                "the last runs cannot be read from the store (%s); the gate's pass rate counts "
                "only those of this process",
                describe_error(error),
            )
            return None


def _held_out(model: ConfidenceModel, gate: Gate) -> tuple[float, ...]:
    return model.worths if gate == "worth" else model.scores


_GATES: tuple[Gate, ...] = ("score", "worth")
