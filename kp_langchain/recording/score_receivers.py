"""Score receivers: tools that are sent the score of each run, beside the trace they have of it.

The tool's id of a run is looked up while the run is under way, because that is when its tracer
knows it. It is never guessed: a run without one is counted, and its score is not sent.

A score that is to be sent is a job of the kind `score NAME`, written in the transaction that
settles the run or its verdict. The process that wrote it has its lease and the run in memory, and
sends it. When that process ends first, the lease expires, and the next process that sends scores to
the tool reads the run from the store. Without a store, there is no such row.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast
from uuid import UUID

from kp_langchain._forksafe import ForkSafeLock, fork_gate, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import BusyError, ConfigError, KPError, StoreError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.bounds import total
from kp_langchain.recording.user_calls import JUDGING, Lane
from kp_langchain.store.jobs import LEASE_S, SCORE, JobLoop, pause_s
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")

SEND_LIMIT_S: Final = 15.0
"""How long a receiver may take for one run, in seconds; a lease lasts longer."""

_MOST_SEARCHES = 8
# A tool often takes in the trace only after the run has ended.
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 2.0

RECEIVERS: Final = {
    "langsmith": "kp_langchain.integrations.langsmith:LangSmithScores",
    "langfuse": "kp_langchain.integrations.langfuse:LangfuseScores",
    "phoenix": "kp_langchain.integrations.phoenix:PhoenixScores",
    "opik": "kp_langchain.integrations.opik:OpikScores",
    "mlflow": "kp_langchain.integrations.mlflow:MLflowScores",
    "opentelemetry": "kp_langchain.integrations.opentelemetry:OpenTelemetryScores",
}
"""The score receivers of this package, by the names that settings use."""


class ScoreReceiver(Protocol):
    """Sends the score of a run to one tool.

    Attributes:
        name: The tool's name, under which its id of a run is kept.
    """

    name: ClassVar[str]

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return where the tool records a run; called in the run, on the agent's thread.

        It must take microseconds, and import nothing.

        Args:
            root_id: LangChain's id of the root run.
            parent_id: LangChain's id of the run inside which something begins right now, or of
                the run that ends.

        Returns:
            None if the tool does not record the run, or does not know it yet.
        """

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send a run's score, or replace what was sent before; may wait.

        Args:
            scored: The run, scored or scored again.
            external: Where the tool recorded it.

        Raises:
            KPError: The tool does not take it, and would not take it a second time either.
            Exception: Anything else; it is tried again a few times.
        """


def receivers_of(names: Iterable[str | ScoreReceiver]) -> tuple[ScoreReceiver, ...]:
    """Return the receivers that are named or given.

    Raises:
        ConfigError: There is none of a name, its package is not installed, or two are for one tool.
    """
    receivers = tuple(_named(one) if isinstance(one, str) else one for one in names)
    for receiver in receivers:
        methods = [getattr(receiver, name, None) for name in ("find_trace", "send")]
        if not (all(map(callable, methods)) and isinstance(getattr(receiver, "name", None), str)):
            raise ConfigError(
                f"send_scores_to has {receiver!r}; give one of {', '.join(RECEIVERS)}, or an "
                "object with name, find_trace and send"
            )
    tools = [receiver.name for receiver in receivers]
    if len(set(tools)) < len(tools):
        raise ConfigError(f"send_scores_to names a tool twice: {', '.join(tools)}")
    return receivers


def new_receiver(name: str) -> ScoreReceiver:
    """Return a receiver of a name, as the environment configures it.

    Raises:
        ConfigError: There is none of this name, or its package is not installed.
    """
    if name not in RECEIVERS:
        raise ConfigError(f"send_scores_to names {name!r}; choose from {', '.join(RECEIVERS)}")
    return cast("ScoreReceiver", resolve_name(RECEIVERS[name])())


# One for each process, so that handlers made per request share its thread and connections.
_named = cache(new_receiver)


@dataclass(frozen=True, slots=True)
class TraceFinder:
    """Looks up, while a run is under way, where the tools record it.

    Attributes:
        receivers: One for each tool.
        counters: Counts what fails.
    """

    receivers: Sequence[ScoreReceiver]
    counters: Counters

    def __call__(self, root: RunRecord, parent_id: UUID) -> None:
        """Look a run up; called when something begins inside it, or ends.

        Args:
            root: The run.
            parent_id: The id of the run inside which something begins, or of the one that ends.
        """
        root.searches += 1
        for receiver in self.receivers:
            if receiver.name in root.external_traces:
                continue
            try:
                external: object = receiver.find_trace(root.run_id, parent_id)
            except Exception as error:  # noqa: BLE001 - the tool's package
                self.counters.add("callback_errors")
                warn_once(
                    f"find_trace:{receiver.name}:{type(error).__name__}",
                    "the trace that %s has of a run cannot be looked up (%s), so the run's score "
                    "is not sent there",
                    receiver.name,
                    describe_error(error),
                )
            else:
                if isinstance(external, ExternalTrace):
                    root.external_traces[receiver.name] = external
        if len(root.external_traces) == len(self.receivers):
            root.searches = _MOST_SEARCHES

    @staticmethod
    def is_done(root: RunRecord) -> bool:
        """Return whether nothing more is looked up for a run."""
        return root.searches >= _MOST_SEARCHES


# ------------------------------------------------------------------ sending


@dataclass(slots=True, eq=False)
class _Score:
    """A score that is to be sent.

    Attributes:
        scored: The run.
        counters: Counts what becomes of it.
        attempts: How often sending it failed.
        due_at: When it is tried next, by the monotonic clock.
    """

    scored: ScoredTrace
    counters: Counters
    attempts: int = 0
    due_at: float = 0.0


class ScoreQueue:
    """The scores of the runs of one store, or of none, that are to be sent to one tool.

    Args:
        receiver: Sends them.
        store: The store; None for handlers without one.
        counters: Counts the scores of runs of processes that have ended.
        max_queue: Most scores that wait in memory.
    """

    def __init__(
        self,
        receiver: ScoreReceiver,
        store: TraceStore | None,
        counters: Counters,
        max_queue: int,
    ) -> None:
        self.tool = receiver.name
        self._receiver = receiver
        self._store = store
        self._counters = counters
        self._max_queue = max_queue
        self._kind = SCORE.format(self.tool)
        name = f"kp_scores {self.tool}"
        # Only for its calls with a time limit: one that hangs keeps the thread of this tool alone.
        self._calls = Lane(JUDGING)
        self._loop = JobLoop(name, self._send_due, f"scores cannot be sent to {self.tool} now")
        self._lock = threading.Lock()
        self._scores: dict[str, _Score] = {}
        self._look_at = 0.0
        _queues.add(self)
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Start anew in a forked child."""
        for score in self._scores.values():
            score.counters.add("scores_queued", -1)
        self._lock, self._scores = threading.Lock(), {}

    def receive(self, scored: ScoredTrace, counters: Counters) -> None:
        """Have the score of a run sent, if the tool has a trace of it; never waits.

        Args:
            scored: The run.
            counters: Counts what becomes of it.
        """
        if self.tool not in scored.external_traces:
            counters.add("scores_without_trace")
            warn_once(
                f"no trace:{self.tool}",
                "%s has no trace of a run, or its id of the run cannot be known, so the score is "
                "not sent there; counted under 'scores_without_trace'. Its tracer must be attached "
                "to the run's root",
                self.tool,
            )
        elif len(self._scores) >= self._max_queue:
            counters.add("scores_dropped")
            warn_once(
                f"scores dropped:{self.tool}",
                "%d scores wait to be sent to %s, so new ones are dropped and counted under "
                "'scores_dropped'",
                self._max_queue,
                self.tool,
            )
        else:
            key = scored.stored_id or trace_key(scored.trace.id)
            self._put(key, _Score(scored, counters))
            self._loop.wake()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that waits is sent, or has failed; return False if that takes longer."""
        is_done = self._store is None and self._loop.is_idle  # else others may have left something
        return is_done or self._loop.drain(timeout_s)

    def wake(self) -> None:
        """Have what waits sent soon."""
        if self._scores:
            self._loop.wake()

    def release(self) -> None:
        """Let other processes send what this one has not."""
        if self._store is not None:
            self._store.journal.jobs.release(self._kind)

    # ------------------------------------------------------------------ on the thread of the loop

    def _send_due(self, until: float) -> float | None:
        self._keep_jobs()
        while time.monotonic() < until and (due := self._pop_due()) is not None:
            self._send(*due)
            self._keep_jobs()
        with self._lock:
            next_at = min((one.due_at for one in self._scores.values()), default=None)
        return None if next_at is None else max(0.0, next_at - time.monotonic())

    def _pop_due(self) -> tuple[str, _Score] | None:
        now = time.monotonic()
        with self._lock:
            for key, score in self._scores.items():
                if score.due_at <= now:
                    return key, self._scores.pop(key)
        return None

    def _keep_jobs(self) -> None:
        """Renew the leases of what waits, and take over what other processes did not send."""
        store, now = self._store, time.monotonic()
        if store is None or now < self._look_at:
            return
        self._look_at = now + LEASE_S / 3
        jobs = store.journal.jobs
        if self._scores:
            jobs.renew()
        for key in [row["key"] for row in jobs.take(self._kind)]:
            try:
                scored = store.scored(key)
            except StoreError:  # damaged: nobody can send its score
                scored = None
            if scored is None or self.tool not in scored.external_traces:
                jobs.end(self._kind, [key])
            elif key not in self._scores:
                self._put(key, _Score(scored, self._counters))

    def _put(self, key: str, score: _Score) -> None:
        """Have a score sent, in place of an earlier one of its run."""
        with self._lock:
            earlier = self._scores.pop(key, None)
            self._scores[key] = score
        score.counters.add("scores_queued")
        if earlier is not None:
            earlier.counters.add("scores_queued", -1)

    def _send(self, key: str, score: _Score) -> None:
        receiver, scored = self._receiver, score.scored
        send = partial(receiver.send, scored, scored.external_traces[self.tool])
        try:
            with fork_gate.opened():  # here this thread only waits
                self._calls.call(send, SEND_LIMIT_S)
        except BusyError:  # too many earlier calls hang, or the interpreter is ending
            self._put_off(key, score, _LONGEST_PAUSE_S)
            return
        except BaseException as error:  # noqa: BLE001 - whatever the tool's package raises
            score.attempts += 1
            # A receiver's word is final; and one that hangs is not asked for the same again.
            if score.attempts < _ATTEMPTS and not isinstance(error, KPError):
                pause = pause_s(score.attempts, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                self._put_off(key, score, pause)
                return
            score.counters.add("scores_failed")
            warn_once(
                f"scores:{self.tool}:{type(error).__name__}",
                "a score cannot be sent to %s (%s); counted under 'scores_failed'",
                self.tool,
                describe_error(error),
            )
        else:
            score.counters.add("scores_sent")
        score.counters.add("scores_queued", -1)
        if self._store is not None and key not in self._scores:
            self._store.journal.jobs.end(self._kind, [key])

    def _put_off(self, key: str, score: _Score, seconds: float) -> None:
        score.due_at = time.monotonic() + seconds
        with self._lock:
            if self._scores.setdefault(key, score) is not score:  # a later one came meanwhile
                score.counters.add("scores_queued", -1)


def score_queue(
    receiver: ScoreReceiver, store: TraceStore | None, counters: Counters, max_queue: int
) -> ScoreQueue:
    """Return the queue of a receiver, which the handlers of a store share."""
    with _queues_lock:
        key = (id(receiver), id(store))  # both live as long as their queue
        queue = _queues_by_target.get(key)
        if queue is None:
            queue = _queues_by_target[key] = ScoreQueue(receiver, store, counters, max_queue)
    return queue


def wait_for(queues: Iterable[ScoreQueue], timeout_s: float) -> bool:
    """Wait until the scores that were queued so far are sent, or have failed.

    Args:
        queues: Where they wait.
        timeout_s: Seconds to wait at most, in all.

    Returns:
        Whether that was done in time.
    """
    until = time.monotonic() + timeout_s
    queues = list(queues)
    for queue in queues:
        queue.wake()  # first, because one may have to wait for what hangs
    are_done = [queue.drain(max(0.0, until - time.monotonic())) for queue in queues]
    return all(are_done)


def _finish(timeout_s: float) -> None:
    """Send what waits before this process ends."""
    wait_for(list(_queues), timeout_s)
    if unsent := total("scores_queued"):
        for queue in list(_queues):
            with suppress(Exception):  # the leases expire
                queue.release()
        log.warning(
            "%d scores were not sent to other tools within %.0f s of exit; those of runs in a "
            "store are sent by the next process that sends scores there. Call handler.send() "
            "before the program ends, or raise exit_timeout_s",
            unsent,
            exit_hooks.exit_timeout_s,
        )


_queues: weakref.WeakSet[ScoreQueue] = weakref.WeakSet()
_queues_by_target: weakref.WeakValueDictionary[tuple[int, int], ScoreQueue] = (
    weakref.WeakValueDictionary()
)
_queues_lock = ForkSafeLock()
exit_hooks.at_finish["scores"] = _finish
