"""`Engine`: everything that happens to a run after it has ended, for one store in one process.

One thread takes all that waits at once: it writes the runs (journal), judges them, writes what was
decided (settle), and announces it. Functions of the user may take their time, so what needs them is
done on the pool of `user_calls`, and comes back.

While the store cannot be written, runs are judged all the same; what is to be written waits in one
bounded queue.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from kp_langchain import redaction
from kp_langchain._forksafe import ForkSafeLock, NoForkSection
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.counters import total
from kp_langchain.recording.judging import judge_run, warn_of_unmeasured
from kp_langchain.recording.user_calls import own_thread, run_jobs_here
from kp_langchain.recording.windows import Windows
from kp_langchain.store.backoff import Backoff
from kp_langchain.store.journal import LEASE_S, can_be_written

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run
    from kp_langchain.gate.scored_trace import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.handler_context import HandlerContext
    from kp_langchain.recording.run_builder import Judge
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")

MAX_BATCH = 32
"""The most runs of one transaction."""

MOST_FAILURES = 2
"""So many writes in a row fail because of the store; one fails perhaps because of itself."""

_JUDGING_SLICE_S = 0.01  # what comes meanwhile is to be on disk soon
_IDLE_S = 10.0
_SIBLINGS_KEPT = 256
_LONGEST_WAIT_FOR_MODEL_S = 30.0


@dataclass(slots=True, eq=False)
class Work:
    """A run on its way through the engine.

    Attributes:
        context: The handler that recorded it.
        record: What it recorded; None for a run of another process.
        run: The same, redacted.
        judge: The outcome function, with the run that it is to judge.
        scored: The run once it is judged.
        is_recorded: Whether it is in the store, not judged yet.
        number: Its place in the order in which runs came.
    """

    context: HandlerContext
    record: RunRecord | None = None
    run: Run | None = None
    judge: Judge | None = None
    scored: ScoredTrace | None = None
    is_recorded: bool = False
    number: int = 0

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
            self.run, self.judge = built
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


class _Barrier:
    """Someone who waits until all that came before is done, of one handler or of all."""

    __slots__ = ("context", "is_over", "is_written", "number")

    def __init__(self, context: HandlerContext | None) -> None:
        self.context = context
        self.number = 0
        self.is_over = threading.Event()
        self.is_written = False


@dataclass(slots=True)
class _Built:
    item: Work | Write
    is_something: bool


@dataclass(slots=True)
class _Judged:
    work: Work


@dataclass(slots=True)
class _Announced:
    work: Work


_Received = Work | Write | _Barrier | _Built | _Judged | _Announced


class Engine:
    """Writes, judges and announces the runs of one store, or those of handlers without one.

    Args:
        store: The store; None to keep nothing.
        max_waiting: Most things that wait for the store; of more, the oldest are dropped and
            counted as `not_stored`.

    Attributes:
        windows: What new runs are judged beside; those of handlers without a store each have
            their own.
        expired_pauses: How many paused runs this process removed from the store.
    """

    def __init__(self, store: TraceStore | None, max_waiting: int) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._backoff = Backoff()
        self.windows = Windows(store, self._backoff)
        self.expired_pauses = 0
        self._section = NoForkSection()
        self._reset()
        _engines.add(self)

    def _reset(self) -> None:
        # In a forked child the thread is gone, and everything that waits is the parent's.
        self._incoming: queue.SimpleQueue[tuple[Engine, _Received] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._backoff.note_success()
        weakref.finalize(self, self._incoming.put, None).atexit = False
        self._number = 0
        self._live: dict[HandlerContext, set[Work | Write]] = {}  # what is not done
        self._to_record: list[Work] = []
        self._to_judge: deque[Work] = deque()
        self._to_settle: list[Work] = []
        self._writes: list[Write] = []
        self._held: deque[Work | Write] = deque()  # what the store could not take
        self._has_lost = False
        self._barriers: list[_Barrier] = []
        self._siblings: OrderedDict[UUID, frozenset[str]] = OrderedDict()
        self._for_leftovers: HandlerContext | None = None
        self._renew_at = self._look_at = 0.0
        self._model_awaited_until: float | None = None

    # ------------------------------------------------------------------ for handlers

    def waiting(self, context: HandlerContext) -> int:
        """Return about how many runs of a handler are not done."""
        return self._incoming.qsize() + len(self._live.get(context, ()))

    @property
    def has_failed_writes(self) -> bool:
        """Whether something waits that the store could not take."""
        return bool(self._held)

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
        self._incoming.put((self, item))
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
        self._incoming.put((self, barrier))
        self.start()
        if self._thread is None:
            self._run_here(barrier, timeout_s)
        return barrier.is_over.wait(timeout_s) and barrier.is_written

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is not None:
            return
        exit_hooks.watch(finish)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=_work, args=(weakref.ref(self),), name="kp_langchain", daemon=True
                )
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending: `wait` does the work
                    self._thread = None
                    log.debug("no thread can be started while the interpreter ends")

    def finish(self, until: float) -> None:
        """Finish all work before the process ends, by a time of the monotonic clock."""
        self.wait(max(0.0, until - time.monotonic()))
        if self._store is None:
            return
        live = [item for items in list(self._live.values()) for item in list(items)]
        lost = len(self._held) + sum(isinstance(one, Work) and one.is_unwritten for one in live)
        if lost:
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
                self._store.journal.release()

    # ------------------------------------------------------------------ on its thread

    def do_step(self, first: _Received | None) -> bool:
        """Do what waits; return False if there was nothing, and nothing is left to be done.

        Args:
            first: What came first; None if nothing came.
        """
        try:
            return self._step(first)
        except BaseException as error:  # noqa: BLE001 - the thread must go on
            warn_once(f"engine:{type(error).__name__}", "a step failed: %s", describe_error(error))
            return True

    def _run_here(self, barrier: _Barrier, timeout_s: float | None) -> None:
        """Do the work in this thread, at the end of an interpreter."""
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with own_thread():
            while not barrier.is_over.is_set() and time.monotonic() < until:
                if not (self.do_step(None) or run_jobs_here()):
                    time.sleep(0.001)

    def end_thread(self) -> bool:
        """Let the thread end unless something came meanwhile; return whether it does."""
        with self._lock:
            me, self._thread = self._thread, None
            if self._incoming.empty():
                return True
            self._thread = me
        return False

    @property
    def is_busy(self) -> bool:
        """Whether something is left to be done."""
        return bool(self._live or self._held)

    @property
    def timeout_s(self) -> float:
        """How long the thread may wait for something to come."""
        if self._to_record or self._to_judge or self._to_settle or self._writes:
            return 0.0
        if self._held:
            return min(self._backoff.pause_left_s, _IDLE_S)
        return LEASE_S / 3 if self._live else _IDLE_S

    def _step(self, first: _Received | None) -> bool:
        received = [] if first is None else [first]
        received += self._receive()
        with self._section:
            self._look_for_leftovers()
            for item in received:
                self._accept(item)
            self._record()
            self._judge_some()
            self._settle()
            self._do_writes()
            self._retry_held()
            self.windows.write_memories()
            self._renew_leases()
            self._release_barriers()
        return bool(received) or self.is_busy

    def _receive(self) -> Iterator[_Received]:
        with suppress(queue.Empty):
            for _ in range(MAX_BATCH):
                if (entry := self._incoming.get_nowait()) is not None:
                    yield entry[1]

    def _accept(self, item: _Received) -> None:
        match item:
            case _Barrier():
                item.number = self._number
                self._backoff.end_pause()
                self._barriers.append(item)
            case _Built():
                self._take_built(item.item, is_something=item.is_something)
            case _Judged():
                self._take_judged(item.work)
            case _Announced():
                self._finish(item.work)
            case _:
                self._begin(item)
                if (lane := item.lane) is None:
                    self._take_built(item, is_something=_build(item))
                else:
                    lane.submit(lambda: self._incoming.put((self, _Built(item, _build(item)))))

    def _begin(self, item: Work | Write) -> None:
        self._number += 1
        item.number = item.number or self._number
        self._live.setdefault(item.context, set()).add(item)

    def _take_built(self, item: Work | Write, *, is_something: bool) -> None:
        if not is_something:
            self._finish(item)
        elif isinstance(item, Work):
            self._add_sibling(item)
            self._to_record.append(item)
        else:
            self._writes.append(item)

    def _finish(self, item: Work | Write) -> None:
        of_handler = self._live.get(item.context)
        if of_handler is not None:
            of_handler.discard(item)
            if not of_handler:
                del self._live[item.context]

    def _release_barriers(self) -> None:
        for barrier in list(self._barriers):
            oldest = min(
                (
                    item.number
                    for context, items in self._live.items()
                    if barrier.context in (None, context) or context is self._for_leftovers
                    for item in items
                ),
                default=None,
            )
            if oldest is None or oldest > barrier.number:
                if self._held:  # perhaps the database was opened anew only now
                    self._backoff.end_pause()
                    self._retry_held()
                self._barriers.remove(barrier)
                barrier.is_written = not self._held and not self._has_lost
                self._has_lost = False
                barrier.is_over.set()

    # ------------------------------------------------------------------ journal

    def _record(self) -> None:
        """Write the runs that are new, and have them judged, also if that fails."""
        works, self._to_record = self._to_record, []
        if works and self._store is not None and not self._backoff.is_pausing:
            try:
                self._store.journal.record([work.run for work in works if work.run is not None])
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                self._note_failure("a run", error)
            else:
                for work in works:
                    work.is_recorded = True
        self._to_judge.extend(works)

    def _look_for_leftovers(self) -> None:
        """Take over the runs of processes that ended before they judged them."""
        store, context, now = self._store, self._for_leftovers, time.monotonic()
        if store is None or context is None or now < self._look_at or self._backoff.is_pausing:
            return
        self._look_at = now + LEASE_S
        try:
            runs = store.journal.take_over()
            self.expired_pauses += store.paused.drop_expired()
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            log.debug("nothing can be taken over now: %s", describe_error(error))
            return
        for run in runs:
            context.counters.add("adopted")
            work = Work(context, run=run, is_recorded=True)
            self._begin(work)
            self._add_sibling(work)  # it may have been remembered before its process ended
            self._to_judge.append(work)

    def _renew_leases(self) -> None:
        now = time.monotonic()
        if self._store is None or not self._live or now < self._renew_at:
            return
        is_first, self._renew_at = self._renew_at == 0.0, now + LEASE_S / 3
        if is_first:
            return
        try:
            self._store.journal.renew()
        except BaseException as error:  # noqa: BLE001 - another process judges them then
            log.debug("leases cannot be renewed: %s", describe_error(error))

    # ------------------------------------------------------------------ judge

    def _add_sibling(self, work: Work) -> None:
        # Traces of one run, as several handlers recorded it, are one experience, so none of them
        # is a precedent for the others.
        if work.run is not None:
            run_id, known = work.run.run_id, self._siblings
            known[run_id] = known.get(run_id, frozenset()) | {work.run.trace.id}
            while len(known) > _SIBLINGS_KEPT:
                known.popitem(last=False)

    def _judge_some(self) -> None:
        """Judge runs for a moment, or until others come that are to be written first."""
        until = time.monotonic() + _JUDGING_SLICE_S
        while self._to_judge:
            work = self._to_judge.popleft()
            if self._judges_in_lane(work.context):
                work.context.functions.lane.submit(lambda work=work: self._judge_in_lane(work))  # type: ignore[misc]
            else:
                self._judge(work)
                self._take_judged(work)
            if time.monotonic() >= until or not self._incoming.empty():
                return

    def _judges_in_lane(self, context: HandlerContext) -> bool:
        return (
            context.judges_with_user_code
            or context.functions.lane.waiting > 0  # else this one would overtake those
            or not context.is_scorer_ready
        )

    def _judge_in_lane(self, work: Work) -> None:
        context = work.context
        if not context.is_scorer_ready:
            # The 30 s begin with the first run, and once only: a download may hang.
            now = time.monotonic()
            until = self._model_awaited_until or now + _LONGEST_WAIT_FOR_MODEL_S
            self._model_awaited_until = until
            context.wait_for_scorer(max(0.0, until - now))
        self._judge(work)
        self._incoming.put((self, _Judged(work)))

    def _judge(self, work: Work) -> None:
        context, run = work.context, work.run
        if run is None:
            return
        siblings = self._siblings.get(run.run_id, frozenset())
        try:
            work.scored = judge_run(context, run, work.judge, siblings)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            context.functions.report_failure("failed", "a finished run cannot be scored", error)

    def _take_judged(self, work: Work) -> None:
        if not (work.run is not None and work.run.is_taken_over):
            work.context.counters.add("queued", -1)
        if work.scored is None:
            self._finish(work)
            return
        work.context.count(work.scored)
        self._to_settle.append(work)

    # ------------------------------------------------------------------ settle

    def _settle(self) -> None:
        """Write what was decided, and announce it, also if that fails."""
        works, self._to_settle = self._to_settle, []
        if not works:
            return
        if self._store is None:
            for work in works:
                self._announce(work, is_stored=False)
            return
        for work in works:
            work.context.counters.add("waiting_to_store")
        left = (
            works
            if self._backoff.is_pausing
            else self._write_judged(self._store, works, are_new=True)
        )
        for work in left:
            self._hold(work)
            self._announce(work, is_stored=False)

    def _write_judged(
        self, store: TraceStore, works: Sequence[Work], *, are_new: bool
    ) -> list[Work]:
        """Write judged runs, and announce those that are new.

        Returns:
            Those that could not be written.
        """
        if not works:
            return []
        try:
            self._write_batch(store, works, are_new=are_new)
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            if len(works) > 1:  # perhaps because of only one of them
                return self._write_one_by_one(store, works, are_new=are_new)
            if works[0].scored is not None and can_be_written(works[0].scored):
                self._note_failure("a run", error)
                return list(works)
            self._drop(works[0], error)
        return []

    def _write_one_by_one(
        self, store: TraceStore, works: Sequence[Work], *, are_new: bool
    ) -> list[Work]:
        left: list[Work] = []
        failures_in_a_row = 0
        for at, work in enumerate(works):
            if not self._write_judged(store, [work], are_new=are_new):
                failures_in_a_row = 0
                continue
            left.append(work)
            failures_in_a_row += 1
            if failures_in_a_row == MOST_FAILURES:
                return [*left, *works[at + 1 :]]
        return left

    def _write_batch(self, store: TraceStore, works: Sequence[Work], *, are_new: bool) -> None:
        journal = store.journal
        by_id = {work.scored.trace.id: work for work in works if work.scored is not None}
        recorded = [work.scored for work in works if work.is_recorded and work.scored is not None]
        others = [one.scored for one in works if not one.is_recorded and one.scored is not None]
        written: list[tuple[ScoredTrace, ScoredTrace | None]] = []
        if recorded:
            written += journal.settle(recorded)
        if others:
            journal.add(others)
            written += [(one, None) for one in others]
        self._backoff.note_success()
        for work in works:
            work.context.counters.add("waiting_to_store", -1)
        for scored, rescored in written:
            work = by_id.pop(scored.trace.id)
            work.context.wake_sender()
            if are_new:
                self._announce(work, is_stored=True)
            if rescored is not None:
                self.announce_rescored(work.context, rescored, work.number)
        for work in by_id.values():  # deleted meanwhile, or judged by another process
            self._finish(work)

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
            self._incoming.put((self, _Announced(work)))

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

    # ------------------------------------------------------------------ what waits for the store

    def _do_writes(self) -> None:
        """Write verdicts, pauses and the like, in their order."""
        writes, self._writes = self._writes, []
        # A verdict may be on a run that is held.
        is_in_the_way = any(isinstance(item, Work) for item in self._held)
        failures_in_a_row = MOST_FAILURES if self._backoff.is_pausing or is_in_the_way else 0
        for write in writes:
            if write.counters is not None:
                write.counters.add("waiting_to_store")
            if failures_in_a_row < MOST_FAILURES and self._do_write(write):
                failures_in_a_row = 0
            else:
                failures_in_a_row += 1
                self._hold(write)
                self._finish(write)

    def _do_write(self, write: Write) -> bool:
        if self._store is None:
            self._finish(write)
            return True
        try:
            write.write(self._store)
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            self._note_failure(write.what, error)
            return False
        self._backoff.note_success()
        if write.counters is not None:
            write.counters.add("waiting_to_store", -1)
        self._finish(write)
        return True

    def _hold(self, item: Work | Write) -> None:
        """Keep something for the next try; drop the oldest if too much waits."""
        self._held.append(item)
        while len(self._held) > self._max_waiting:
            self._drop(self._held.popleft(), None)

    def _drop(self, item: Work | Write, error: BaseException | None) -> None:
        counters = item.context.counters if isinstance(item, Work) else item.counters
        if counters is not None:
            counters.add("waiting_to_store", -1)
            counters.add("not_stored")
        self._has_lost = True
        if error is not None:
            location = "" if self._store is None else self._store.location
            warn_once(
                f"unwritable:{location}:{type(error).__name__}",
                "a run cannot be written into %s (%s); it is dropped and counted under "
                "'not_stored'",
                location,
                describe_error(error),
            )

    def _retry_held(self) -> None:
        """Write what the store could not take before; what fails again goes to the back."""
        store = self._store
        if store is None or self._backoff.is_pausing:
            return
        items, failures_in_a_row = self._held, 0
        failed: list[Work | Write] = []
        self._held = deque()
        while items and failures_in_a_row < MOST_FAILURES:
            works: list[Work] = []
            while items and isinstance(items[0], Work) and len(works) < MAX_BATCH:
                works.append(items.popleft())  # type: ignore[arg-type]
            left: Sequence[Work | Write] = self._write_judged(store, works, are_new=False)
            if not works and not self._do_write(write := items.popleft()):  # type: ignore[arg-type]
                left = [write]
            failed += left
            failures_in_a_row = failures_in_a_row + 1 if left else 0
        self._held = deque([*items, *failed, *self._held])

    def _note_failure(self, what: str, error: BaseException) -> None:
        """Begin a pause, and warn, once per store, thing and kind of error."""
        self._backoff.note_failure()
        location = "" if self._store is None else self._store.location
        warn_once(
            f"write:{what}:{location}:{type(error).__name__}",
            "%s cannot be kept in %s now (%s); it waits in memory and is tried again",
            what,
            location,
            describe_error(error),
        )

    def leave_to_parent(self) -> None:
        """Start anew in a forked child."""
        for item in self._held:
            counters = item.context.counters if isinstance(item, Work) else item.counters
            if counters is not None:
                counters.add("waiting_to_store", -1)
        self.windows.reset()
        self._reset()


def _work(reference: weakref.ref[Engine]) -> None:
    """Do an engine's steps, and keep it no longer than it has something to do."""
    with own_thread():
        with NoForkSection(), suppress(Exception):
            redaction.load()  # what is wrong with it, the first run tells
        while (engine := reference()) is not None:
            incoming, timeout_s = engine._incoming, engine.timeout_s  # noqa: SLF001 - same module
            busy_engine = engine if engine.is_busy else None
            del engine
            entry = None
            with suppress(queue.Empty):
                entry = incoming.get(block=timeout_s > 0, timeout=timeout_s)
            engine = busy_engine or reference()
            first = None if entry is None else entry[1]
            del busy_engine, entry
            if engine is None or not (engine.do_step(first) or not engine.end_thread()):
                return
            del engine, first


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


