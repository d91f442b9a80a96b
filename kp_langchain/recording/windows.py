"""What new runs are judged beside: models, the last runs, the kept ones, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.recording.kept_memory import KeptMemory
from kp_langchain.recording.outcome import CalibratedConfidence
from kp_langchain.recording.recent_runs import RecentRuns
from kp_langchain.scoring.process_scorer import default_scorer, default_scorer_with
from kp_langchain.store.stored_memory import StoredMemory

if TYPE_CHECKING:
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore
    from kp_langchain.store.backoff import Backoff

Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")


class Windows:
    """What the runs of one store, or of one handler without a store, are judged beside.

    Args:
        store: The store from which they are read; None without one.
        backoff: While it is pausing, the store is not asked.

    Attributes:
        models: The confidence models in force; None without a store.
        recent_runs: What the gate saw of the last runs.
        kept: The kept runs.
    """

    def __init__(self, store: TraceStore | None, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff
        self._lock = ForkSafeLock()
        self.reset()

    def reset(self) -> None:
        """Forget everything that is read from the store, as a forked child must."""
        store, backoff = self._store, self._backoff
        self._scorer: Scorer | None = None
        self._unwritten: set[StoredMemory] = set()
        self.models: CalibratedConfidence | None = None
        if store is None:
            self.recent_runs, self.kept = RecentRuns(None), KeptMemory(None, backoff)
            return
        self.models = CalibratedConfidence(
            _unless_down(backoff, lambda domain: store.models.in_force(domain))
        )
        self.recent_runs = RecentRuns(_unless_down(backoff, store.recent_values))
        self.kept = KeptMemory(store.database, backoff)

    def scorer(self) -> Scorer:
        """Return the bundled scorer, whose novelty memory is in the store.

        Raises:
            ConfigError: A setting cannot be read or used.
        """
        if self._store is None:
            return default_scorer()
        database, backoff = self._store.database, self._backoff

        def memory_of(scope: str, max_remembered: int, ttl_ms: float | None) -> StoredMemory:
            return StoredMemory(
                database,
                scope,
                max_remembered,
                ttl_ms,
                may_read=lambda: not backoff.is_pausing,
                write=self._unwritten.add,
            )

        with self._lock:
            if self._scorer is None:
                self._scorer = default_scorer_with(memory_of)
            return self._scorer

    def write_memories(self) -> None:
        """Write what is remembered for novelty, unless that failed a moment ago."""
        for memory in list(self._unwritten):
            self._unwritten.discard(memory)  # another thread may add it meanwhile
            memory.write()
            if memory.unwritten:
                self._unwritten.add(memory)

    def unwritten_memories(self) -> int:
        """Return how many traces are remembered for novelty in this process alone."""
        return sum(memory.unwritten for memory in list(self._unwritten))


def _unless_down(
    backoff: Backoff, read: Callable[Parameters, Answer]
) -> Callable[Parameters, Answer]:
    """Return a function that reads unless the store failed a moment ago."""

    def read_unless_down(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        backoff.check()
        return read(*args, **kwargs)

    return read_unless_down
