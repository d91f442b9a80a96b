"""`Windows`: what judging reads beside a run, for each domain.

That is its confidence model, its recent runs, its kept runs, the runs of each task, and the novelty
memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.agreement import AGREEMENT, agreement_scale, pairs_of
from kp_langchain.calibration.model import confidence_by_agreement
from kp_langchain.config import Settings
from kp_langchain.gate.check import (
    FEWEST_VALUES,
    WINDOW,
    JudgedRun,
    RecentValues,
    tasks_repeat,
)
from kp_langchain.gate.run import gated_value
from kp_langchain.gate.twins import OFF, KeptTrace, drop_repeats
from kp_langchain.scoring.evidence import Worth
from kp_langchain.scoring.novelty_memory import Window
from kp_langchain.scoring.process_scorer import default_scorer
from kp_langchain.store.kept_runs import MOST_COMPARED, follow_kept, kept_trace, kept_with_text
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.rows import trace_key
from kp_langchain.store.task_runs import MOST_TASK_RUNS
from kp_langchain.store.vectors import Page
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from kp_langchain.calibration.agreement import Pair, TaskRun
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import Gate
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.evidence import Agreement
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore
    from kp_langchain.store.jobs import Backoff

T = TypeVar("T")

BY_AGREEMENT = "agreement with other runs of its task, without verdicts"
WITHOUT_WITNESS = "no other run of its task to compare it with yet"

# Runs name their domains themselves, and 1,000 vectors take 1.7 MB.
_MOST_DOMAINS = 64
_MOST_TASKS = 500  # of a domain; the runs of one take up to 16 KB
_READ_AGAIN_S = 60.0
_COUNTED_AFTER = 20  # runs are counted anew when a twentieth of them is new


class LastRuns:
    """Agreement and novelty of the last runs of a domain that no flag vetoes.

    Args:
        runs: Both of each run, agreement None without one; the oldest first.

    Attributes:
        compared: How many of them were compared with other runs of their task.
        tasks_repeat: Whether that is enough to wait for others of a task.
        scale: The result of `agreement_scale` for those.
        counted: How often they were counted.
    """

    def __init__(self, runs: Iterable[tuple[float | None, float]]) -> None:
        self._runs = deque(runs, WINDOW)
        self.counted = 0
        self._count()

    @property
    def number(self) -> int:
        """How many there are, at most 300."""
        return len(self._runs)

    def _count(self) -> None:
        agreements = [agreement for agreement, _ in list(self._runs) if agreement is not None]
        self.compared, self.scale = len(agreements), agreement_scale(agreements)
        self.tasks_repeat = tasks_repeat(self.compared, self.number)
        self.counted += 1
        self._added = 0

    def add(self, breakdown: ScoreBreakdown) -> None:
        """Add a run."""
        agreement = None if breakdown.agreement is None else breakdown.agreement.value
        self._runs.append((agreement, breakdown.novelty.value))
        self._added += 1
        if self._added * _COUNTED_AFTER >= len(self._runs):
            self._count()

    def worths(self) -> tuple[float, ...]:
        """Return the worths that agreement alone gives them."""
        return tuple(
            Worth.of(confidence_by_agreement(agreement, self.scale), novelty).value
            for agreement, novelty in list(self._runs)
        )


class DomainWindow:
    """What the runs of one domain are judged beside. Safe to use from several threads.

    Args:
        domain: The domain.
        store: The store that it is read from; None without one.
        backoff: While it is pausing, the store is not asked.
    """

    def __init__(self, domain: str, store: TraceStore | None, backoff: Backoff) -> None:
        self._domain = domain
        self._store = store
        self._backoff = backoff
        self._lock, self._kept_lock = ForkSafeLock(), ForkSafeLock()
        self._model: ConfidenceModel | None = None
        self._model_read_at = float("-inf")
        # By gate, with the time when the model of these values was fitted.
        self._recent_values: dict[Gate, tuple[datetime | None, RecentValues]] = {}
        self._known_last_runs: LastRuns | None = None
        self._last_runs_read_at = float("-inf")
        self._has_read_waiting = False
        self._counted = 0
        # By task and namespace, when they were read, and the runs, the newest first.
        self._tasks: OrderedDict[tuple[str, str | None], tuple[float, list[TaskRun]]]
        self._tasks = OrderedDict()
        self._kept: Window[KeptTrace] = Window(MOST_COMPARED)
        self._follower = None if store is None else follow_kept(store.database, domain)

    def _read(self, what: str, consequence: str, read: Callable[[TraceStore], T]) -> T | None:
        """Return what `read` does; None, and warn, if the store cannot be read; None without it."""
        if self._store is None:
            return None
        try:
            self._backoff.check()
            return read(self._store)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server, a broken model
            warn_once(
                f"read {what}:{type(error).__name__}",
                "%s cannot be read from the store now (%s); %s",
                what,
                describe_error(error),
                consequence,
            )
            return None

    def model(self) -> ConfidenceModel | None:
        """Return the confidence model in force; None without one.

        It is read again after a minute. While it cannot be read, the earlier one stays. A model
        that was fitted to other features counts as none.
        """
        now = time.monotonic()
        if now >= self._model_read_at + _READ_AGAIN_S:
            # Noted first, so that an unreachable store is not asked again for each run.
            self._model_read_at = now
            consequence = "runs get the one that was read before, if it is still in force"
            self._read("the confidence model", consequence, self._read_model)
        return self._model

    def _read_model(self, store: TraceStore) -> None:
        model = store.models.in_force(self._domain)
        self._model = model if model is not None and model.is_current else None
        if model is not None:
            model.check_current()  # so that it is told

    def recent_values(self, gate: Gate, model: ConfidenceModel | None) -> RecentValues:
        """Return the scores or worths of the last runs.

        Those of the model alone while the store cannot be read at first.

        Args:
            gate: Scores or worths.
            model: The domain's model. Those of another model are not comparable, so the values
                begin with the held-out ones of the runs that it was fitted to. Without a model, the
                worths are those that agreement alone gives the last runs now: it is relative to
                that of other runs.
        """
        since = None if model is None else model.created_at
        last_runs = self._last_runs()
        is_relative = gate == "worth" and model is None
        with self._lock:
            known = self._recent_values.get(gate)
            if known is not None and known[0] == since:
                if is_relative and self._counted != last_runs.counted:
                    self._counted = last_runs.counted
                    known[1].replace(last_runs.worths())
                return known[1]
            held_out: tuple[float, ...] = ()
            if model is not None:
                held_out = model.worths if gate == "worth" else model.scores
            judged_runs = self._read(
                "the last runs",
                "the gate's pass rate does not count them",
                lambda store: store.recent_values(self._domain, gate, since=since),
            )
            values = RecentValues(held_out, judged_runs or ())
            if is_relative:
                self._counted = last_runs.counted
                values.replace(last_runs.worths())
            if judged_runs is not None or self._store is None:
                self._recent_values[gate] = since, values
            return values

    # ------------------------------------------------------------------ runs of one task

    def compare(
        self, run: TaskRun, key: tuple[str, str | None], *, is_fresh: bool = False
    ) -> list[Pair]:
        """Return the runs that a new run is compared with, and remember it for those that follow.

        Args:
            run: The run.
            key: Its task and its namespace.
            is_fresh: Whether to see at once what verdicts, deletions and other processes changed;
                else that is seen within a minute.
        """
        now = time.monotonic()
        with self._lock:
            read_at, runs = self._tasks.pop(key, (float("-inf"), []))
            if is_fresh or now >= read_at + _READ_AGAIN_S:
                stored = self._read(
                    "the runs of a task",
                    "a new one is compared with this process's",
                    lambda store: store.task_runs.newest(self._domain, *key),
                )
                read_at, runs = now, runs if stored is None else stored
            pairs = pairs_of(run, runs)
            others = [one for one in runs if one.trace_id != run.trace_id]
            self._tasks[key] = read_at, [run, *others][: 2 * MOST_TASK_RUNS]
            if len(self._tasks) > _MOST_TASKS:
                self._tasks.popitem(last=False)
        return pairs

    def compares_runs(self) -> bool:
        """Return whether enough of the last runs were compared with others to gate by agreement."""
        return self._last_runs().compared >= FEWEST_VALUES["worth"]

    def goes_by_agreement(self, agreement: Agreement | None) -> bool:
        """Return whether a run without a model is gated by agreement, and not by its score.

        A run that was compared with none waits for another one of its task, where tasks repeat.

        Args:
            agreement: How far it agrees with other runs of its task.
        """
        return self.compares_runs() and (agreement is not None or self._last_runs().tasks_repeat)

    def is_new(self) -> bool:
        """Return whether there were fewer than 30 runs without a flag."""
        return self._last_runs().number < FEWEST_VALUES["score"]

    def waiting_tasks(self) -> list[tuple[str, str | None]]:
        """Return tasks and namespaces of the last runs that did not pass by their score; once.

        A process asks when it first gates a run by its worth: until there was agreement to go by,
        runs were gated by their score.
        """
        with self._lock:
            if self._has_read_waiting:
                return []
            self._has_read_waiting = True
            return (
                self._read(
                    "the runs that wait for others of their task",
                    "they wait for the next one",
                    lambda store: store.task_runs.waiting_tasks(self._domain),
                )
                or []
            )

    def estimate(
        self,
        model: ConfidenceModel | None,
        features: Mapping[str, float],
        agreement: Agreement | None,
    ) -> Verdict:
        """Return the confidence of a run's worth with its basis: by the model, or by agreement.

        Args:
            model: The domain's model; None without one.
            features: What the model reads of the run.
            agreement: How far the run agrees with other runs of its task.
        """
        evidence = None if agreement is None else agreement.evidence
        if model is not None:
            known = {} if evidence is None else {AGREEMENT: evidence}
            return Verdict(confidence=model.confidence({**features, **known}), source=model.source)
        confidence = confidence_by_agreement(evidence, self._last_runs().scale)
        return Verdict(
            confidence=confidence, source=WITHOUT_WITNESS if evidence is None else BY_AGREEMENT
        )

    def _last_runs(self) -> LastRuns:
        with self._lock:
            known, now = self._known_last_runs, time.monotonic()
            # Until there is agreement to go by, other processes' runs count as well.
            is_begun = known is not None and known.compared >= FEWEST_VALUES["worth"]
            if known is not None and (is_begun or now < self._last_runs_read_at + _READ_AGAIN_S):
                return known
            self._last_runs_read_at = now
            rows = self._read(
                "the last runs",
                "their agreement is not known",
                lambda store: store.task_runs.recent_worths(self._domain),
            )
            if rows is None and known is not None:
                return known
            last_runs = LastRuns(rows or ())
            if rows is not None or self._store is None:
                self._known_last_runs = last_runs
            return last_runs

    def add(self, scored: ScoredTrace) -> None:
        """Add a judged run to what the following ones are held against, unless a flag vetoes it.

        Args:
            scored: The run; one that was judged again only counts as one more that passes.
        """
        if scored.veto is not None:
            return
        pass_rate = scored.pass_rate
        if scored.previous is None:
            self._last_runs().add(scored.breakdown)
        else:
            pass_rate = 0.0
        for gate, (_, values) in list(self._recent_values.items()):
            value = gated_value(gate, scored.breakdown.total, scored.worth)
            values.add(JudgedRun(value, scored.counts_toward_rate, pass_rate))

    def admit(self, run: ScoredTrace, connection: Connection | None = None) -> ScoredTrace:
        """Apply the twin rule to a run, add it to the kept runs if it is kept, and return it.

        A run is admitted twice: when it is judged, beside those that this process knows, so that it
        counts for those judged after it; and within the transaction that writes it, beside those
        that all processes have kept, as verdicts and deletions left them: the newest, and all of
        the same text. What that reads, the next runs are judged beside, too.

        Args:
            run: The run. Without an `entry` it is returned as it is.
            connection: The transaction that writes it, in which no other process keeps a run of the
                domain; None when it is judged.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The kept runs cannot be read.
        """
        if run.decision != "kept" or run.entry is None:
            return run
        entry = run.entry._replace(trace_id=trace_key(run.entry.trace_id))
        candidate = KeptTrace.of(run, entry)
        # A lock of its own: under the other one, threads wait for connections, which may all be
        # with transactions that wait for this one.
        with self._kept_lock:
            if connection is not None and run.twin_similarity < OFF:
                self._read_kept(connection)
                # Also those that newer ones have taken the place of here, as after an outage.
                if not self._kept.has_text_of(entry):
                    rows = kept_with_text(connection, self._domain, entry.fingerprint)
                    self._take_kept(Page(rows, is_anew=False))
            replaced = run.replaces
            run = drop_repeats(run, candidate, self._kept)
            if run.decision == "kept":
                run = replace(run, replaces=tuple(dict.fromkeys((*replaced, *run.replaces))))
                self._kept.remove(run.replaces)
                self._kept.put([(entry, candidate)])
            else:  # although it may have been when it was judged
                self._take_back(entry.trace_id, has_replaced=bool(replaced))
                run = replace(run, replaces=())
        return run

    def read_kept(self) -> None:
        """Read the kept runs from the store, so that little is left for the transaction to read.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._kept_lock:
            self._read_kept()

    def drop(self, run: ScoredTrace) -> None:
        """Forget a run that was admitted and cannot be written."""
        with self._kept_lock:
            self._take_back(trace_key(run.trace.id), has_replaced=bool(run.replaces))

    def _take_back(self, trace_id: str, *, has_replaced: bool) -> None:
        self._kept.remove([trace_id])
        if has_replaced and self._follower is not None:  # those may be kept after all
            self._follower.restart()

    def _read_kept(self, connection: Connection | None = None) -> None:
        if self._follower is not None:
            self._follower.read(self._take_kept, connection)

    def _take_kept(self, page: Page[Any]) -> None:
        if page.is_anew:
            self._kept.clear()
        self._kept.remove([row.trace_id for row in page.rows if not row.is_kept])
        traces = [kept_trace(row) for row in page.rows if row.is_kept]
        self._kept.put((trace.entry, trace) for trace in traces)