def finish(timeout_s: float | None = None) -> None:
    """Finish all work before this process ends: judge, store, send.

    It may be called more than once and from any thread, and never raises.

    Args:
        timeout_s: Seconds to take at most; None for the setting `exit_timeout_s`.
    """
    limit_s = exit_hooks.exit_timeout_s if timeout_s is None else timeout_s
    until = time.monotonic() + limit_s
    for engine in list(_engines):
        engine.finish(until)
    if unscored := total("queued"):
        log.warning(
            "%d finished runs were not scored within %.0f s of exit; those that are in a store are "
            "scored by the next process that records into it. Call handler.flush() before the "
            "program ends, or raise exit_timeout_s",
            unscored,
            limit_s,
        )
    if verdicts := total("queued_verdicts"):
        log.warning(
            "%d verdicts were not written within %.0f s of exit and are lost; report them again",
            verdicts,
            limit_s,
        )
    warn_of_unmeasured()
    for finish_part in list(exit_hooks.at_finish.values()):
        finish_part(max(0.0, until - time.monotonic()))


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_engines_by_store: weakref.WeakValueDictionary[TraceStore, Engine] = weakref.WeakValueDictionary()
_engines_lock = ForkSafeLock()
_storeless: Engine | None = None


def _after_fork() -> None:
    for engine in list(_engines):
        engine.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(finish)
