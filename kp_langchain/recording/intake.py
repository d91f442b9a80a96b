"""Takes the runs of a handler to the engine of its store."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import warn_once
from kp_langchain.recording.engine import Engine
from kp_langchain.recording.store_writer import Item

if TYPE_CHECKING:
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class RunIntake:
    """Takes the finished and the paused runs of one handler to the engine, and verdicts.

    Attributes:
        engine: The engine of the handler's store.
        context: What the handler adds to it.
        max_queue: Most finished runs that wait, in this process.
    """

    engine: Engine
    context: HandlerContext
    max_queue: int

    def prepare(self) -> None:
        """Start the threads when the first run begins, so that it does not wait when it ends."""
        self.engine.prepare(self.context)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that ended so far are judged, stored and announced.

        Args:
            timeout_s: Seconds to wait at most; None for no limit.

        Returns:
            Whether that was done in time.
        """
        self.prepare()
        return self.engine.wait(timeout_s, self.context)

    def add_verdict(self, run: str, verdict: Verdict) -> None:
        """Take a verdict on a run that ended; it is written behind the run itself.

        Args:
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is not redacted yet.
        """
        self.context.counters.add("queued_verdicts")
        self._start_lane(is_needed=self.context.has_user_code)
        self.engine.submit(Item(self.context, "verdict", verdict=verdict, verdict_on=run))

    def add(self, record: RunRecord) -> None:
        """Take a run that ended or paused; drop it (counted) if too many wait."""
        if self.context.verifiers is not None and self.context.verifiers.asking:
            # a run started by a verifier; verifying it would recurse
            self.context.counters.add("by_verifiers")
        elif self.engine.waiting(self.context) >= self.max_queue:
            self.context.counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self.max_queue,
            )
        else:
            is_paused = record.ending == "paused"
            self.context.counters.add("paused" if is_paused else "queued")
            self._start_lane(
                is_needed=self.context.has_user_code or self.context.builder.may_wait(record)
            )
            self.engine.submit(Item(self.context, "pause" if is_paused else "run", record))

    def _start_lane(self, *, is_needed: bool) -> None:
        # When a run ends, because an interpreter that is ending starts no threads.
        if is_needed:
            self.context.functions.lane.prepare()


def engine_of(store: TraceStore | None, max_waiting: int) -> Engine:
    """Return the engine of a store, or that of all handlers without one; one for the process."""
    global _storeless_engine
    with _engines_lock:
        if store is None:
            if _storeless_engine is None:
                _storeless_engine = Engine(None, max_waiting)
            return _storeless_engine
        engine = _engines_by_store.get(store)
        if engine is None:
            engine = _engines_by_store[store] = Engine(store, max_waiting)
        return engine


_engines_by_store: weakref.WeakValueDictionary[TraceStore, Engine] = weakref.WeakValueDictionary()
_engines_lock = ForkSafeLock()
_storeless_engine: Engine | None = None
