"""What new runs are judged beside: models, the last runs, the kept ones, and what is remembered."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import Settings
from kp_langchain.gate.check import JudgedRun, RecentValues
from kp_langchain.gate.judge import OFF, KeptTrace, drop_repeats
from kp_langchain.gate.run import gated_value
from kp_langchain.scoring.novelty_memory import Window
from kp_langchain.scoring.process_scorer import default_scorer
from kp_langchain.store.kept_runs import MOST_COMPARED, follow_kept, kept_trace
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import Gate
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore
    from kp_langchain.store.database import Database
    from kp_langchain.store.jobs import Backoff
    from kp_langchain.store.vectors import Page

# Runs name their domains themselves, and 1,000 vectors take 1.7 MB.
_MOST_DOMAINS = 64
_MOST_RATES = 200
_MOST_MODELS = 1000
_READ_AGAIN_S = 60.0
_GATES: tuple[Gate, ...] = ("score", "worth")


class Windows:
    """What the runs of one store, or of one handler without a store, are judged beside.

    Args:
        store: The store from which they are read; None without one.
        backoff: While it is pausing, the store is not asked.

    Attributes:
        models: The confidence models in force; None without a store.
        recent_runs: What the gate saw of the last runs.
        kept_memory: The kept runs.
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
        self.models: CalibratedConfidence | None = None
        if store is None:
            self.recent_runs, self.kept_memory = RecentRuns(None), KeptMemory(None, backoff)
            return

        def model_in_force(domain: str) -> ConfidenceModel | None:
            backoff.check()
            return store.models.in_force(domain)

        def recent_values(domain: str, gate: Gate, *, since: datetime | None) -> list[JudgedRun]:
            backoff.check()
            return store.recent_values(domain, gate, since=since)

        self.models = CalibratedConfidence(model_in_force)
        self.recent_runs = RecentRuns(recent_values)
        self.kept_memory = KeptMemory(store.database, backoff)

    def scorer(self) -> Scorer:
        """Return the bundled scorer, whose novelty memory is in the store.

        Raises:
            ConfigError: A setting cannot be read or used.
        """
        if self._store is None:
            return default_scorer()
        database, backoff = self._store.database, self._backoff
        with self._lock:
            if self._scorer is None:
                memory = StoredMemory(
                    database,
                    Settings().novelty_memory,
                    may_read=lambda: not backoff.is_pausing,
                    writes=False,
                )
                self._scorer = default_scorer().with_memory(memory)
            return self._scorer

    def is_remembered_by(self, scorer: object) -> bool:
        """Return whether the novelty memory of a scorer is in the store."""
        return scorer is self._scorer


# ------------------------------------------------------------------ confidence models


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
        if len(self._models) >= _MOST_MODELS:  # runs name their domains themselves
            self._models.clear()
        # Noted first, so that an unreachable store is not asked again for each run.
        self._models[domain] = (now, model)
        model = self._model_in_force(domain)
        self._models[domain] = (now, model)
        return model


# ------------------------------------------------------------------ kept runs


class _KeptRuns:
    """The kept runs of one domain.

    Args:
        database: The store that they are read from; None without one.
        domain: The domain's name.
    """

    def __init__(self, database: Database | None, domain: str) -> None:
        self._follower = None if database is None else follow_kept(database, domain)
        self.window: Window[KeptTrace] = Window(MOST_COMPARED)

    def update(self) -> None:
        """Read what the store has, if something has changed there."""
        if self._follower is not None:
            self._follower.read(self._take)

    def _take(self, page: Page[Any]) -> None:
        if page.is_anew:
            self.window.clear()
        self.window.remove([row.trace_id for row in page.rows if not row.is_kept])
        traces = [kept_trace(row) for row in page.rows if row.is_kept]
        self.window.put((trace.entry, trace) for trace in traces)


