"""Sinks: whatever receives scored runs. The log, the store with its outbox, a function of the user.

A run that was scored again after a verdict reaches them like a new one; its `previous` is the run
as it was. Each sink fails alone, and its failures are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from kp_langchain._forksafe import allow_forks
from kp_langchain.gate import Rescored
from kp_langchain.recording.time_limit import name_of
from kp_langchain.score_log import log_rescored, log_scored

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.recording.user_functions import UserFunctions
    from kp_langchain.registry.sender import Sender


class Sink(Protocol):
    """Receives each scored run, and each run that was scored again.

    Attributes:
        error_counter: The counter of its failures.
        calls_user_code: Whether it calls a function of the user, which may take its time. It is
            then called on the scoring lane, after the others; else on any thread, and must not
            wait.
    """

    error_counter: ClassVar[str]
    calls_user_code: ClassVar[bool]

    @property
    def name(self) -> str:
        """Its name in a warning."""

    def receive(self, scored: ScoredTrace) -> None:
        """Take a run that was scored, or scored again if it has a `previous`."""


@dataclass(frozen=True, slots=True)
class StoreSink:
    """Hands new runs to the store's writer; the outbox is written in the same transaction.

    A rescored run is already stored: its verdict and new decision were written in one transaction.

    Attributes:
        writer: Writes into the store.
        sender: Woken when a run is written, if there is a registry.
        counters: Counters of run outcomes.
    """

    writer: StoreWriter
    sender: Sender | None
    counters: Counters
    error_counter: ClassVar[str] = "not_stored"
    calls_user_code: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Its name in a warning."""
        return f"the store at {self.writer.location}"

    def receive(self, scored: ScoredTrace) -> None:
        """Hand a new run to the writer."""
        if scored.previous is None:
            self.writer.write_run(scored, self.sender, self.counters)


@dataclass(frozen=True, slots=True)
class LogSink:
    """Writes one record of each run on the logger `kp_langchain`.

    Attributes:
        has_registry: Whether what passes is contributed to a registry.
    """

    has_registry: bool
    name: ClassVar[str] = "the log"
    error_counter: ClassVar[str] = "on_scored_errors"
    calls_user_code: ClassVar[bool] = False

    def receive(self, scored: ScoredTrace) -> None:
        """Write `kp.trace_scored`, or `kp.trace_rescored` with what changed."""
        if scored.previous is None:
            log_scored(scored, has_registry=self.has_registry)
        elif scored.verdict is not None:
            log_rescored(Rescored.of(scored), scored.verdict.source, has_registry=self.has_registry)


@dataclass(frozen=True, slots=True)
class ObserverSink:
    """Calls what was added to the handler to observe its runs, such as metrics.

    Attributes:
        observers: Functions that must not wait.
    """

    observers: list[Callable[[ScoredTrace], object]] = field(default_factory=list)
    name: ClassVar[str] = "an observer of scored runs"
    error_counter: ClassVar[str] = "on_scored_errors"
    calls_user_code: ClassVar[bool] = False

    def receive(self, scored: ScoredTrace) -> None:
        """Call each of them with the run."""
        for observer in self.observers:
            observer(scored)


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """Calls the handler's `on_scored` function with each run.

    Attributes:
        function: The function.
        caller: Calls it with a time limit.
        writer: Must write the run first, because the function may read the store.
    """

    function: Callable[[ScoredTrace], object]
    caller: UserFunctions
    writer: StoreWriter | None
    error_counter: ClassVar[str] = "on_scored_errors"
    calls_user_code: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Its name in a warning."""
        return f"on_scored ({name_of(self.function)})"

    def receive(self, scored: ScoredTrace) -> None:
        """Call the function once the run is in the store, if that does not take too long."""
        if self.writer is not None:
            with allow_forks():
                self.writer.wait_until_written()
        self.caller.call(partial(self.function, scored))
