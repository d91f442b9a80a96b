"""Score receivers: tools that are sent the score of each run, beside the trace they have of it.

The tool's id of a run is looked up while the run is under way, because that is when its tracer
knows it. It is never guessed: a run without one is counted, and its score is not sent.

A score that is to be sent is a job of the kind `score NAME`, written in the transaction that
writes the judged run or its verdict. The process that wrote it has its lease, and sends it. When
that process ends first, the lease expires, and the next process that sends scores to the tool does.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast
from uuid import UUID

from kp_langchain._forksafe import ForkSafeLock, fork_gate
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError, KPError
from kp_langchain.store.jobs import SCORE, JobLoop

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.gate.run import ExternalTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.store import TraceStore

_ATTEMPTS = 4  # a tool often takes in the trace only after the run has ended

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
            KPError: The tool refuses it for good; it is not tried again.
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


# ------------------------------------------------------------------ sending


class ScoreSender:
    """Sends the scores of the runs of one store to one tool.

    Args:
        receiver: Sends them.
        store: The store.
        counters: Counts what becomes of the scores.

    Attributes:
        tool: The name of the tool.
        kind: The kind of its jobs.
        counters: As above; from the first run on, those of the handler that wrote one last.
        loop: Its thread.
        failure: The last error; empty if there was none.
    """

    def __init__(self, receiver: ScoreReceiver, store: TraceStore, counters: Counters) -> None:
        self.tool = receiver.name
        self.kind = SCORE.format(self.tool)
        self.counters = counters
        self.failure = ""
        self._receiver = receiver
        self._store = store
        failure = f"scores cannot be sent to {self.tool} now"
        self.loop = JobLoop(f"kp_scores {self.tool}", self._send_due, failure)

    def wake(self, counters: Counters) -> None:
        """Have what was written sent; never waits.

        Args:
            counters: Counts what becomes of it.
        """
        self.counters = counters
        self.loop.wake()

    def _send_due(self, until: float) -> float | None:
        while time.monotonic() < until:
            job = self._store.journal.jobs.take_first(self.kind)
            if job is None:
                return None
            self._send(job)
        return 0.0

    def _send(self, job: dict[str, Any]) -> None:
        """Send the score of one run.

        Raises:
            Exception: What failed; it is tried again, after other scores.
        """
        is_last_attempt = job["attempts"] >= _ATTEMPTS
        try:
            scored = self._store.scored(job["key"])
        except Exception:
            if not is_last_attempt:
                raise
            scored = None  # a damaged row
        external = None if scored is None else scored.external_traces.get(self.tool)
        if scored is not None and external is not None:
            try:
                with fork_gate.opened():  # here this thread only waits
                    self._receiver.send(scored, external)
            except BaseException as error:
                is_final = isinstance(error, KPError) or not isinstance(error, Exception)
                if not (is_last_attempt or is_final):
                    raise
                self._count_failure(error)
            else:
                self.counters.add("scores_sent")
        self._store.journal.jobs.end(job)

    def _count_failure(self, error: BaseException) -> None:
        self.counters.add("scores_failed")
        self.failure = describe_error(error)
        warn_once(
            f"scores:{self.tool}:{type(error).__name__}",
            "a score cannot be sent to %s (%s); counted under 'scores_failed'",
            self.tool,
            self.failure,
        )


def score_sender(receiver: ScoreReceiver, store: TraceStore, counters: Counters) -> ScoreSender:
    """Return the sender of a receiver, which the handlers of a store share."""
    with _senders_lock:
        key = (id(receiver), id(store))  # both live as long as their sender
        sender = _senders_by_target.get(key)
        if sender is None:
            sender = _senders_by_target[key] = ScoreSender(receiver, store, counters)
    return sender


_senders_by_target: weakref.WeakValueDictionary[tuple[int, int], ScoreSender] = (
    weakref.WeakValueDictionary()
)
_senders_lock = ForkSafeLock()