class KeptMemory:
    """The kept runs of each domain. Safe to use from several threads, and after a fork.

    They are read from the store when the first run of the domain passes its threshold. Each time
    another one does, what verdicts and other processes have changed since is read as well. After a
    deletion all are read anew, and none of those that this process knew stays.

    Args:
        database: The store that they are read from; None without one.
        backoff: While it is pausing, the store is not asked.
    """

    def __init__(self, database: Database | None, backoff: Backoff) -> None:
        self._database = database
        self._backoff = backoff
        self._lock = ForkSafeLock()
        self._domains: OrderedDict[str, _KeptRuns] = OrderedDict()

    def admit(self, run: ScoredTrace) -> ScoredTrace:
        """Return a run as it is decided on beside the kept ones, and add it to them if it is kept.

        That is one atomic act: of two runs that repeat each other and come at the same time, one is
        compared with the other.

        Args:
            run: The run. Without an `entry` it is returned as it is.
        """
        if run.decision != "kept" or run.entry is None:
            return run
        entry = run.entry._replace(trace_id=trace_key(run.entry.trace_id))
        candidate = KeptTrace.of(run, entry)
        with self._lock:
            kept_runs = self._of(run.trace.metadata.task_domain)
            if run.twin_similarity < OFF:
                self._update(kept_runs)
            run = drop_repeats(run, candidate, kept_runs.window)
            if run.decision == "kept":
                kept_runs.window.remove(run.replaces)
                kept_runs.window.put([(entry, candidate)])
        return run

    def _of(self, domain: str) -> _KeptRuns:
        kept_runs = self._domains.get(domain)
        if kept_runs is None:
            kept_runs = self._domains[domain] = _KeptRuns(self._database, domain)
        self._domains.move_to_end(domain)
        if len(self._domains) > _MOST_DOMAINS:
            self._domains.popitem(last=False)
        return kept_runs

    def _update(self, kept_runs: _KeptRuns) -> None:
        try:
            self._backoff.check()
            kept_runs.update()
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"kept:{type(error).__name__}",
                "the kept runs cannot be read from the store now (%s); new ones are compared with "
                "those of this process",
                describe_error(error),
            )


# ------------------------------------------------------------------ recent runs


class Read(Protocol):
    """Reads the last runs as `TraceStore.recent_values` does."""

    def __call__(self, domain: str, gate: Gate, *, since: datetime | None) -> Iterable[JudgedRun]:
        """Return value and fate of a domain's last runs since a time, the oldest first."""
        ...


class RecentRuns:
    """The recent values of each domain, by score and by worth. Safe to use from several threads.

    Args:
        read: Reads them from the store; None without a store.
    """

    def __init__(self, read: Read | None) -> None:
        self._read = read
        self._lock = ForkSafeLock()
        # By domain and gate, with the time when the model of these values was fitted.
        self._values: OrderedDict[tuple[str, Gate], tuple[datetime | None, RecentValues]]
        self._values = OrderedDict()

    def of(self, domain: str, gate: Gate, model: ConfidenceModel | None) -> RecentValues:
        """Return the recent values of a domain.

        Those of the model alone while the store cannot be read at first.

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
        held_out: tuple[float, ...] = ()
        if model is not None:
            held_out = model.worths if gate == "worth" else model.scores
        try:
            judged_runs = () if self._read is None else self._read(domain, gate, since=since)
        except Exception as error:  # noqa: BLE001 - an unreachable store
            warn_once(
                f"recent:{type(error).__name__}",
                "the last runs cannot be read from the store (%s); the gate's pass rate does not "
                "count them",
                describe_error(error),
            )
            return RecentValues(held_out)
        with self._lock:
            if self._values.get(key) is known:  # else another thread was faster
                self._values[key] = since, RecentValues(held_out, judged_runs)
            self._values.move_to_end(key)
            while len(self._values) > _MOST_RATES:  # runs name their domains themselves
                self._values.popitem(last=False)
            return self._values[key][1]

    def add(self, scored: ScoredTrace) -> None:
        """Add a run to those values of its domain that are in use."""
        domain, score = scored.trace.metadata.task_domain, scored.breakdown.total
        for gate in _GATES:
            with self._lock:
                known = self._values.get((domain, gate))
            if known is not None:
                value = gated_value(gate, score, scored.worth)
                known[1].add(JudgedRun(value, scored.counts_toward_rate, scored.pass_rate))
