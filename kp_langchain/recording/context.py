"""`HandlerContext`: what one handler adds to the engine that its runs go through.

`Windows` is what judging reads: confidence models, recent runs, kept runs, and the novelty memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import Settings
from kp_langchain.gate import Rescored
from kp_langchain.gate.check import JudgedRun, RecentValues
from kp_langchain.gate.judge import OFF, KeptTrace, drop_repeats
from kp_langchain.gate.run import gated_value
from kp_langchain.recording.user_calls import name_of
from kp_langchain.scoring.novelty_memory import Window
from kp_langchain.scoring.process_scorer import default_scorer
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store.kept_runs import MOST_COMPARED, follow_kept, kept_trace
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.rows import trace_key
from kp_langchain.store.run_log import log_rescored, log_scored

if TYPE_CHECKING:
    from datetime import datetime

    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import DomainPolicy, Gate
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.options import HandlerOptions
    from kp_langchain.recording.pauses import HandlerPauses
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.score_receivers import ScoreSender
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.store.jobs import Backoff
    from kp_langchain.store.vectors import Page

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class HandlerContext:
    """What is needed to build, judge and announce the runs of one handler.

    Attributes:
        options: The arguments of the handler.
        settings: The settings.
        store: Where runs are kept; None to keep nothing.
        domains: Names of the domains with weights or a policy of their own.
        policy_for: Returns the policy of a domain.
        agent_id: `kp:agent:<id>` that traces carry, if any.
        redactor: The user's function that redacts further, if any.
        paused_runs: Where what paused runs recorded waits.
        scorer: The scorer.
        windows: What its runs are judged beside.
        lane: Where the user's functions are called.
        counters: Counts what becomes of runs.
        sender: Sends to the registry; None without one.
        score_senders: Send the scores of runs to other tools.
        observers: Functions that are called with each judged run and must not wait.
        last: The newest judged run.
        n_live: The number of its items that the engine is not done with; the engine counts them.
    """

    options: HandlerOptions
    settings: Settings
    store: TraceStore | None
    domains: frozenset[str]
    policy_for: Callable[[str], DomainPolicy]
    agent_id: str | None
    redactor: Callable[[str], str] | None
    paused_runs: HandlerPauses
    scorer: Scorer
    windows: Windows
    lane: Lane
    counters: Counters
    sender: Sender | None
    score_senders: tuple[ScoreSender, ...]
    observers: list[Callable[[ScoredTrace], object]] = field(default_factory=list)
    last: ScoredTrace | None = None
    n_live: int = field(default=0, init=False)

    @property
    def is_foreign_scorer(self) -> bool:
        """Whether the scorer, its embedder or its memory is the user's own code."""
        return type(self.scorer) is not Scorer or self.scorer.calls_user_code

    @property
    def judges_with_user_code(self) -> bool:
        """Whether functions of the user are called to judge a run."""
        has_judge = self.options.outcome is not None or bool(self.options.verifiers)
        return has_judge or self.is_foreign_scorer

    @property
    def has_user_code(self) -> bool:
        """Whether any function of the user is called for a run."""
        return (
            self.judges_with_user_code
            or self.options.on_scored is not None
            or self.redactor is not None
        )

    @property
    def registry_url(self) -> str | None:
        """URL of the registry that traces are sent to; None without one."""
        return None if self.sender is None else self.sender.registry.url

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that are sent the scores of runs."""
        return tuple(sender.tool for sender in self.score_senders)

    def may_wait(self, record: RunRecord) -> bool:
        """Return whether making a run calls the user's function, or asks the store."""
        asks_store = record.ending == "paused" or bool(record.resumed_thread)
        return asks_store or self.redactor is not None

    def wait_for_scorer(self, timeout_s: float = 0.0) -> bool:
        """Wait for a model that is loading, some seconds at most; return False if it still is."""
        scorer: object = self.scorer  # the caller's own takes what time it needs
        return not isinstance(scorer, Scorer) or Scorer.wait_until_ready(scorer, timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """Call a user's function from a job of the lane.

        Raises:
            LateError: It takes longer than the limit, and is abandoned.
            BaseException: Whatever it raises.
        """
        return self.lane.call(function, self.settings.function_timeout_s)

    def for_taken_over(self) -> HandlerContext:
        """Return it as it judges runs of processes that have ended: without the user's code."""
        return replace(
            self,
            scorer=self.windows.scorer(),
            options=replace(self.options, outcome=None, verifiers=(), on_scored=None),
        )

    def count(self, scored: ScoredTrace) -> None:
        """Count a judged run by its fate; one of another process was counted there."""
        if not scored.is_taken_over:
            self.counters.add("scored")
            self.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.counters.add("over_budget")

    def announce(self, scored: ScoredTrace) -> None:
        """Log a judged run, and give it to observers, each of which may fail."""
        self._try("the log", partial(log_scored, scored))
        self._announce_to_observers(scored)
        for tool in self.tools:
            if tool not in scored.external_traces:
                self.counters.add("scores_without_trace")
                warn_once(
                    f"no trace:{tool}",
                    "%s has no trace of a run, or its id of the run cannot be known, so the score "
                    "is not sent there; counted under 'scores_without_trace'. Its tracer must be "
                    "attached to the run's root",
                    tool,
                )

    def announce_rescored(self, scored: ScoredTrace) -> bool:
        """Announce a run that was judged again; return whether the verdict changed it."""
        change = Rescored.of(scored)
        if not change.changed or scored.verdict is None:
            return False
        self._try("the log", partial(log_rescored, change, scored.verdict.source))
        self._announce_to_observers(scored)
        return True

    def _announce_to_observers(self, scored: ScoredTrace) -> None:
        for observer in self.observers:
            self._try("an observer of scored runs", partial(observer, scored))

    def _try(self, name: str, receive: Callable[[], object]) -> None:
        try:
            receive()
        except BaseException as error:  # noqa: BLE001 - the next one must get it all the same
            self.counters.report_failure("on_scored_errors", f"{name} failed", error)

    def call_on_scored(self, scored: ScoredTrace) -> None:
        """Call the user's function with a judged run; from a job of the lane."""
        on_scored = self.options.on_scored
        if on_scored is not None:
            call = partial(self.call, partial(on_scored, scored))
            self._try(f"on_scored ({name_of(on_scored)})", call)

    def wake_senders(self) -> None:
        """Have what was written sent to the registry and to other tools."""
        if self.sender is not None:
            self.sender.loop.wake()
        for sender in self.score_senders:
            sender.wake(self.counters)


# ------------------------------------------------------------------ what runs are judged beside

# Runs name their domains themselves, and 1,000 vectors take 1.7 MB.
_MOST_DOMAINS = 64
_READ_AGAIN_S = 60.0


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
        self._lock = ForkSafeLock()
        self._model: ConfidenceModel | None = None
        self._model_read_at = float("-inf")
        # By gate, with the time when the model of these values was fitted.
        self._recent_values: dict[Gate, tuple[datetime | None, RecentValues]] = {}
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
                begin with the held-out ones of the runs that it was fitted to.
        """
        since = None if model is None else model.created_at
        with self._lock:
            known = self._recent_values.get(gate)
            if known is not None and known[0] == since:
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
            if judged_runs is not None or self._store is None:
                self._recent_values[gate] = since, values
            return values

    def add(self, scored: ScoredTrace) -> None:
        """Add a judged run to the recent values that are in use."""
        for gate, (_, values) in list(self._recent_values.items()):
            value = gated_value(gate, scored.breakdown.total, scored.worth)
            values.add(JudgedRun(value, scored.counts_toward_rate, scored.pass_rate))

    def admit(self, run: ScoredTrace) -> ScoredTrace:
        """Apply the twin rule to a run, add it to the kept runs if it is kept, and return it.

        It is atomic: of two runs that repeat each other and come at the same time, one is compared
        with the other. The kept runs are read from the store when the first run passes its
        threshold. Each time another one does, what verdicts and other processes have changed since
        is read as well. After a deletion all are read anew, and none that this process knew stays.

        Args:
            run: The run. Without an `entry` it is returned as it is.
        """
        if run.decision != "kept" or run.entry is None:
            return run
        entry = run.entry._replace(trace_id=trace_key(run.entry.trace_id))
        candidate = KeptTrace.of(run, entry)
        with self._lock:
            if run.twin_similarity < OFF and self._follower is not None:
                follower, consequence = self._follower, "a new one is compared with this process's"
                self._read("the kept runs", consequence, lambda _: follower.read(self._take_kept))
            run = drop_repeats(run, candidate, self._kept)
            if run.decision == "kept":
                self._kept.remove(run.replaces)
                self._kept.put([(entry, candidate)])
        return run

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
