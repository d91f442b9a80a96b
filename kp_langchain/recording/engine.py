"""`Engine`: everything that happens to a run after it has ended, for one store in one process.

One thread takes all that waits at once: it writes the runs (journal), judges them, writes what was
decided, and announces it. Each run and each verdict is an `Item` with a generator of its stages: it
yields the stage that it waits for, and is continued when the engine has come to that. Functions of
the user may take their time, so what needs them is done on the pool of `user_calls`, and comes
back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from kp_langchain import redaction
from kp_langchain._forksafe import fork_gate, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.outcome import inside_verifier
from kp_langchain.recording.stages import steps_of
from kp_langchain.recording.store_writer import MAX_BATCH, Item, Stage, StoreWriter
from kp_langchain.recording.user_calls import mark_own_thread
from kp_langchain.recording.windows import Windows
from kp_langchain.store.jobs import JUDGE, LEASE_S, Backoff

if TYPE_CHECKING:
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

log = logging.getLogger("kp_langchain")

_IDLE_S = 10.0
_SLICE_S = 0.01  # what comes while runs are judged is to be on disk soon
_LONGEST_WAIT_FOR_MODEL_S = 30.0

Message = Callable[[], object]
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
        max_waiting: Most things that wait for the store while it cannot be written; of more, the
            oldest are dropped and counted as `not_stored`.

    Attributes:
        windows: What the runs of the store are judged beside.
    """

    def __init__(self, store: TraceStore | None, max_waiting: int) -> None:
        self._store = store
        self._backoff = Backoff()
        self.windows = Windows(store, self._backoff)
        self._writer = None if store is None else StoreWriter(store, max_waiting, self._backoff)
        self._items: dict[Item, None] = {}
        self._reset()
        exit_hooks.engines.add(self)
        leave_in_child(self)

    def _reset(self) -> None:
        self._backoff.note_success()
        self._incoming: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread_lock = threading.RLock()  # the garbage collector may end a run in `_start`
        self._thread: threading.Thread | None = None
        self._number = 0
        self._items = {}  # all that is not done, in the order in which it came
        self._barriers: list[_Barrier] = []
        self._has_lost = False  # since the last barrier
        self._for_taken_over: HandlerContext | None = None
        self._model_awaited_until: float | None = None

    def leave_to_parent(self) -> None:
        """Start anew in a forked child: the thread is gone, and what waits is the parent's."""
        for item in self._items:
            if item.is_live:
                item.context.n_live -= 1
            if item.waits_for_store:
                item.context.counters.add("waiting_to_store", -1)
        if self._writer is not None:
            self._writer.leave_to_parent()
        self.windows.reset()
        self._reset()

    # ------------------------------------------------------------------ for handlers

    def waiting(self, context: HandlerContext) -> int:
        """Return about how many runs of a handler are not done."""
        return self._incoming.qsize() + context.n_live

    def prepare(self, context: HandlerContext) -> None:
        """Start the thread, which also looks for runs that other processes left unjudged.

        Args:
            context: Its scorer, counters and log are used for those.
        """
        if self._for_taken_over is None and self._store is not None:
            self._for_taken_over = context.for_taken_over()
        self._start()

    def add(self, context: HandlerContext, record: RunRecord) -> None:
        """Take a run that ended or paused; drop it (counted) if too many wait."""
        counters, most = context.counters, context.settings.max_queue
        if context.options.verifiers and inside_verifier.get():
            counters.add("by_verifiers")  # verifying it would recurse
        elif self.waiting(context) >= most:
            counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                most,
            )
        else:
            is_paused = record.ending == "paused"
            counters.add("paused" if is_paused else "queued")
            if context.has_user_code or context.may_wait(record):
                context.lane.prepare()  # an interpreter that is ending starts no threads
            self.submit(Item(context, "pause" if is_paused else "run", record))

    def add_verdict(self, context: HandlerContext, run: str, verdict: Verdict) -> None:
        """Take a verdict on a run that ended; it is written behind the run itself.

        Args:
            context: The handler.
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is not redacted yet.
        """
        context.counters.add("queued_verdicts")
        if context.has_user_code:
            context.lane.prepare()
        self.submit(Item(context, "verdict", verdict=verdict, verdict_on=run))

    def submit(self, item: Item) -> None:
        """Take a finished run, or something to be written; never blocks for long."""
        self.post(partial(self._begin, item))

    def post(self, message: Message) -> None:
        """Have something done on the thread of the engine."""
        self._incoming.put(message)
        self._start()

    def wait(self, timeout_s: float | None = None, context: HandlerContext | None = None) -> bool:
        """Wait until all that was submitted so far is done, and try again to write what failed.

        Args:
            timeout_s: Seconds to wait at most; None waits as long as it takes.
            context: Only what comes from this handler, and runs of processes that have ended: the
                functions of another handler may hang. None for all.

        Returns:
            Whether all is done and written.
        """
        barrier = _Barrier(context)
        self.post(partial(self._add_barrier, barrier))
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        # An interpreter that is ending starts no thread, so the work is done here.
        while not self._is_running and not barrier.is_over.is_set() and time.monotonic() < until:
            if not self._step(None):
                time.sleep(0.001)
        return barrier.is_over.wait(timeout_s) and barrier.is_written

    def finish(self, until: float) -> None:
        """Finish all work before the process ends, by a time of the monotonic clock."""
        self.wait(max(0.0, until - time.monotonic()))
        if self._store is None:
            return
        items = list(self._items)
        if n_lost := sum(item.is_unrecorded or item.is_held for item in items):
            log.warning(
                "%d finished runs and verdicts could not be kept in %s before exit and are lost",
                n_lost,
                self._store.location,
            )
        if any(item.is_live for item in items):
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
            redaction.load()  # a failure is reported by the first run
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
            me, self._thread = self._thread, None  # first, because `submit` reads it last
            if self._incoming.empty() or self._thread is not None:  # the garbage collector's run
                return True
            self._thread = me
            return False

    @property
    def _timeout_s(self) -> float:
        """How long the thread may wait for something to come."""
        if any(item.stage == "judge" for item in self._items):
            return 0.0
        if self._has_held:
            return min(self._backoff.pause_left_s, _IDLE_S)
        return LEASE_S / 3 if self._items else _IDLE_S

    @property
    def _has_held(self) -> bool:
        return any(item.is_held for item in self._items)

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
        return bool(messages or self._items)

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
            self._writer.renew_leases(has_runs=any(item.is_live for item in self._items))
        self._release_barriers()

    # ------------------------------------------------------------------ the stages

    def _begin(self, item: Item) -> None:
        self._number += 1
        item.number = self._number
        item.steps = steps_of(item, self._wait_for_scorer)
        item.context.n_live += 1
        self._items[item] = None
        self._continue(item)

    def _continue(self, item: Item) -> None:
        self._place(item, self._next_stage(item))

    def _next_stage(self, item: Item) -> Stage:
        """Let an item go on to its next stage, on the engine's thread or in a job of its lane."""
        try:
            return next(item.steps, "done")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next one must go on
            warn_once(f"item:{type(error).__name__}", "a job failed with %s", describe_error(error))
            return "done"

    def _place(self, item: Item, stage: Stage) -> None:
        item.stage = stage
        if stage == "done":
            item.let_go()
            self._items.pop(item, None)
        elif stage == "engine":
            self._continue(item)
        elif stage == "lane":
            item.context.lane.submit(
                lambda: self._incoming.put(partial(self._place, item, self._next_stage(item)))
            )

    def _at(self, stage: Stage) -> list[Item]:
        return [item for item in self._items if item.stage == stage]

    def _record(self) -> None:
        """Write the runs that are new, and have them judged, also if that fails."""
        items = self._at("record")
        if self._writer is not None:
            self._writer.record(items)
        for item in items:
            self._continue(item)

    def _judge_some(self) -> None:
        """Judge runs for a moment, or until others come that are to be written first."""
        until = time.monotonic() + _SLICE_S
        for item in self._at("judge"):
            self._continue(item)
            if time.monotonic() >= until or not self._incoming.empty():
                return

    def _begin_verdicts(self) -> None:
        """Go on with the verdicts before which no run of their handler is still to be written."""
        for verdict in self._at("earlier runs"):
            if not any(
                one.is_unrecorded and one.context is verdict.context and one.number < verdict.number
                for one in self._items
            ):
                self._continue(verdict)

    def _write(self) -> None:
        """Write what was decided, and verdicts; let them go on, also if that fails."""
        items = sorted(self._at("write"), key=attrgetter("failures"))
        if self._writer is not None and items:
            self._writer.write(items)
        for item in items:
            if item.fate is not None:
                self._note_fate(item)
            self._continue(item)

    def _note_fate(self, item: Item) -> None:
        item.waits_for_store = False
        item.context.counters.add("waiting_to_store", -1)
        if item.fate == "dropped":
            item.context.counters.add("not_stored")
            self._has_lost = True
        elif item.fate == "written":
            item.context.wake_senders()

    def _take_over_runs(self) -> None:
        """Judge the runs of processes that ended before they did."""
        context = self._for_taken_over
        if self._writer is None or context is None:
            return
        runs, expired_pauses = self._writer.take_over()
        context.counters.add("paused_expired", expired_pauses)
        for run in runs:
            context.counters.add("adopted")
            self._begin(Item(context, "run", run=run, is_recorded=True))

    def _wait_for_scorer(self, context: HandlerContext) -> None:
        """Wait for a model that is loading: the run is on disk, and the agent does not wait."""
        if not context.wait_for_scorer():
            # The 30 s begin with the first run of the engine, and once only: a download may hang,
            # and handlers are often made per request.
            now = time.monotonic()
            until = self._model_awaited_until or now + _LONGEST_WAIT_FOR_MODEL_S
            self._model_awaited_until = until
            context.wait_for_scorer(max(0.0, until - now))

    # ------------------------------------------------------------------ who waits

    def _add_barrier(self, barrier: _Barrier) -> None:
        barrier.number = self._number
        self._backoff.end_pause()
        self._barriers.append(barrier)

    def _release_barriers(self) -> None:
        for barrier in list(self._barriers):
            if self._oldest_number(barrier.context) <= barrier.number:
                continue
            if self._has_held:  # perhaps the database was opened anew only now
                self._backoff.end_pause()
                self._write()
            self._barriers.remove(barrier)
            barrier.is_written = not self._has_held and not self._has_lost
            self._has_lost = False
            barrier.is_over.set()

    def _oldest_number(self, context: HandlerContext | None) -> float:
        numbers = (
            item.number
            for item in self._items
            if item.is_live
            and (context in (None, item.context) or item.context is self._for_taken_over)
        )
        return min(numbers, default=float("inf"))
