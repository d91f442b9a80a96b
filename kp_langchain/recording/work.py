"""What goes through an engine: finished runs, and what else is written into its store in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run
    from kp_langchain.gate.scored_trace import ScoredTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.handler_context import HandlerContext
    from kp_langchain.recording.run_builder import AskOutcome
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.store import TraceStore


@dataclass(slots=True, eq=False)
class Work:
    """A run on its way through the engine.

    Attributes:
        context: The handler that recorded it.
        record: What it recorded; None for a run of another process.
        run: The same, redacted.
        ask_outcome: The outcome function, with the run that it is to judge.
        scored: The run once it is judged.
        is_recorded: Whether it is in the store, not judged yet.
        number: Its place in the order in which runs came.
    """

    context: HandlerContext
    record: RunRecord | None = None
    run: Run | None = None
    ask_outcome: AskOutcome | None = None
    scored: ScoredTrace | None = None
    is_recorded: bool = False
    number: int = 0

    @property
    def counters(self) -> Counters:
        """Where it counts as waiting for the store."""
        return self.context.counters

    @property
    def is_unwritten(self) -> bool:
        """Whether it is nowhere but in this process."""
        has_begun = self.record is not None or self.run is not None
        return has_begun and self.scored is None and not self.is_recorded

    @property
    def lane(self) -> Lane | None:
        """Where `build` is called, if that may take its time."""
        builder = self.context.builder
        if self.record is None or not builder.may_wait(self.record):
            return None
        return self.context.functions.lane

    def build(self) -> bool:
        """Make the redacted run; return False if there is none, which is counted."""
        if self.record is not None:
            built = self.context.builder.build(self.record)
            self.record = None
            if built is None:
                self.context.counters.add("queued", -1)
                return False
            self.run, self.ask_outcome = built
        return True


class Write(Protocol):
    """Something else that is written into the store, in its turn.

    Attributes:
        context: The handler that it comes from.
        number: Its place in the order in which things came.
    """

    context: HandlerContext
    number: int

    @property
    def what(self) -> str:
        """What it is, such as `a verdict`."""

    @property
    def counters(self) -> Counters | None:
        """Where it counts as waiting for the store; None if it is not counted."""

    @property
    def lane(self) -> Lane | None:
        """Where `build` is called, if that may take its time."""

    def build(self) -> bool:
        """Make what is to be written; return False if there is nothing."""

    def write(self, store: TraceStore) -> None:
        """Write it; called on the engine's thread.

        Raises:
            StoreError: The store cannot be written; it is tried again.
        """
