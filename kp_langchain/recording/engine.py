"""`Engine`: everything that happens to a run after it has ended, for one store in one process.

One thread takes all that waits at once: it writes the runs (journal), judges them, writes what was
decided (settle), and announces it. Functions of the user may take their time, so what needs them is
done on the pool of `user_calls`, and comes back.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.bounds import total
from kp_langchain.recording.judge_queue import JudgeQueue
from kp_langchain.recording.judging import warn_of_unmeasured
from kp_langchain.recording.store_writer import Settled, StoreWriter
from kp_langchain.recording.windows import Windows
from kp_langchain.recording.work import Work
from kp_langchain.recording.worker import Worker
from kp_langchain.store.backoff import Backoff
from kp_langchain.store.jobs import LEASE_S

if TYPE_CHECKING:
    from kp_langchain.gate.scored_trace import ScoredTrace
    from kp_langchain.recording.handler_context import HandlerContext
    from kp_langchain.recording.work import Write
    from kp_langchain.recording.worker import Message
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")

_IDLE_S = 10.0


class _Barrier:
    """Someone who waits until all that came before is done, of one handler or of all."""

    __slots__ = ("context", "is_over", "is_written", "number")

    def __init__(self, context: HandlerContext | None) -> None:
        self.context = context
        self.number = 0
        self.is_over = threading.Event()
        self.is_written = False


class Engine(Worker):
    """Writes, judges and announces the runs of one store, or those of handlers without one.

    Args:
        store: The store; None to keep nothing.
        max_waiting: Most things that wait for the store while it cannot be written.

    Attributes:
        windows: What new runs are judged beside; those of handlers without a store each have
            their own.
        expired_pauses: How many paused runs this process removed from the store.
    """

    def __init__(self, store: TraceStore | None, max_waiting: int) -> None:
        self._store = store
        self._backoff = Backoff()
        self.windows = Windows(store, self._backoff)
        self._writer = None if store is None else StoreWriter(store, max_waiting, self._backoff)
        self.expired_pauses = 0
        super().__init__()
        self._reset()
        _engines.add(self)
        leave_in_child(self)

    def _reset(self) -> None:
        self._backoff.note_success()
        self._number = 0
        self._live: dict[HandlerContext, set[Work | Write]] = {}  # what is not done
        self._to_record: list[Work] = []
        self._judging = JudgeQueue()
        self._to_write: list[Write] = []
        self._barriers: list[_Barrier] = []
        self._for_leftovers: HandlerContext | None = None

    # ------------------------------------------------------------------ for handlers

    def waiting(self, context: HandlerContext) -> int:
        """Return about how many runs of a handler are not done."""
        return self._incoming.qsize() + len(self._live.get(context, ()))

    @property
    def has_failed_writes(self) -> bool:
        """Whether something waits that the store could not take."""
        return self._writer is not None and bool(self._writer.held)

    def prepare(self, context: HandlerContext) -> None:
        """Start the thread, which also looks for runs that other processes left unjudged.

        Args:
            context: Its scorer, counters and log are used for those.
        """
        if self._for_leftovers is None and self._store is not None:
            self._for_leftovers = context.for_leftovers()
        self.start()

    def submit(self, item: Work | Write) -> None:
        """Take a finished run, or something to be written; never blocks for long."""
        self.send(partial(self._begin, item))
        self.start()

    def wait(self, timeout_s: float | None = None, context: HandlerContext | None = None) -> bool:
        """Wait until all that was submitted so far is done, and try to write what is held.

        Args:
            timeout_s: Seconds to wait at most; None waits as long as it takes.
            context: Only what comes from this handler, and runs of processes that have ended: the
                functions of another handler may hang. None for all.

        Returns:
            Whether all is done and written.
        """
        barrier = _Barrier(context)
        self.send(partial(self._add_barrier, barrier))
        self.start()
        self.run_here(barrier.is_over, timeout_s)
        return barrier.is_over.wait(timeout_s) and barrier.is_written

    def finish(self, until: float) -> None:
        """Finish all work before the process ends, by a time of the monotonic clock."""
        self.wait(max(0.0, until - time.monotonic()))
        if self._store is None or self._writer is None:
            return
        live = [item for items in list(self._live.values()) for item in list(items)]
        lost = sum(isinstance(one, Work) and one.is_unwritten for one in live)
        if lost := lost + len(self._writer.held):
            log.warning(
                "%d finished runs and verdicts could not be kept in %s before exit and are lost",
                lost,
                self._store.location,
            )
        if forgotten := self.windows.unwritten_memories():
            log.warning(
                "%d traces could not be remembered for novelty in %s before exit; novelty will be "
                "measured without them",
                forgotten,
                self._store.location,
            )
        if live:
            with suppress(Exception):  # the leases expire
                self._store.journal.jobs.release()

    # ------------------------------------------------------------------ on its thread

    @property
    def is_busy(self) -> bool:
        """Whether something is left to be done."""
        return bool(self._live or self.has_failed_writes)

    @property
    def timeout_s(self) -> float:
        """How long the thread may wait for something to come."""
        if self._to_record or self._judging.has_work or self._to_write:
            return 0.0
        if self.has_failed_writes:
            return min(self._backoff.pause_left_s, _IDLE_S)
        return LEASE_S / 3 if self._live else _IDLE_S

    def _do_work(self, messages: list[Message]) -> None:
        self._look_for_leftovers()
        for message in messages:
            message()
        self._record()
        self._judging.judge_some(self.send, lambda: not self._incoming.empty())
        self._settle()
        self._write()
        self._retry()
        self.windows.write_memories()
        if self._writer is not None:
            self._writer.renew_leases(has_runs=bool(self._live))
        self._release_barriers()

    def _begin(self, item: Work | Write) -> None:
        self._add_live(item)
        if (lane := item.lane) is None:
            self._take_built(item, is_something=_build(item))
        else:
            lane.submit(
                lambda: self.send(partial(self._take_built, item, is_something=_build(item)))
            )

    def _add_live(self, item: Work | Write) -> None:
        self._number += 1
        item.number = item.number or self._number
        self._live.setdefault(item.context, set()).add(item)

    def _take_built(self, item: Work | Write, *, is_something: bool) -> None:
        if not is_something:
            self._finish(item)
        elif isinstance(item, Work):
            self._judging.add_sibling(item)
            self._to_record.append(item)
        else:
            self._to_write.append(item)

    def _finish(self, item: Work | Write) -> None:
        of_handler = self._live.get(item.context)
        if of_handler is not None:
            of_handler.discard(item)
            if not of_handler:
                del self._live[item.context]

    # ------------------------------------------------------------------ who waits

    def _add_barrier(self, barrier: _Barrier) -> None:
        barrier.number = self._number
        self._backoff.end_pause()
        self._barriers.append(barrier)

    def _release_barriers(self) -> None:
        for barrier in list(self._barriers):
            if self._oldest_number(barrier.context) <= barrier.number:
                continue
            if self.has_failed_writes:  # perhaps the database was opened anew only now
                self._backoff.end_pause()
                self._retry()
            self._barriers.remove(barrier)
            if self._writer is None:
                barrier.is_written = True
            else:
                barrier.is_written = not self._writer.held and not self._writer.has_lost
                self._writer.has_lost = False
            barrier.is_over.set()

    def _oldest_number(self, context: HandlerContext | None) -> float:
        numbers = [
            item.number
            for one, items in self._live.items()
            if context in (None, one) or one is self._for_leftovers
            for item in items
        ]
        return min(numbers, default=float("inf"))

    # ------------------------------------------------------------------ journal

    def _record(self) -> None:
        """Write the runs that are new, and have them judged, also if that fails."""
        works, self._to_record = self._to_record, []
        if self._writer is not None:
            self._writer.record(works)
        self._judging.add(works)

    def _look_for_leftovers(self) -> None:
        """Judge the runs of processes that ended before they did."""
        context = self._for_leftovers
        if self._writer is None or context is None:
            return
        runs, expired_pauses = self._writer.take_over()
        self.expired_pauses += expired_pauses
        for run in runs:
            context.counters.add("adopted")
            work = Work(context, run=run, is_recorded=True)
            self._add_live(work)
            self._judging.add_sibling(work)  # it may have been remembered by that process
            self._judging.add([work])

    # ------------------------------------------------------------------ settle, announce

    def _settle(self) -> None:
        """Write what was decided, and announce it, also if that fails."""
        judged = self._judging.take_judged()
        for work in judged:
            if work.scored is None:
                self._finish(work)
        works = [work for work in judged if work.scored is not None]
        if not works:
            return
        settled = Settled(left=works) if self._writer is None else self._writer.settle(works)
        for work, rescored in settled.written:
            work.context.wake_sender()
            self._announce(work, is_stored=True)
            if rescored is not None:
                self.announce_rescored(work.context, rescored, work.number)
        for work in settled.gone:
            self._finish(work)
        for work in settled.left:
            self._announce(work, is_stored=False)

    def _write(self) -> None:
        """Write verdicts, pauses and the like."""
        writes, self._to_write = self._to_write, []
        if self._writer is not None:
            self._writer.write(writes)
        for write in writes:
            self._finish(write)

    def _retry(self) -> None:
        """Write what the store could not take before; it was announced then."""
        if self._writer is None:
            return
        for work, rescored in self._writer.retry().written:
            work.context.wake_sender()
            if rescored is not None:
                self.announce_rescored(work.context, rescored, work.number)

    def _announce(self, work: Work, *, is_stored: bool) -> None:
        scored, context = work.scored, work.context
        if scored is None:
            return
        if not is_stored:
            scored = work.scored = replace(scored, stored=False)
        context.last = scored
        context.announce(scored)
        if context.on_scored is None:
            self._finish(work)
        else:
            self._call_on_scored(work, scored)

    def _call_on_scored(self, work: Work, scored: ScoredTrace) -> None:
        def announce() -> None:
            work.context.call_on_scored(scored, work.number)
            self.send(partial(self._finish, work))

        work.context.functions.lane.submit(announce)

    def announce_rescored(self, context: HandlerContext, scored: ScoredTrace, number: int) -> None:
        """Announce a run that was judged again after a verdict, if that changed it.

        Args:
            context: The handler that announces it.
            scored: The run.
            number: The number of the verdict, or of the run if the verdict came first.
        """
        # Only changed runs: else an `on_scored` that reports an outcome has no end.
        if context.announce_rescored(scored) and context.on_scored is not None:
            work = Work(context, number=number)
            self._live.setdefault(context, set()).add(work)
            self._call_on_scored(work, scored)

    def leave_to_parent(self) -> None:
        """Start anew in a forked child."""
        if self._writer is not None:
            self._writer.leave_to_parent()
        self.windows.reset()
        self._reset_thread()
        self._reset()


def _build(item: Work | Write) -> bool:
    try:
        return item.build()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the next one must go on
        warn_once(f"build:{type(error).__name__}", "a job failed with %s", describe_error(error))
        return False


def engine_of(store: TraceStore | None, max_waiting: int) -> Engine:
    """Return the engine of a store, or that of all handlers without one; one for the process."""
    global _storeless
    with _engines_lock:
        if store is None:
            if _storeless is None:
                _storeless = Engine(None, max_waiting)
            return _storeless
        engine = _engines_by_store.get(store)
        if engine is None:
            engine = _engines_by_store[store] = Engine(store, max_waiting)
        return engine


def _finish_all(timeout_s: float) -> None:
    """Finish the work of all engines before the process ends."""
    until = time.monotonic() + timeout_s
    for engine in list(_engines):
        engine.finish(until)
    if unscored := total("queued"):
        log.warning(
            "%d finished runs were not scored within %.0f s of exit; those that are in a store are "
            "scored by the next process that records into it. Call handler.flush() before the "
            "program ends, or raise exit_timeout_s",
            unscored,
            exit_hooks.exit_timeout_s,
        )
    if verdicts := total("queued_verdicts"):
        log.warning(
            "%d verdicts were not written within %.0f s of exit and are lost; report them again",
            verdicts,
            exit_hooks.exit_timeout_s,
        )
    warn_of_unmeasured()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_engines_by_store: weakref.WeakValueDictionary[TraceStore, Engine] = weakref.WeakValueDictionary()
_engines_lock = ForkSafeLock()
_storeless: Engine | None = None


exit_hooks.at_finish["runs"] = _finish_all
