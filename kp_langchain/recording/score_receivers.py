"""Score receivers: tools that are sent the score of each run, beside the trace they have of it.

The tool's id of a run is looked up while the run is under way, because that is when its tracer
knows it. It is never guessed: a run without one is counted, and its score is not sent.

A score that is to be sent is a job of the kind `score NAME`, written in the transaction that
writes the judged run or its verdict. The process that wrote it has its lease and the run in memory,
and sends it. When that process ends first, the lease expires, and the next process that sends
scores to the tool reads the run from the store. Without a store, there is no such row.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast
from uuid import UUID

from kp_langchain._forksafe import ForkSafeLock, fork_gate, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError, KPError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.store.jobs import LEASE_S, SCORE, JobLoop, pause_s
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")

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
    receivers = tuple(_shared_receiver(one) if isinstance(one, str) else one for one in names)
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
_shared_receiver = cache(new_receiver)


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


class ScoreQueue:
    """The scores of the runs of one store, or of none, that are to be sent to one tool.

    Args:
        receiver: Sends them.
        store: The store; None for handlers without one.
        counters: Counts the scores that other processes left.
        max_queue: Most scores that wait in memory.

    Attributes:
        tool: The name of the tool.
        kind: The kind of its jobs.
        counters: As above.
        loop: Its thread.
        failure: The last error; empty if there was none.
    """

    def __init__(
        self,
        receiver: ScoreReceiver,
        store: TraceStore | None,
        counters: Counters,
        max_queue: int,
    ) -> None:
        self.tool = receiver.name
        self.kind = SCORE.format(self.tool)
        self.counters = counters
        self.failure = ""
        self._receiver = receiver
        self._store = store
        self._max_queue = max_queue
        failure = f"scores cannot be sent to {self.tool} now"
        self.loop = JobLoop(f"kp_scores {self.tool}", self._send_due, failure)
        self._lock = threading.Lock()
        # By trace key, the earliest first; with what counts what becomes of each.
        self._scores: dict[str, tuple[ScoredTrace, Counters]] = {}
        self._look_at, self._took_some = 0.0, False
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Start anew in a forked child."""
        for _, counters in self._scores.values():
            counters.add("scores_queued", -1)
        self._lock, self._scores = threading.Lock(), {}

    def receive(self, scored: ScoredTrace, counters: Counters) -> None:
        """Have the score of a run sent, if the tool has a trace of it; never waits.

        Args:
            scored: The run.
            counters: Counts what becomes of it.
        """
        if self._store is not None and not scored.stored:
            return  # it has no job, and is received when it is written
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
            self._put(key, scored, counters)
            self.loop.wake()

    # ------------------------------------------------------------------ on the thread of the loop

    def _send_due(self, until: float) -> float | None:
        while time.monotonic() < until:
            self._keep_jobs()
            if self._scores:
                self._send_first(until)
            elif not self._took_some:
                return None
        return 0.0

    def _keep_jobs(self) -> None:
        """Renew the leases of what waits, and take over what other processes did not send."""
        store, now = self._store, time.monotonic()
        is_more = self._took_some and not self._scores  # of many, some are taken at once
        if store is None or (now < self._look_at and not is_more):
            return
        jobs = store.journal.jobs
        if self._scores:
            jobs.renew(self.kind, list(self._scores))
        rows = jobs.take(self.kind)
        self._look_at = now + LEASE_S / 3
        self._took_some = bool(rows)
        for row in rows:
            key = row["key"]
            scored = None
            try:
                scored = store.scored(key)
            except Exception:  # noqa: BLE001 - a damaged row, or a database that is away
                if row["attempts"] < _ATTEMPTS:
                    continue
            if scored is None or self.tool not in scored.external_traces:
                jobs.end(self.kind, [key])
            elif key not in self._scores:
                self._put(key, scored, self.counters)

    def _put(self, key: str, scored: ScoredTrace, counters: Counters) -> None:
        """Have a score sent, in place of an earlier one of its run."""
        with self._lock:
            earlier = self._scores.pop(key, None)
            self._scores[key] = (scored, counters)
        counters.add("scores_queued")
        if earlier is not None:
            earlier[1].add("scores_queued", -1)

    def _send_first(self, until: float) -> None:
        with self._lock:
            key, item = next(iter(self._scores.items()))
        scored, counters = item
        if self._store is not None and not self._store.journal.jobs.renew(self.kind, [key]):
            self._remove(key, item)  # another process took it over, or has sent a later one
            return
        send = partial(self._receiver.send, scored, scored.external_traces[self.tool])
        with fork_gate.opened():  # here this thread only waits
            error = _call_until_it_succeeds(send, until)
        if error is None:
            counters.add("scores_sent")
        else:
            counters.add("scores_failed")
            self.failure = describe_error(error)
            warn_once(
                f"scores:{self.tool}:{type(error).__name__}",
                "a score cannot be sent to %s (%s); counted under 'scores_failed'",
                self.tool,
                self.failure,
            )
        if self._remove(key, item) and self._store is not None:
            self._store.journal.jobs.end(self.kind, [key])

    def _remove(self, key: str, item: tuple[ScoredTrace, Counters]) -> bool:
        """Forget a score; return False if a later one of the run waits."""
        with self._lock:
            if self._scores.get(key) is not item:
                return False
            del self._scores[key]
        item[1].add("scores_queued", -1)
        return True


def _call_until_it_succeeds(send: Callable[[], object], until: float) -> BaseException | None:
    """Call a function up to four times, with pauses; return the last error if all calls fail.

    If there is no time for another call until `until`, it raises the error.
    """
    for failures in range(1, _ATTEMPTS + 1):
        try:
            send()
        except BaseException as error:
            if failures == _ATTEMPTS or isinstance(error, KPError):  # a receiver's word is final
                return error
            rest_s = pause_s(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if time.monotonic() + rest_s >= until:
                raise
            time.sleep(rest_s)
        else:
            break
    return None


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


_queues_by_target: weakref.WeakValueDictionary[tuple[int, int], ScoreQueue] = (
    weakref.WeakValueDictionary()
)
_queues_lock = ForkSafeLock()
