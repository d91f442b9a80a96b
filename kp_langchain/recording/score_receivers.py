"""Score receivers: tools that are sent the score of each run, beside the trace they have of it.

The tool's id of a run is looked up while the run is under way, because that is when its tracer
knows it. It is never guessed: a run without one is counted, and its score is not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.near_names import near_name

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.run_record import RunRecord

_MOST_SEARCHES = 8

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
