"""Verdicts on earlier runs that wait to be written into one store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import UnknownRunError
from kp_langchain.gate import Rescored
from kp_langchain.recording.pending import count_as_dropped, warn_of_failed_write
from kp_langchain.store.verdicts import judge_stored

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

Deliver = Callable[["ScoredTrace"], None]


@dataclass(frozen=True, slots=True)
class PendingVerdict:
    """A verdict to be written.

    Attributes:
        run: A trace id, a run id, or the beginning of either.
        verdict: The verdict; its note is redacted.
        sender: Woken when the verdict is written, if there is a registry.
        counters: Count whether it is stored.
        deliver: Given each run that was scored again, on the store's thread.
    """

    run: str
    verdict: Verdict
    sender: Sender | None
    counters: Counters
    deliver: Deliver


class PendingVerdicts:
    """A queue of verdicts. Safe to use from several threads; `write` is for the store's thread.

    Args:
        store: The store.
        max_waiting: Most verdicts that wait; of more, the oldest are dropped and counted.
        write_runs: Writes the runs that wait, one of which a verdict may be on; returns whether the
            store took them.
        on_written: Called after each verdict that was written.
    """

    def __init__(
        self,
        store: TraceStore,
        max_waiting: int,
        write_runs: Callable[[], bool],
        on_written: Callable[[], None],
    ) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._write_runs = write_runs
        self._on_written = on_written
        self._lock = ForkSafeLock()
        self._verdicts: deque[PendingVerdict] = deque()
        self._in_flight: PendingVerdict | None = None  # the one that is being written

    def __len__(self) -> int:
        return len(self._verdicts) + (self._in_flight is not None)

    def put(self, pending: PendingVerdict) -> None:
        """Add a verdict."""
        pending.counters.add("waiting_to_store")
        with self._lock:
            self._verdicts.append(pending)
            while len(self._verdicts) > self._max_waiting:
                count_as_dropped(self._verdicts.popleft().counters)

    def leave_to_parent(self) -> None:
        """Stop counting the verdicts, in a forked child: the parent writes them."""
        for pending in (*self._verdicts, self._in_flight):
            if pending is not None:
                pending.counters.add("waiting_to_store", -1)

    def write(self) -> bool:
        """Write all verdicts, each after the runs; return False, and warn, if the store fails."""
        while self._verdicts:
            if not self._write_runs():
                return False
            with self._lock:
                if not self._verdicts:
                    break  # dropped meanwhile
                pending = self._in_flight = self._verdicts.popleft()
            is_written = self._write_one(pending)
            with self._lock:
                self._in_flight = None
                if not is_written:
                    # Last, because any order will do: of verdicts on one run the newest counts.
                    self._verdicts.append(pending)
            if not is_written:
                return False
            pending.counters.add("waiting_to_store", -1)
            self._on_written()
        return True

    def _write_one(self, pending: PendingVerdict) -> bool:
        registry = pending.sender.registry.url if pending.sender else None
        counters = pending.counters
        try:
            runs = judge_stored(
                self._store.database, pending.run, pending.verdict, registry=registry
            )
        except UnknownRunError as error:
            counters.add("verdict_errors")
            warn_once(
                "verdict",
                "an outcome was reported of a run that is not known: %s",
                describe_error(error),
            )
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            warn_of_failed_write(self._store.location, "a verdict", error)
            return False
        else:
            counters.add("rescored", len(runs))
            for run in runs:
                # Only changed runs: else an `on_scored` that reports an outcome has no end.
                if Rescored.of(run).changed:
                    pending.deliver(run)
            if pending.sender is not None:
                pending.sender.wake()
        return True