class Windows:
    """What the runs of one store, or of one handler without a store, are judged beside.

    Args:
        store: The store from which it is read; None without one.
        backoff: While it is pausing, the store is not asked.
    """

    def __init__(self, store: TraceStore | None, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff
        self._lock = ForkSafeLock()
        self.reset()

    def reset(self) -> None:
        """Forget everything that is read from the store, as a forked child must."""
        self._scorer: Scorer | None = None
        self._domains: OrderedDict[str, DomainWindow] = OrderedDict()

    def of(self, domain: str) -> DomainWindow:
        """Return what the runs of a domain are judged beside."""
        with self._lock:
            window = self._domains.get(domain)
            if window is None:
                window = self._domains[domain] = DomainWindow(domain, self._store, self._backoff)
            self._domains.move_to_end(domain)
            if len(self._domains) > _MOST_DOMAINS:
                self._domains.popitem(last=False)
            return window

    def scorer(self, **options: Any) -> Scorer:
        """Return the bundled scorer, whose novelty memory is in the store.

        Args:
            options: Arguments of `Scorer` that it has from now on, such as another embedder.

        Raises:
            ConfigError: A setting cannot be read or used.
        """
        if self._store is None:
            return default_scorer()
        database, backoff = self._store.database, self._backoff
        with self._lock:
            if self._scorer is None or options:
                memory = StoredMemory(
                    database,
                    Settings().novelty_memory,
                    may_read=lambda: not backoff.is_pausing,
                    writes=False,
                )
                self._scorer = default_scorer().with_memory(memory, **options)
            return self._scorer

    def is_remembered_by(self, scorer: object) -> bool:
        """Return whether the novelty memory of a scorer is in the store."""
        return scorer is self._scorer
