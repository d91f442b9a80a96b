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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import LateError, UnknownRunError
from kp_langchain.gate import Rescored
from kp_langchain.recording import worker
from kp_langchain.recording.confidence import CalibratedConfidence
from kp_langchain.recording.draft import Draft
from kp_langchain.recording.paused_changes import PausedChanges
from kp_langchain.recording.worker import Worker
from kp_langchain.store.unscored import MOST_CLAIMED
from kp_langchain.store.verdicts import judge_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.store.paused_runs import FirstHalf
    from kp_langchain.verdict import Verdict

log = logging.getLogger("kp_langchain")

Answer = TypeVar("Answer")
Adopt = Callable[[Draft], None]
Deliver = Callable[["ScoredTrace"], None]

# A dead server costs 10 s a try, which the runs behind it would wait for.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MAX_BATCH = 32
# How long scoring waits for a store that has not failed, before it goes on without it.
_PATIENCE_S = 10.0
_CLAIM_EVERY_S = 600.0
# Scoring without a model takes less, and such a run is written once instead of twice.
_DRAFT_AFTER_S = 0.005


@dataclass(frozen=True, slots=True)
class _Run:
    scored: ScoredTrace
    sender: Sender | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class _LateVerdict:
    run: str
    verdict: Verdict
    sender: Sender | None
    counters: Counters
    deliver: Deliver


