"""Write-behind queue: writes runs and verdicts into one store in batches, and retries failures.

A store may be slow, locked, full or frozen. So each store has a thread of its own, and nothing else
waits for it. What it cannot take now waits in memory and is tried again after growing pauses. A
redacted draft of each run is written before the run is scored; see `Draft`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import LateError
from kp_langchain.recording import worker
from kp_langchain.recording.confidence import CalibratedConfidence
from kp_langchain.recording.draft import Draft
from kp_langchain.recording.kept_memory import KeptMemory
from kp_langchain.recording.pending import warn_of_failed_write
from kp_langchain.recording.pending_drafts import PendingDrafts
from kp_langchain.recording.pending_pauses import PendingPauses
from kp_langchain.recording.pending_runs import PendingRun, PendingRuns
from kp_langchain.recording.pending_verdicts import Deliver, PendingVerdict, PendingVerdicts
from kp_langchain.recording.recent_runs import RecentRuns
from kp_langchain.recording.worker import Worker
from kp_langchain.store.backoff import Backoff
from kp_langchain.store.unscored import MOST_CLAIMED

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.store.paused_runs import FirstHalf
    from kp_langchain.store.pending_entries import PendingEntries
    from kp_langchain.verdict import Verdict

log = logging.getLogger("kp_langchain")

Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")
Adopt = Callable[[Draft], None]

# How long scoring waits for a store that has not failed, before it goes on without it.
_PATIENCE_S = 10.0
_CLAIM_EVERY_S = 600.0


class StoreWriter:
    """Writes drafts, scored runs, verdicts and paused runs into one store.

    Args:
        store: The store.
        max_waiting: Most runs that wait for the store; of more, the oldest are dropped and counted
            as `not_stored`. The same for verdicts.

    Attributes:
        confidence: The confidence models in force in the store.
        recent_runs: What the gate saw of the store's last runs.
        kept: The kept runs of the store.
    """

    def __init__(self, store: TraceStore, max_waiting: int) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._worker = Worker("kp_langchain store")
        self.confidence = CalibratedConfidence(self._on_thread(store.models.in_force))
        self.recent_runs = RecentRuns(self._on_thread(store.recent_values))
        self.kept = KeptMemory(self._on_thread(store.kept.read))
        self.expired_pauses = 0
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        # In a forked child everything that waits is the parent's to write.
        store, max_waiting = self._store, self._max_waiting
        self._backoff = Backoff()
        note_success = self._backoff.note_success
        self._drafts = PendingDrafts(store, max_waiting)
        self._pauses = PendingPauses(store, max_waiting)
        self._runs = PendingRuns(store, max_waiting, note_success)
        self._verdicts = PendingVerdicts(store, max_waiting, self._runs.write, note_success)
        self._is_stuck = False
        self._entries: set[PendingEntries] = set()
        self._adopt: Adopt | None = None
        self._claim_at = 0.0

    @property
    def location(self) -> str:
        """Where the store is, without a password."""
        return self._store.location

    @property
    def has_failed_writes(self) -> bool:
        """Whether the last write failed, and something still waits."""
        return self._backoff.failures > 0 and self.waiting > 0

    @property
    def waiting(self) -> int:
        """Number of runs, verdicts and changes of paused runs that are not written yet."""
        return len(self._runs) + len(self._verdicts) + len(self._pauses)

    # ---------------------------------------------------------------- for the workers

    def start(self, adopt: Adopt) -> None:
        """Start the thread, and claim the drafts of processes that ended before they scored them.

        Args:
            adopt: Called with each of these drafts, on the store's thread.
        """
        self._adopt = adopt
        if time.monotonic() >= self._claim_at:
            self._claim_at = time.monotonic() + _CLAIM_EVERY_S
            self._worker.submit(self._claim)
        else:
            self._worker.start()

    def write_draft(self, draft: Draft) -> None:
        """Write the draft of a run, unless the run is scored before its turn comes."""
        self._drafts.put(draft)
        self._schedule_write()

    def write_run(self, scored: ScoredTrace, sender: Sender | None, counters: Counters) -> None:
        """Write a scored run in a batch with others; later if the store failed a moment ago.

        Args:
            scored: The run.
            sender: Woken when the run is written.
            counters: Count whether it is stored.
        """
        # In this order: a draft that is written behind its run would be scored again.
        has_draft = self._drafts.discard(scored.trace.id)
        self._runs.put(PendingRun(scored, sender, counters, has_draft))
        self._schedule_write()
        if self._runs.are_too_many and not self._backoff.failures:
            self.wait_until_written()  # it is only slower than the scoring
        self._runs.drop_excess()

    def write_verdict(
        self,
        run: str,
        verdict: Verdict,
        sender: Sender | None,
        counters: Counters,
        deliver: Deliver,
    ) -> None:
        """Write a verdict on a run; later if the store failed a moment ago.

        Args:
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is redacted.
            sender: Woken when the verdict is written.
            counters: Count whether it is stored.
            deliver: Given each run that was scored again, on the store's thread.
        """
        self._verdicts.put(PendingVerdict(run, verdict, sender, counters, deliver))
        self._schedule_write()

    def remember(self, pending: PendingEntries) -> None:
        """Write what is remembered for novelty; later if that failed a moment ago."""
        self._entries.add(pending)
        self._schedule_write()

    def store_first_half(
        self, half: FirstHalf, record: RunRecord, *, days: float, max_paused: int
    ) -> None:
        """Write what a paused run recorded; later if the store failed a moment ago.

        Args:
            half: What it recorded, redacted.
            record: The run; its `is_stored` is set then.
            days: The number of days for which the store keeps it.
            max_paused: The most paused runs that the store keeps.
        """
        self._pauses.put(half, record, days=days, max_paused=max_paused)
        self._schedule_write()

    def forget_first_half(self, place_of: Callable[[], str | None], until: datetime) -> None:
        """Delete the first half that waits in a place, if it paused no later than a time.

        Args:
            place_of: Returns the place; called on the store's thread.
            until: The time, in UTC.
        """

        def forget() -> None:
            if (place := place_of()) is not None:
                self._pauses.forget(place, until)
                self._write_unless_resting()

        _writers_with_pending.add(self)
        self._worker.submit(forget)

    def claim_first_half(self, place: str) -> FirstHalf | None:
        """Take the first half that waits in a place; None also if the store cannot give it."""
        waiting = self._pauses.waiting_in(place)
        if waiting is not None and not isinstance(waiting, datetime):
            self._pauses.forget(place, waiting.paused_at)  # on disk is an older one, if any
            self._schedule_write()
            return waiting
        try:
            half = self.read_on_thread(lambda: self._store.paused.claim(place))
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"claim:{self.location}:{type(error).__name__}",
                "what a run recorded before it paused cannot be read from %s now (%s); it is "
                "scored without that",
                self.location,
                describe_error(error),
            )
            self._pauses.forget(place, datetime.now(UTC))
            self._schedule_write()
            return None
        is_over = half is not None and waiting is not None and half.paused_at <= waiting
        return None if is_over else half

    def wait_until_written(self) -> None:
        """Wait until everything is written, unless the store fails or does not answer."""
        if not self._backoff.failures and not self._is_stuck:
            self._is_stuck = not self._worker.wait(_PATIENCE_S)

    def wait_for_thread(self, timeout_s: float | None = None) -> bool:
        """Wait until the store's thread has done its jobs; return False if that took too long."""
        return self._worker.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Try to write everything now; return False if that failed or took too long."""
        self._worker.submit(self._write)
        return self._worker.wait(timeout_s) and not self.has_failed_writes

    # ---------------------------------------------------------------- on the store's thread

    def _schedule_write(self) -> None:
        _writers_with_pending.add(self)
        self._worker.submit(self._write_unless_resting)

    def _write_unless_resting(self) -> None:
        if not self._backoff.is_pausing:
            self._write()

    def _write(self) -> None:
        """Write everything that waits, until a write fails."""
        parts = [self._write_drafts, self._write_pauses, self._runs.write, self._verdicts.write]
        if self._backoff.failures:  # perhaps because of the drafts, so let the others go first
            parts = [*parts[1:], parts[0]]
        for write_part in parts:
            if not write_part():
                self._back_off()
                return
        # Removed before looking, twice: what another thread adds meanwhile puts it back.
        for pending in list(self._entries):  # nothing else waits for one that fails
            pending.write()
            self._entries.discard(pending)
            if pending:
                self._entries.add(pending)
        self._is_stuck = False
        _writers_with_pending.discard(self)
        if self._drafts or self.waiting or self._entries:
            _writers_with_pending.add(self)
        if not (self._drafts or self.waiting):
            self._backoff.note_success()

    def _write_drafts(self) -> bool:
        return self._drafts.write(may_wait=not self._runs)

    def _write_pauses(self) -> bool:
        try:
            for expired in self._pauses.write():
                self.expired_pauses += expired
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            warn_of_failed_write(self.location, "what a paused run recorded", error)
            return False
        return True

    def _back_off(self) -> None:
        pause_s = self._backoff.note_failure()
        again = threading.Timer(pause_s, _try_again, (weakref.ref(self),))
        again.daemon = True
        try:
            again.start()
        except RuntimeError:  # the interpreter is ending
            log.debug("no thread can be started any more")

    def _claim(self) -> None:
        try:
            drafts = self._store.unscored.claim()
            self.expired_pauses += self._store.paused.drop_expired()
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            log.debug("nothing can be claimed now: %s", describe_error(error))
            self._claim_at = 0.0
            return
        if len(drafts) >= MOST_CLAIMED:
            self._claim_at = 0.0  # there may be more, for when the next run ends
        for trace_id, body in drafts:
            draft = Draft.read(body)
            if draft is None:
                self._store.unscored.remove(trace_id)
            elif self._adopt is not None:
                self._drafts.note_adopted(draft.trace.id)
                self._adopt(draft)

    def _on_thread(self, read: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
        return lambda *args, **kwargs: self.read_on_thread(lambda: read(*args, **kwargs))

    def read_on_thread(self, read: Callable[[], Answer]) -> Answer:
        """Return what `read` returns on the store's thread.

        A store that failed a moment ago, or did not answer the last time, is not waited for.

        Raises:
            LateError: There is no answer yet.
            Exception: Whatever `read` raises.
        """
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(read())
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                errors.append(error)

        self._worker.submit(ask)
        self.wait_until_written()
        if errors:
            raise errors[0]
        if not answers:
            raise LateError(f"{self.location} does not answer")
        return answers[0]

    def _finish(self, timeout_s: float) -> None:
        for pending in list(self._entries):
            pending.end_pause()
        self.wait(timeout_s)
        unwritten = len(self._runs) + len(self._verdicts) + len(self._drafts)
        unwritten += self._pauses.pauses
        if unwritten:
            log.warning(
                "%d finished runs and verdicts could not be kept in %s before exit and are lost",
                unwritten,
                self.location,
            )
        if forgotten := sum(map(len, list(self._entries))):
            log.warning(
                "%d traces could not be remembered for novelty in %s before exit; novelty will be "
                "measured without them",
                forgotten,
                self.location,
            )


def _try_again(reference: weakref.ref[StoreWriter]) -> None:
    writer = reference()
    if writer is not None:
        writer._worker.submit(writer._write_unless_resting)  # noqa: SLF001 - same module


def writer_of(store: TraceStore, max_waiting: int) -> StoreWriter:
    """Return the writer of `store`, one for the whole process."""
    with _writers_by_store_lock:
        writer = _writers_by_store.get(store)
        if writer is None:
            writer = _writers_by_store[store] = StoreWriter(store, max_waiting)
        return writer


def _finish(timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    for writer in list(_writers_with_pending):
        writer._finish(max(0.0, until - time.monotonic()))  # noqa: SLF001 - same module


_writers_by_store: weakref.WeakValueDictionary[TraceStore, StoreWriter] = (
    weakref.WeakValueDictionary()
)
_writers_by_store_lock = ForkSafeLock()
_writers: weakref.WeakSet[StoreWriter] = weakref.WeakSet()
# Held until it has written everything, though its handler may be gone.
_writers_with_pending: set[StoreWriter] = set()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._runs.leave_to_parent()  # noqa: SLF001 - same module
        writer._verdicts.leave_to_parent()  # noqa: SLF001
        writer._reset()  # noqa: SLF001 - same module
    _writers_with_pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
worker.at_finish["storing"] = _finish
