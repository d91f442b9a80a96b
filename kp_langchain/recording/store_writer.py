"""`StoreWriter`: writes what an engine has for its store, and holds what the store cannot take.

While the store cannot be written, what is to be written waits in one bounded queue.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.work import Work
from kp_langchain.recording.worker import MAX_BATCH
from kp_langchain.store.jobs import LEASE_S
from kp_langchain.store.journal import can_be_written

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run
    from kp_langchain.gate.scored_trace import ScoredTrace
    from kp_langchain.recording.work import Write
    from kp_langchain.store import TraceStore
    from kp_langchain.store.backoff import Backoff

log = logging.getLogger("kp_langchain")

MOST_FAILURES = 2
"""So many writes in a row fail because of the store; one fails perhaps because of itself."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of judged runs that were to be written.

    Attributes:
        written: Those in the store now, each with the same run as it is after a verdict that came
            before it was judged; None without one.
        gone: Those that were deleted meanwhile, or judged by another process.
        left: Those that could not be written.
    """

    written: list[tuple[Work, ScoredTrace | None]] = field(default_factory=list)
    gone: list[Work] = field(default_factory=list)
    left: list[Work] = field(default_factory=list)

    def add(self, other: Settled) -> None:
        """Add what became of further runs."""
        self.written.extend(other.written)
        self.gone.extend(other.gone)
        self.left.extend(other.left)


class StoreWriter:
    """The writes of one engine; used by its thread only.

    Args:
        store: The store.
        max_waiting: Most things that wait for the store; of more, the oldest are dropped and
            counted as `not_stored`.
        backoff: While it is pausing, nothing is written.

    Attributes:
        held: What the store could not take, in the order in which it is tried again.
        has_lost: Whether something was dropped since somebody set it to False.
    """

    def __init__(self, store: TraceStore, max_waiting: int, backoff: Backoff) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._backoff = backoff
        self.held: deque[Work | Write] = deque()
        self.has_lost = False
        self._renew_at = float("inf")
        self._look_at = 0.0

    # ------------------------------------------------------------------ the journal

    def record(self, works: Sequence[Work]) -> None:
        """Write runs that are not judged yet; those that fail are written once they are judged."""
        if not works or self._backoff.is_pausing:
            return
        try:
            self._store.journal.record([work.run for work in works if work.run is not None])
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._note_failure("a run", error)
            return
        for work in works:
            work.is_recorded = True
        self._renew_at = min(self._renew_at, time.monotonic() + LEASE_S / 3)

    def take_over(self) -> tuple[list[Run], int]:
        """Take the runs of processes that ended before they judged them; look now and then.

        Returns:
            The runs, and how many paused runs waited too long for a human and were deleted.
        """
        now = time.monotonic()
        if now < self._look_at or self._backoff.is_pausing:
            return [], 0
        self._look_at = now + LEASE_S
        try:
            runs = self._store.journal.take_over()
            expired_pauses = self._store.paused.drop_expired()
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            log.debug("nothing can be taken over now: %s", describe_error(error))
            return [], 0
        if runs:
            self._renew_at = min(self._renew_at, now + LEASE_S / 3)
        return runs, expired_pauses

    def renew_leases(self, *, has_runs: bool) -> None:
        """Keep the runs that this process judges, if there are any and it is time to."""
        now = time.monotonic()
        if not has_runs:
            self._renew_at = float("inf")
        if now < self._renew_at:
            return
        self._renew_at = now + LEASE_S / 3
        try:
            self._store.journal.jobs.renew()
        except Exception as error:  # noqa: BLE001 - another process judges them then
            log.debug("leases cannot be renewed: %s", describe_error(error))

    def settle(self, works: Sequence[Work]) -> Settled:
        """Write what was decided on runs; hold what the store cannot take."""
        if self._backoff.is_pausing:
            settled = Settled(left=list(works))
        else:
            settled = self._try_to_settle(
                works, {tool for work in works for tool in work.context.tools}
            )
        for work in settled.left:
            self._hold(work)
        return settled

    def _try_to_settle(self, works: Sequence[Work], tools: Collection[str]) -> Settled:
        try:
            return self._settle_at_once(works, tools)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            if len(works) > 1:  # perhaps because of only one of them
                return self._settle_one_by_one(works, tools)
            scored = works[0].scored
            if scored is not None and can_be_written(scored):
                self._note_failure("a run", error)
                return Settled(left=list(works))
            self._drop(works[0], error)
            return Settled(gone=list(works))

    def _settle_one_by_one(self, works: Sequence[Work], tools: Collection[str]) -> Settled:
        settled, failures_in_a_row = Settled(), 0
        for at, work in enumerate(works):
            one = self._try_to_settle([work], tools)
            settled.add(one)
            failures_in_a_row = failures_in_a_row + 1 if one.left else 0
            if failures_in_a_row == MOST_FAILURES:
                settled.left.extend(works[at + 1 :])
                break
        return settled

    def _settle_at_once(self, works: Sequence[Work], tools: Collection[str]) -> Settled:
        journal = self._store.journal
        by_id = {work.scored.trace.id: work for work in works if work.scored is not None}
        recorded = [work.scored for work in works if work.is_recorded and work.scored is not None]
        others = [one.scored for one in works if not one.is_recorded and one.scored is not None]
        written: list[tuple[ScoredTrace, ScoredTrace | None]] = []
        if recorded:
            written += journal.settle(recorded, tools)
        if others:
            journal.add(others, tools)
            written += [(one, None) for one in others]
        self._backoff.note_success()
        pairs = [(by_id.pop(scored.trace.id), rescored) for scored, rescored in written]
        return Settled(pairs, gone=list(by_id.values()))

    # ------------------------------------------------------------------ what else is written

    def write(self, writes: Sequence[Write]) -> None:
        """Write verdicts, pauses and the like, in their order; hold what the store cannot take."""
        # A verdict may be on a run that is held.
        is_in_the_way = any(isinstance(item, Work) for item in self.held)
        failures_in_a_row = MOST_FAILURES if self._backoff.is_pausing or is_in_the_way else 0
        for write in writes:
            if failures_in_a_row < MOST_FAILURES and self._try_to_write(write):
                failures_in_a_row = 0
            else:
                failures_in_a_row += 1
                self._hold(write)

    def _try_to_write(self, write: Write) -> bool:
        try:
            write.write(self._store)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._note_failure(write.what, error)
            return False
        self._backoff.note_success()
        return True

    # ------------------------------------------------------------------ what waits

    def retry(self) -> Settled:
        """Write what the store could not take before; what fails again goes to the back."""
        settled, items, failures_in_a_row = Settled(), self.held, 0
        if self._backoff.is_pausing or not items:
            return settled
        failed: list[Work | Write] = []
        self.held = deque()
        for item in items:
            _count_waiting(item, -1)
        while items and failures_in_a_row < MOST_FAILURES:
            front = items[0]
            left: Sequence[Work | Write]
            if isinstance(front, Work):
                # Its score was sent when it was announced.
                one = self._try_to_settle(_works_in_front(items), ())
                settled.add(one)
                left = one.left
            else:
                items.popleft()
                left = [] if self._try_to_write(front) else [front]
            failed += left
            failures_in_a_row = failures_in_a_row + 1 if left else 0
        for item in (*items, *failed):
            self._hold(item)
        return settled

    def leave_to_parent(self) -> None:
        """Forget what waits, in a forked child."""
        for item in self.held:
            _count_waiting(item, -1)
        self.held.clear()
        self._renew_at, self._look_at = float("inf"), 0.0

    def _hold(self, item: Work | Write) -> None:
        """Keep something for the next try; drop the oldest if too much waits."""
        self.held.append(item)
        _count_waiting(item, 1)
        while len(self.held) > self._max_waiting:
            oldest = self.held.popleft()
            _count_waiting(oldest, -1)
            self._drop(oldest, None)

    def _drop(self, item: Work | Write, error: Exception | None) -> None:
        if item.counters is not None:
            item.counters.add("not_stored")
        self.has_lost = True
        if error is not None:
            warn_once(
                f"unwritable:{self._store.location}:{type(error).__name__}",
                "a run cannot be written into %s (%s); it is dropped and counted under "
                "'not_stored'",
                self._store.location,
                describe_error(error),
            )

    def _note_failure(self, what: str, error: Exception) -> None:
        """Begin a pause, and warn, once per store, thing and kind of error."""
        self._backoff.note_failure()
        warn_once(
            f"write:{what}:{self._store.location}:{type(error).__name__}",
            "%s cannot be kept in %s now (%s); it waits in memory and is tried again",
            what,
            self._store.location,
            describe_error(error),
        )


def _works_in_front(items: deque[Work | Write]) -> list[Work]:
    """Take the runs at the front of a queue that come before anything else, at most a batch."""
    works: list[Work] = []
    while items and isinstance(items[0], Work) and len(works) < MAX_BATCH:
        works.append(items.popleft())  # type: ignore[arg-type]
    return works


def _count_waiting(item: Work | Write, change: int) -> None:
    if item.counters is not None:
        item.counters.add("waiting_to_store", change)
