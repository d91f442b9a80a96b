"""Writes scored runs to their store. What it cannot take now waits in memory and is tried again.

A commit costs more than a row, so runs that end in quick succession are written together: as soon
as the worker has nothing else to do, at the latest with the 32nd, or half a second after the first.

Only the worker's thread calls this, so nothing here needs a lock.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._notices import told, warn_once
from kp_langchain.errors import UnknownRunError
from kp_langchain.recording.calibrated import Calibrated
from kp_langchain.recording.worker import worker

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.tally import Tally
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore, Verdict

log = logging.getLogger("kp_langchain")

# A dead server costs 10 s a try, which the runs behind it would wait for.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_TOGETHER = 32
_LONGEST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Item:
    scored: ScoredTrace
    sender: Sender | None
    tally: Tally


@dataclass(frozen=True, slots=True)
class _Late:
    run: str
    verdict: Verdict
    sender: Sender | None
    tally: Tally


class Keeper:
    """Keeps scored runs, and what is said of them later, in one store.

    Args:
        store: The store.
        bound: Most runs that wait for it; further ones are given up and counted as `not_stored`.
            The same for verdicts.

    Attributes:
        calibrated: The confidence models in the store.
    """

    def __init__(self, store: TraceStore, bound: int) -> None:
        self.calibrated = Calibrated(store)
        self._store = store
        self._bound = bound
        self._waiting: deque[_Item] = deque()
        self._verdicts: deque[_Late] = deque()  # written when no run waits any more
        self._together = _MOST_TOGETHER
        self._failures = 0
        self._due_at = 0.0  # when what waits is to be written, by the monotonic clock

    @property
    def behind(self) -> bool:
        """Whether the store could not take a run when it was last asked."""
        return self._failures > 0 and self.waiting > 0

    @property
    def waiting(self) -> int:
        """Runs and verdicts that the store could not take yet."""
        return len(self._waiting) + len(self._verdicts)

    def keep(self, scored: ScoredTrace, sender: Sender | None, tally: Tally) -> None:
        """Write a run, with others that come soon; later if the store failed a moment ago."""
        now = time.monotonic()
        if not self._waiting:
            self._due_at = now + _LONGEST_WAIT_S
        self._waiting.append(_Item(scored, sender, tally))
        _with_waiting.add(self)
        tally.add("waiting_to_store")
        many = len(self._waiting) >= min(_MOST_TOGETHER, self._bound)
        if now >= self._due_at or (many and not self._failures):
            self.write_waiting()
        while len(self._waiting) > self._bound:
            self._give_up(self._waiting.popleft())

    def judge(self, run: str, verdict: Verdict, sender: Sender | None, tally: Tally) -> None:
        """Write a verdict on a run; later if the store failed a moment ago."""
        self._verdicts.append(_Late(run, verdict, sender, tally))
        _with_waiting.add(self)
        tally.add("waiting_to_store")
        self.catch_up()
        while len(self._verdicts) > self._bound:
            self._give_up(self._verdicts.popleft())

    def catch_up(self) -> None:
        """Write what waits, unless the store failed a moment ago."""
        if not self._failures or time.monotonic() >= self._due_at:
            self.write_waiting()

    def write_waiting(self) -> None:
        """Write what waits, until that fails."""
        left = len(self._waiting)
        while left:
            batch = self._next_together(left)
            sender = batch[0].sender
            try:
                self._store.add_many(
                    [item.scored for item in batch],
                    registry=sender.registry.url if sender else None,
                )
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                if len(batch) > 1:  # perhaps for the sake of one of them
                    self._waiting.extendleft(reversed(batch))
                    self._together = 1
                    continue
                (item,) = batch
                left -= 1
                warn_once(
                    f"store:{type(error).__name__}",
                    "a run cannot be kept in %s now (%s); it waits in memory and is tried again",
                    self._store.location,
                    told(error),
                )
                if _can_ever_be_written(item.scored):
                    # To the back, so that one that always fails does not hold the others up.
                    self._waiting.append(item)
                    self._rest()
                    return
                self._give_up(item)
                continue
            left -= len(batch)
            self._failures = 0
            self._together = min(2 * self._together, _MOST_TOGETHER)
            for item in batch:
                item.tally.add("waiting_to_store", -1)
            if sender is not None:
                sender.wake()
        while self._verdicts:
            if not self._write_verdict(self._verdicts[0]):
                # To the back; of those on one run the newest counts, whichever comes first.
                self._verdicts.rotate(-1)
                self._rest()
                return
            self._verdicts.popleft().tally.add("waiting_to_store", -1)
            self._failures = 0
        _with_waiting.discard(self)

    def _rest(self) -> None:
        self._failures += 1
        pause_s = _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10)
        self._due_at = time.monotonic() + min(pause_s, _LONGEST_PAUSE_S)

    def _write_verdict(self, late: _Late) -> bool:
        """Write a verdict; False if the store could not take it now."""
        said = {name: getattr(late.verdict, name) for name in late.verdict.__slots__}
        to = late.sender.registry.url if late.sender else None
        try:
            changes = self._store.report_outcome(late.run, **said, registry=to)
        except UnknownRunError as error:
            late.tally.add("verdict_errors")
            warn_once(
                "verdict", "an outcome was reported of a run that is not known: %s", told(error)
            )
        except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"verdict:{type(error).__name__}",
                "a verdict cannot be kept in %s now (%s); it waits in memory and is tried again",
                self._store.location,
                told(error),
            )
            return False
        else:
            late.tally.add("rescored", len(changes))
            if late.sender is not None:
                late.sender.wake()
        return True

    def _next_together(self, most: int) -> list[_Item]:
        """Take what goes into one transaction: runs for the same registry."""
        batch = [self._waiting.popleft()]
        while len(batch) < min(most, self._together) and self._waiting[0].sender is batch[0].sender:
            batch.append(self._waiting.popleft())
        return batch

    def _give_up(self, item: _Item | _Late) -> None:
        item.tally.add("waiting_to_store", -1)
        item.tally.add("not_stored")

    def _end(self) -> None:
        log.warning(
            "%d scored runs and verdicts could not be kept in %s before exit and are lost",
            self.waiting,
            self._store.location,
        )

    def _forget(self) -> None:
        # In a forked child they are the parent's to write.
        self._waiting.clear()
        self._verdicts.clear()
        self._failures = 0


def _can_ever_be_written(scored: ScoredTrace) -> bool:
    from kp_langchain.store.rows import row_of

    try:
        row_of(scored)
    except Exception:  # noqa: BLE001 - whatever it is, it would be the same next time
        return False
    return True


def keeper_of(store: TraceStore, bound: int) -> Keeper:
    """Return the keeper that this process shares for `store`."""
    keeper = _shared.get(store)
    if keeper is None:
        keeper = _shared[store] = Keeper(store, bound)
    return keeper


def write_all_waiting() -> None:
    """Have every store of this process tried once more."""
    for keeper in list(_with_waiting):
        keeper.write_waiting()


def catch_up() -> None:
    """Write what waits for every store, unless it failed a moment ago."""
    for keeper in list(_with_waiting):
        keeper.catch_up()


def tell_what_is_lost(_left_s: float) -> None:
    """Log how many runs were never stored; at exit."""
    for keeper in list(_with_waiting):
        keeper._end()  # noqa: SLF001 - this module's own class


_shared: weakref.WeakValueDictionary[TraceStore, Keeper] = weakref.WeakValueDictionary()
# Held until it has written everything, though its handler may be gone.
_with_waiting: set[Keeper] = set()


def _after_fork() -> None:
    for keeper in list(_with_waiting):
        keeper._forget()  # noqa: SLF001
    _with_waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
worker.put_off["keeping"] = catch_up
worker.last_jobs["keeping"] = write_all_waiting
worker.last_at_exit["keeping"] = tell_what_is_lost