class StoreWriter:
    """Writes drafts, scored runs, verdicts and paused runs into one store.

    Args:
        store: The store.
        max_waiting: Most runs that wait for the store; of more, the oldest are dropped and counted
            as `not_stored`. The same for verdicts.
    """

    def __init__(self, store: TraceStore, max_waiting: int) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._worker = Worker("kp_langchain store")
        self._confidence = CalibratedConfidence(self._model_of)
        self.expired_pauses = 0
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        # In a forked child everything that waits is the parent's to write.
        self._lock = ForkSafeLock()
        self._drafts: dict[str, Draft] = {}
        # set once a run has been scored since the writer last began to wait
        self._is_scored = threading.Event()
        self._runs: deque[_Run] = deque()
        self._verdicts: deque[_LateVerdict] = deque()  # written when no run waits any more
        self._paused = PausedChanges(self._store, self._max_waiting)
        self._batch_size = _MAX_BATCH
        self._failures = 0
        self._due_at = 0.0  # when what waits is to be written, by the monotonic clock
        self._is_stuck = False
        self._adopt: Adopt | None = None
        self._claim_at = 0.0

    @property
    def location(self) -> str:
        """Where the store is, without a password."""
        return self._store.location

    @property
    def has_failed_writes(self) -> bool:
        """Whether the last write failed, and something still waits."""
        return self._failures > 0 and self.waiting > 0

    @property
    def waiting(self) -> int:
        """Number of runs, verdicts and changes of paused runs that are not written yet."""
        return len(self._runs) + len(self._verdicts) + len(self._paused)

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
        with self._lock:
            if len(self._drafts) >= self._max_waiting:
                return
            self._drafts[draft.trace.id] = draft
        self._schedule_write()

    def write_run(self, scored: ScoredTrace, sender: Sender | None, counters: Counters) -> None:
        """Write a scored run in a batch with others; later if the store failed a moment ago.

        Args:
            scored: The run.
            sender: Woken when the run is written.
            counters: Count whether it is stored.
        """
        counters.add("waiting_to_store")
        with self._lock:
            self._drafts.pop(scored.trace.id, None)
            self._runs.append(_Run(scored, sender, counters))
        self._is_scored.set()
        self._schedule_write()
        if len(self._runs) > self._max_waiting and not self._failures:
            self.wait_until_written()  # it is only slower than the scoring
        with self._lock:
            while len(self._runs) > self._max_waiting:
                _drop(self._runs.popleft())

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
        counters.add("waiting_to_store")
        with self._lock:
            self._verdicts.append(_LateVerdict(run, verdict, sender, counters, deliver))
            while len(self._verdicts) > self._max_waiting:
                _drop(self._verdicts.popleft())
        self._schedule_write()

    def store_first_half(
        self, half: FirstHalf, record: RunRecord, *, days: float, most: int
    ) -> None:
        """Write what a paused run recorded; later if the store failed a moment ago.

        Args:
            half: What it recorded, redacted.
            record: The run, which is marked as kept then.
            days: For how long it is kept.
            most: How many halves the store keeps at most.
        """
        self._paused.put(half, record, days=days, most=most)
        self._schedule_write()

    def forget_first_half(self, place_of: Callable[[], str | None], until: datetime) -> None:
        """Delete the first half that waits in a place, if it paused before a time.

        Args:
            place_of: Returns the place; called on the store's thread.
            until: The time, in UTC.
        """

        def forget() -> None:
            if (place := place_of()) is not None:
                self._paused.forget(place, until)
                self._write_unless_resting()

        _writers_with_pending.add(self)
        self._worker.submit(forget)

    def claim_first_half(self, place: str) -> FirstHalf | None:
        """Take the first half that waits in a place; None also if the store cannot give it."""
        waiting = self._paused.waiting_in(place)
        if waiting is not None and not isinstance(waiting, datetime):
            self._paused.forget(place, waiting.paused_at)  # on disk is an older one, if any
            self._schedule_write()
            return waiting
        try:
            half = self._read_on_thread(lambda: self._store.paused.claim(place))
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"claim:{self.location}:{type(error).__name__}",
                "what a run recorded before it paused cannot be read from %s now (%s); it is "
                "scored without that",
                self.location,
                describe_error(error),
            )
            self._paused.forget(place, datetime.now(UTC))
            self._schedule_write()
            return None
        is_over = half is not None and waiting is not None and half.paused_at <= waiting
        return None if is_over else half

    def model_verdict(self, domain: str, features: Mapping[str, float]) -> Verdict | None:
        """Return the confidence by the domain's model; see `CalibratedConfidence.verdict`."""
        return self._confidence.verdict(domain, features)

    def wait_until_written(self) -> None:
        """Wait until everything is written, unless the store fails or does not answer."""
        if not self._failures and not self._is_stuck:
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
        if not self._failures or time.monotonic() >= self._due_at:
            self._write()

    def _write(self) -> None:
        """Write everything that waits, until a write fails."""
        # What an earlier attempt failed on comes last, whatever it is.
        parts = [self._write_drafts, self._write_paused, self._write_runs, self._write_verdicts]
        for part in parts if not self._failures else (*parts[1:], parts[0]):
            if not part():
                return
        with self._lock:
            self._is_stuck = False
            if not self._drafts and not self.waiting:
                self._failures = 0
                _writers_with_pending.discard(self)

    def _write_drafts(self) -> bool:
        self._is_scored.clear()
        if self._drafts and not self._runs:
            self._is_scored.wait(_DRAFT_AFTER_S)
        with self._lock:
            drafts = list(self._drafts.values())[:_MAX_BATCH]
        while drafts:
            try:
                self._store.unscored.add(
                    (draft.trace.id, str(draft.run_id), draft.to_dict()) for draft in drafts
                )
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                self._warn("draft", "the draft of a run", error)
                self._back_off()
                return False
            with self._lock:
                for draft in drafts:
                    self._drafts.pop(draft.trace.id, None)
                drafts = list(self._drafts.values())[:_MAX_BATCH]
        return True

    def _write_paused(self) -> bool:
        try:
            for expired in self._paused.write():
                self.expired_pauses += expired
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            self._warn("half", "what a paused run recorded", error)
            self._back_off()
            return False
        return True

    def _write_runs(self) -> bool:
        remaining = len(self._runs)
        while remaining > 0 and (batch := self._next_batch(remaining)):
            try:
                self._store.add_many(
                    [run.scored for run in batch], registry=batch[0].scored.registry
                )
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                if len(batch) > 1:  # perhaps for the sake of one of them
                    with self._lock:
                        self._runs.extendleft(reversed(batch))
                        self._batch_size = 1
                    continue
                (run,) = batch
                remaining -= 1
                self._warn("store", "a run", error)
                if _can_ever_be_written(run.scored):
                    # To the back, so that one that always fails does not hold the others up.
                    with self._lock:
                        self._runs.append(run)
                    self._back_off()
                    return False
                _drop(run)
                continue
            remaining -= len(batch)
            self._failures = 0
            self._batch_size = min(2 * self._batch_size, _MAX_BATCH)
            for run in batch:
                run.counters.add("waiting_to_store", -1)
            for sender in {run.sender for run in batch if run.sender is not None}:
                sender.wake()
        return True

    def _next_batch(self, most: int) -> list[_Run]:
        """Take the runs of one transaction: those for the same registry."""
        with self._lock:
            if not self._runs:
                return []
            first = self._runs.popleft()
            batch = [first]
            for _ in range(min(most, self._batch_size) - 1):
                if not self._runs or self._runs[0].scored.registry != first.scored.registry:
                    break
                batch.append(self._runs.popleft())
            return batch

    def _write_verdicts(self) -> bool:
        while self._verdicts:
            late = self._verdicts[0]
            if self._runs and not self._write_runs():  # it may be on one of them
                return False
            if not self._write_one_verdict(late):
                with self._lock:
                    # To the back; of those on one run the newest counts, whichever comes first.
                    self._verdicts.rotate(-1)
                self._back_off()
                return False
            with self._lock:
                if self._verdicts and self._verdicts[0] is late:
                    self._verdicts.popleft()
            late.counters.add("waiting_to_store", -1)
            self._failures = 0
        return True

    def _write_one_verdict(self, late: _LateVerdict) -> bool:
        registry = late.sender.registry.url if late.sender else None
        try:
            runs = judge_stored(self._store.database, late.run, late.verdict, registry=registry)
        except UnknownRunError as error:
            late.counters.add("verdict_errors")
            warn_once(
                "verdict",
                "an outcome was reported of a run that is not known: %s",
                describe_error(error),
            )
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            self._warn("verdict", "a verdict", error)
            return False
        else:
            late.counters.add("rescored", len(runs))
            for run in runs:
                # Else a function that reports an outcome of each run that it is given has no end.
                if Rescored.of(run).changed:
                    late.deliver(run)
            if late.sender is not None:
                late.sender.wake()
        return True

    def _back_off(self) -> None:
        self._failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10), _LONGEST_PAUSE_S)
        self._due_at = time.monotonic() + pause_s
        again = threading.Timer(pause_s, _try_again, (weakref.ref(self),))
        again.daemon = True
        try:
            again.start()
        except RuntimeError:  # the interpreter is ending
            log.debug("no thread can be started any more")

    def _warn(self, kind: str, what: str, error: BaseException) -> None:
        warn_once(
            f"{kind}:{self.location}:{type(error).__name__}",
            "%s cannot be kept in %s now (%s); it waits in memory and is tried again",
            what,
            self.location,
            describe_error(error),
        )

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
            try:
                draft = Draft.from_dict(body)
            except (ValueError, TypeError, KeyError, LookupError) as error:
                warn_once(
                    "draft",
                    "an unscored run of an earlier process cannot be read (%s) and is dropped",
                    describe_error(error),
                )
                self._store.unscored.remove(trace_id)
                continue
            if self._adopt is not None:
                self._adopt(draft)

    def _model_of(self, domain: str) -> ConfidenceModel | None:
        """Return the domain's confidence model that is in force."""
        return self._read_on_thread(lambda: self._store.models.in_force(domain))

    def _read_on_thread(self, read: Callable[[], Answer]) -> Answer:
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
        self.wait(timeout_s)
        unwritten = len(self._runs) + len(self._verdicts) + len(self._drafts)
        unwritten += self._paused.pauses
        if unwritten:
            log.warning(
                "%d finished runs and verdicts could not be kept in %s before exit and are lost",
                unwritten,
                self.location,
            )


def _try_again(reference: weakref.ref[StoreWriter]) -> None:
    writer = reference()
    if writer is not None:
        writer._worker.submit(writer._write_unless_resting)  # noqa: SLF001 - same module


def _drop(one: _Run | _LateVerdict) -> None:
    one.counters.add("waiting_to_store", -1)
    one.counters.add("not_stored")


def _can_ever_be_written(scored: ScoredTrace) -> bool:
    from kp_langchain.store.rows import row_of

    try:
        row_of(scored)
    except Exception:  # noqa: BLE001 - whatever it is, it would be the same next time
        return False
    return True


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
        waiting: list[_Run | _LateVerdict] = [*writer._runs, *writer._verdicts]  # noqa: SLF001
        for one in waiting:
            one.counters.add("waiting_to_store", -1)
        writer._reset()  # noqa: SLF001 - same module
    _writers_with_pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
worker.at_finish["storing"] = _finish
