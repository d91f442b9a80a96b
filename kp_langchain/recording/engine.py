"""`Engine`: everything that happens to a run after it has ended, for one store in one process.

One thread takes all that waits at once: it writes the runs (journal), judges them, writes what was
decided, and announces it. Functions of the user may take their time, so what needs them is
done on the pool of `user_calls`, and comes back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain import redaction
from kp_langchain._forksafe import ForkSafeLock, fork_gate, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.bounds import total
from kp_langchain.recording.judging import judge_run
from kp_langchain.recording.store_writer import (
    MAX_BATCH,
    Item,
    StoreWriter,
    VerdictWrite,
    Work,
    Written,
)
from kp_langchain.recording.user_calls import mark_own_thread
from kp_langchain.recording.windows import Windows
from kp_langchain.store.jobs import JUDGE, LEASE_S, Backoff, drain_all

if TYPE_CHECKING:
    from kp_langchain.gate.run import ScoredTrace
    from kp_langchain.recording.judging import HandlerContext
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")

_IDLE_S = 10.0
_SLICE_S = 0.01  # what comes while runs are judged is to be on disk soon
_LONGEST_WAIT_FOR_MODEL_S = 30.0
_MOST_SIBLINGS = 256

Message = Callable[[], None]
"""What is done on the thread of an engine."""


@dataclass(slots=True, eq=False)
class _Barrier:
    """Someone who waits until all that came before is done, of one handler or of all."""

    context: HandlerContext | None
    number: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    is_written: bool = False


class Engine:
    """Writes, judges and announces the runs of one store, or those of handlers without one.

    Its thread begins with a message, and ends when nothing is left to be done.

    Args:
        store: The store; None to keep nothing.
        max_waiting: Most things that wait for the store while it cannot be written.
    """

    def __init__(self, store: TraceStore | None, max_waiting: int) -> None:
        self._store = store
        self._backoff = Backoff()
        self._windows = None if store is None else Windows(store, self._backoff)
        self._writer = None if store is None else StoreWriter(store, max_waiting, self._backoff)
        self._reset()
        _engines.add(self)
        leave_in_child(self)

    def _reset(self) -> None:
        self._backoff.note_success()
        self._incoming: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread_lock = threading.RLock()  # the garbage collector may end a run in `_start`
        self._thread: threading.Thread | None = None
        self._number = 0
        # All that is not done, and in which turn it is. What is in none is with a lane, or held.
        self._live: dict[HandlerContext, set[Item]] = {}
        self._to_record: list[Work] = []  # built, and in no store
        self._to_judge: deque[Work] = deque()
        self._judged: list[Work] = []
        self._verdicts: list[VerdictWrite] = []  # wait for runs that are not written yet
        self._to_write: list[Item] = []  # verdicts
        self._barriers: list[_Barrier] = []
        self._for_taken_over: HandlerContext | None = None
        self._model_awaited_until: float | None = None
        self._siblings: dict[UUID, set[str]] = {}  # the ids of the traces of a run

    def leave_to_parent(self) -> None:
        """Start anew in a forked child: the thread is gone, and what waits is the parent's."""
        if self._writer is not None:
            self._writer.leave_to_parent()
        if self._windows is not None:
            self._windows.reset()
        self._reset()

    # ------------------------------------------------------------------ for handlers

    def windows_of_handler(self) -> Windows:
        """Return what a handler's runs are judged beside: the store's, or new ones without one."""
        return self._windows or Windows(None, self._backoff)

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
        if self._for_taken_over is None and self._store is not None:
            self._for_taken_over = context.for_taken_over()
        self._start()

    def submit(self, item: Item) -> None:
        """Take a finished run, or something to be written; never blocks for long."""
        self._incoming.put(partial(self._begin, item))
        self._start()

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
        self._incoming.put(partial(self._add_barrier, barrier))
        self._start()
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        # An interpreter that is ending starts no thread, so the work is done here.
        while not self._is_running and not barrier.is_over.is_set() and time.monotonic() < until:
            if not self._step(None):
                time.sleep(0.001)
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
        if live:
            with suppress(Exception):  # the leases expire
                self._store.journal.jobs.release(JUDGE)

    # ------------------------------------------------------------------ its thread

    def _start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is not None:
            return
        exit_hooks.watch()
        with self._thread_lock, suppress(RuntimeError):  # at the end of an interpreter: see `wait`
            thread = threading.Thread(target=self._run, name="kp_langchain", daemon=True)
            if self._thread is None:  # only now, as the garbage collector may have been here
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:
                    self._thread = None
                    raise

    def _run(self) -> None:
        mark_own_thread()
        with fork_gate, suppress(Exception):
            redaction.load()  # what is wrong with it, the first run tells
        while True:
            first, timeout_s = None, self._timeout_s
            with suppress(queue.Empty):
                first = self._incoming.get(block=timeout_s > 0, timeout=timeout_s)
            if not self._step(first) and self._may_end():
                return

    @property
    def _is_running(self) -> bool:
        with self._thread_lock:
            return self._thread is not None

    def _may_end(self) -> bool:
        """Let the thread end unless something came meanwhile; return whether it does."""
        with self._thread_lock:
            me, self._thread = self._thread, None  # first: who submits looks at it afterwards
            if self._incoming.empty() or self._thread is not None:  # the garbage collector's run
                return True
            self._thread = me
            return False

    @property
    def _is_busy(self) -> bool:
        return bool(self._live or self.has_failed_writes)

    @property
    def _timeout_s(self) -> float:
        """How long the thread may wait for something to come."""
        if self._to_record or self._to_judge or self._judged or self._to_write:
            return 0.0
        if self.has_failed_writes:
            return min(self._backoff.pause_left_s, _IDLE_S)
        return LEASE_S / 3 if self._live else _IDLE_S

    def _step(self, first: Message | None) -> bool:
        """Do what waits; return False if there was nothing, and nothing is left to be done.

        Args:
            first: What came first; None if nothing came.
        """
        messages = [] if first is None else [first]
        messages += self._receive()
        try:
            with fork_gate:
                self._do_work(messages)
        except BaseException as error:  # noqa: BLE001 - the thread must go on
            warn_once(f"engine:{type(error).__name__}", "a step failed: %s", describe_error(error))
            return True
        return bool(messages) or self._is_busy

    def _receive(self) -> Iterator[Message]:
        with suppress(queue.Empty):
            for _ in range(MAX_BATCH):
                yield self._incoming.get_nowait()

    def _do_work(self, messages: list[Message]) -> None:
        self._take_over_runs()
        for message in messages:
            try:
                message()
            except Exception as error:  # noqa: BLE001 - the others must be done all the same
                warn_once(f"message:{type(error).__name__}", "%s", describe_error(error))
        self._record()
        self._judge_some()
        self._begin_verdicts()
        self._write()
        if self._writer is not None:
            self._writer.renew_leases(has_runs=bool(self._live))
        self._release_barriers()

    def _begin(self, item: Item) -> None:
        self._add_live(item)
        if isinstance(item, VerdictWrite):
            self._verdicts.append(item)
        else:
            self._start_building(item)

    def _begin_verdicts(self) -> None:
        """Begin with the verdicts before which no run of their handler is still to be written."""
        verdicts, self._verdicts = self._verdicts, []
        for verdict in verdicts:
            works = self._live.get(verdict.context, ())
            if any(
                isinstance(one, Work) and one.number < verdict.number and one.is_unwritten
                for one in works
            ):
                self._verdicts.append(verdict)
            else:
                self._start_building(verdict)

    def _start_building(self, item: Item) -> None:
        if (lane := item.lane) is None:
            self._take_built(item, is_something=_build(item))
        else:
            lane.submit(
                lambda: self._incoming.put(
                    partial(self._take_built, item, is_something=_build(item))
                )
            )

    def _add_live(self, item: Item) -> None:
        self._number += 1
        item.number = self._number
        self._live.setdefault(item.context, set()).add(item)

    def _take_built(self, item: Item, *, is_something: bool) -> None:
        if not is_something:
            self._finish(item)
        elif isinstance(item, Work):
            self._to_record.append(item)
        else:
            self._to_write.append(item)

    def _finish(self, item: Item) -> None:
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
                self._write()
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
            if context in (None, one) or one is self._for_taken_over
            for item in items
        ]
        return min(numbers, default=float("inf"))

    # ------------------------------------------------------------------ record, judge

    def _record(self) -> None:
        """Write the runs that are new, and have them judged, also if that fails."""
        works, self._to_record = self._to_record, []
        if self._writer is not None:
            self._writer.record(works)
        self._to_judge.extend(works)

    def _take_over_runs(self) -> None:
        """Judge the runs of processes that ended before they did."""
        context = self._for_taken_over
        if self._writer is None or context is None:
            return
        runs, expired_pauses = self._writer.take_over()
        context.counters.add("paused_expired", expired_pauses)
        for run in runs:
            context.counters.add("adopted")
            work = Work(context, run=run, is_recorded=True)
            self._add_live(work)
            self._to_judge.append(work)

    def _judge_some(self) -> None:
        """Judge runs for a moment, or until others come that are to be written first."""
        until = time.monotonic() + _SLICE_S
        while self._to_judge:
            work = self._to_judge.popleft()
            if _judges_in_lane(work.context):
                work.context.functions.lane.runs += 1
                work.context.functions.lane.submit(partial(self._judge_in_lane, work))
            else:
                self._judge(work)
                self._take_judged(work)
            if time.monotonic() >= until or not self._incoming.empty():
                return

    def _judge_in_lane(self, work: Work) -> None:
        context = work.context
        if not context.is_scorer_ready:
            # The 30 s begin with the first run, and once only: a download may hang.
            now = time.monotonic()
            until = self._model_awaited_until or now + _LONGEST_WAIT_FOR_MODEL_S
            self._model_awaited_until = until
            context.wait_for_scorer(max(0.0, until - now))
        self._judge(work)
        self._incoming.put(partial(self._take_from_lane, work))

    def _take_from_lane(self, work: Work) -> None:
        work.context.functions.lane.runs -= 1
        self._take_judged(work)

    def _judge(self, work: Work) -> None:
        run = work.run
        if run is None:
            return
        if len(self._siblings) >= _MOST_SIBLINGS:
            self._siblings.clear()
        of_run = self._siblings.setdefault(run.run_id, set())
        of_run.add(run.trace.id)  # at once: another lane may judge a trace of the same run
        siblings = of_run - {run.trace.id}
        try:
            work.scored = judge_run(work.context, run, work.ask_outcome, siblings)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            what = "a finished run cannot be scored"
            work.context.functions.report_failure("failed", what, error)

    def _take_judged(self, work: Work) -> None:
        work.ask_outcome = None  # it has the run in the user's own values
        if not (work.run is not None and work.run.is_taken_over):
            work.context.counters.add("queued", -1)
        if work.scored is None:
            self._finish(work)
        else:
            work.context.count(work.scored)
            self._judged.append(work)

    # ------------------------------------------------------------------ write, announce

    def _write(self) -> None:
        """Write what was decided, and verdicts; announce runs, also if that fails."""
        items = [*self._judged, *self._to_write]  # a verdict may be on one of the runs
        self._judged, self._to_write = [], []
        if self._writer is None:
            written = Written()
        elif items or self._writer.held:
            written = self._writer.write(items)
        else:
            return
        for item, changed in written.items:
            item.context.wake_senders()
            self._end(item, is_stored=True)
            for scored in changed:
                self._announce_rescored(item, scored)
        for item in written.gone:
            self._finish(item)
        done = {id(item) for item, _ in written.items} | {id(item) for item in written.gone}
        for item in items:
            if id(item) not in done:
                self._end(item, is_stored=False)

    def _end(self, item: Item, *, is_stored: bool) -> None:
        """Announce a run, once; nothing else needs that."""
        if not isinstance(item, Work) or item.scored is None:
            self._finish(item)
            return
        if item.is_announced:
            self._finish(item)
            return
        item.is_announced = True
        if not is_stored:
            item.scored = replace(item.scored, stored=False)
        item.context.last = item.scored
        item.context.announce(item.scored)
        self._call_on_scored(item, item.scored)

    def _announce_rescored(self, item: Item, scored: ScoredTrace) -> None:
        """Announce a run that a verdict changed; who waits for the verdict waits for that."""
        # Only changed runs: else an `on_scored` that reports an outcome has no end.
        if item.context.announce_rescored(scored):
            work = Work(item.context, number=item.number)
            self._live.setdefault(item.context, set()).add(work)
            self._call_on_scored(work, scored)

    def _call_on_scored(self, work: Work, scored: ScoredTrace) -> None:
        """Have the user's function called with a run, if there is one, and finish the run."""
        if work.context.on_scored is None:
            self._finish(work)
            return

        def announce() -> None:
            work.context.call_on_scored(scored)
            self._incoming.put(partial(self._finish, work))

        work.context.functions.lane.submit(announce)


def _build(item: Item) -> bool:
    try:
        return item.build()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the next one must go on
        warn_once(f"build:{type(error).__name__}", "a job failed with %s", describe_error(error))
        return False


def _judges_in_lane(context: HandlerContext) -> bool:
    return (
        context.judges_with_user_code
        or context.functions.lane.runs > 0  # after those: runs of a handler keep their order
        or not context.is_scorer_ready
    )


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


def _send_all(timeout_s: float) -> None:
    """Send what is to be sent to registries and other tools before the process ends."""
    drain_all(timeout_s)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_engines_by_store: weakref.WeakValueDictionary[TraceStore, Engine] = weakref.WeakValueDictionary()
_engines_lock = ForkSafeLock()
_storeless: Engine | None = None


exit_hooks.at_finish["runs"] = _finish_all
exit_hooks.at_finish["jobs"] = _send_all
