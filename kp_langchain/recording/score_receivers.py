"""Score receivers: tools that are sent the score of each run, beside the trace they have of it.

The tool's id of a run is looked up while the run is under way, because that is when its tracer
knows it. It is never guessed: a run without one is counted, and its score is not sent.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast
from uuid import UUID

from kp_langchain._forksafe import allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import NOT_FOUND, ConfigError, KPError, status_of
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.near_names import near_name
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.counters import total
from kp_langchain.recording.user_calls import SENDING, Lane, lane_for

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.run_record import RunRecord

log = logging.getLogger("kp_langchain")

_MOST_SEARCHES = 8
_ATTEMPTS = 4
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
        near = near_name(name, RECEIVERS)
        hint = f"did you mean {near!r}?" if near else f"choose from {', '.join(RECEIVERS)}"
        raise ConfigError(f"send_scores_to names {name!r}; {hint}")
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
                elif external is not None:
                    self.counters.add("callback_errors")
                    warn_once(
                        f"find_trace:{receiver.name}",
                        "find_trace of %s returned a %s, so the run's score is not sent there; "
                        "return an ExternalTrace or None",
                        receiver.name,
                        type(external).__name__,
                    )
        if len(root.external_traces) == len(self.receivers):
            root.searches = _MOST_SEARCHES

    @staticmethod
    def is_done(root: RunRecord) -> bool:
        """Return whether nothing more is looked up for a run."""
        return root.searches >= _MOST_SEARCHES


# The lanes of tools that did not answer the last time; handlers made per request share them.
_unanswering: weakref.WeakSet[Lane] = weakref.WeakSet()


@dataclass(slots=True, eq=False, weakref_slot=True)
class ReceiverSink:
    """Hands scored runs to one score receiver, which sends them on the pool `SENDING`.

    Attributes:
        receiver: The receiver.
        counters: Counters of run outcomes.
        max_queue: Most runs that wait to be sent.
    """

    receiver: ScoreReceiver
    counters: Counters
    max_queue: int
    _lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        name = f"kp_langchain {self.receiver.name}"
        self._lane = lane_for(("scores", id(self.receiver)), name, SENDING)
        _sinks.add(self)

    @property
    def name(self) -> str:
        """Its name in a warning."""
        return f"sending scores to {self.receiver.name}"

    def receive(self, scored: ScoredTrace) -> None:
        """Queue a run to be sent; never waits."""
        tool = self.receiver.name
        external = scored.external_traces.get(tool)
        if external is None:
            self.counters.add("scores_without_trace")
            warn_once(
                f"no trace:{tool}",
                "%s has no trace of a run, or its id of the run cannot be known, so the score is "
                "not sent there; counted under 'scores_without_trace'. Its tracer must be attached "
                "to the run's root",
                tool,
            )
        elif self._lane.waiting >= self.max_queue:
            self.counters.add("scores_dropped")
            warn_once(
                f"scores dropped:{tool}",
                "%d scores wait to be sent to %s, so new ones are dropped and counted under "
                "'scores_dropped'",
                self.max_queue,
                tool,
            )
        else:
            self.counters.add("scores_queued")
            self._lane.submit(lambda: self._send(scored, external))

    @property
    def has_queued(self) -> bool:
        """Whether something waits to be sent, or is being sent."""
        return self.counters.counts().get("scores_queued", 0) > 0

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was queued so far is sent, or has failed.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether that was done in time.
        """
        return self._lane.wait(timeout_s)

    def _send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        # Imported here because it is slow to import, and most handlers send no scores.
        from tenacity import (
            Retrying,
            retry_if_not_exception_type,
            stop_after_attempt,
            wait_exponential,
        )

        # A tool often takes in the trace only after the run has ended. While the tool does not
        # answer at all, each further score is tried once.
        attempts = 1 if self._lane in _unanswering else _ATTEMPTS
        retrying = Retrying(
            stop=stop_after_attempt(attempts),
            retry=retry_if_not_exception_type(KPError),  # a receiver's word that it is final
            wait=wait_exponential(0.25, max=_LONGEST_PAUSE_S),
            reraise=True,
        )
        try:
            with allow_forks():
                retrying(self.receiver.send, scored, external)
        except BaseException as error:  # noqa: BLE001 - whatever the tool's package raises
            # Two errors are answers: what a receiver says is final, and a trace not there yet.
            is_answer = isinstance(error, KPError) or status_of(error) == NOT_FOUND
            (_unanswering.discard if is_answer else _unanswering.add)(self._lane)
            self.counters.add("scores_failed")
            warn_once(
                f"scores:{self.receiver.name}:{type(error).__name__}",
                "a score cannot be sent to %s (%s); counted under 'scores_failed'",
                self.receiver.name,
                describe_error(error),
            )
        else:
            _unanswering.discard(self._lane)
            self.counters.add("scores_sent")
        finally:
            self.counters.add("scores_queued", -1)


def wait_for(receivers: Iterable[ReceiverSink], timeout_s: float) -> bool:
    """Wait until the scores that were queued so far are sent, or have failed.

    Args:
        receivers: Those that have them.
        timeout_s: Seconds to wait at most, in all.

    Returns:
        Whether that was done in time.
    """
    until = time.monotonic() + timeout_s
    are_done = True
    for one in receivers:
        are_done &= one.wait(max(0.0, until - time.monotonic()))
    return are_done


def _finish(timeout_s: float) -> None:
    wait_for([one for one in list(_sinks) if one.has_queued], timeout_s)
    if unsent := total("scores_queued"):
        log.warning(
            "%d scores were not sent to other tools within %.0f s of exit. Call handler.send() "
            "before the program ends, or raise exit_timeout_s",
            unsent,
            exit_hooks.exit_timeout_s,
        )


_sinks: weakref.WeakSet[ReceiverSink] = weakref.WeakSet()
exit_hooks.at_finish["scores"] = _finish
