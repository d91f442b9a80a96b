"""What goes through an engine into its store: runs and verdicts; `StoreWriter` writes it.

While the store cannot be written, what is to be written waits in one bounded queue, in its order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError, UnknownRunError
from kp_langchain.store.jobs import JUDGE, LEASE_S
from kp_langchain.store.verdicts import judge_stored

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run, ScoredTrace
    from kp_langchain.recording.judging import HandlerContext
    from kp_langchain.recording.run_builder import AskOutcome
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.store import TraceStore
    from kp_langchain.store.jobs import Backoff
    from kp_langchain.verdict import Verdict

log = logging.getLogger("kp_langchain")

MAX_BATCH = 32
"""The most messages of one step besides the first, and the most runs of one transaction."""

_OF_CONTENT = (TypeError, ValueError, OverflowError, RecursionError)


class Item:
    """Something that goes through an engine in its turn.

    Attributes:
        context: The handler that it comes from.
        number: Its place in the order in which things came.
        what: What it is, such as `a verdict`.
    """

    context: HandlerContext
    number: int
    what: str

    @property
    def lane(self) -> Lane | None:
        """Where `build` is called, if that may take its time."""
        return None

    def build(self) -> bool:
        """Make what is to be written; return False if nothing is left to be done."""
        return True


@dataclass(slots=True, eq=False)
class Work(Item):
    """A run on its way through the engine.

    Attributes:
        context: The handler that recorded it.
        record: What it recorded; None for a run of another process.
        run: The same, redacted.
        ask_outcome: The outcome function, with the run that it is to judge.
        scored: The run once it is judged.
        is_recorded: Whether it is in the store, not judged yet.
        is_announced: Whether it was announced, as one that is not in the store.
    """

    context: HandlerContext
    record: RunRecord | None = None
    run: Run | None = None
    ask_outcome: AskOutcome | None = None
    scored: ScoredTrace | None = None
    is_recorded: bool = False
    is_announced: bool = False
    number: int = 0
    what: str = "a run"

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
            self.run, self.ask_outcome = built
        return True


@dataclass(slots=True, eq=False)
class VerdictWrite(Item):
    """A verdict on a run that has ended; it is written behind the run itself.

    Attributes:
        context: The handler through which it was reported.
        run: A trace id, a run id, or the beginning of either.
        verdict: The verdict; its note is redacted by `build`.
    """

    context: HandlerContext
    run: str
    verdict: Verdict
    number: int = 0
    what: str = "a verdict"

    @property
    def lane(self) -> Lane | None:
        """Behind the run, which may still be on its way; and the redactor may take its time."""
        context = self.context
        has_user_code = context.judges_with_user_code or context.builder.redactor is not None
        return context.functions.lane if has_user_code else None

    def build(self) -> bool:
        """Redact the note."""
        self.verdict = self.context.builder.redact_note(self.verdict, self.run)
        self.context.counters.add("queued_verdicts", -1)
        return True

    def write(self, store: TraceStore) -> list[ScoredTrace]:
        """Write it, and return the runs that it changed.

        Raises:
            StoreError: The store cannot be written; it is tried again.
        """
        counters, registry = self.context.counters, self.context.builder.registry
        try:
            runs = judge_stored(
                store.database,
                self.run,
                self.verdict,
                jobs=store.journal.jobs,
                registry=registry,
                tools=self.context.tools,
            )
        except UnknownRunError as error:
            counters.add("verdict_errors")
            warn_once(
                "verdict",
                "an outcome was reported of a run that is not known: %s",
                describe_error(error),
            )
            return []
        counters.add("rescored", len(runs))
        return runs


@dataclass(slots=True, eq=False)
class Pause(Item):
    """A run that paused; all is done once it is built.

    Attributes:
        context: The handler that recorded it.
        record: The run.
    """

    context: HandlerContext
    record: RunRecord
    number: int = 0
    what: str = "a paused run"

    @property
    def lane(self) -> Lane | None:
        """Where `build` is called, as it writes to the store."""
        return self.context.functions.lane

    def build(self) -> bool:
        """Redact and keep what it recorded, for a run that resumes it."""
        self.context.builder.keep_paused(self.record)
        return False


@dataclass(frozen=True, slots=True)
class Written:
    """What became of what was to be written; what could not be is held.

    Attributes:
        items: What is in the store now, each with the runs that a verdict changed: that verdict,
            or one that came before its run was judged.
        gone: Runs that were deleted meanwhile, or judged by another process.
    """

    items: list[tuple[Item, list[ScoredTrace]]] = field(default_factory=list)
    gone: list[Item] = field(default_factory=list)


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
        self.held: deque[Item] = deque()
        self.has_lost = False
        self._batch_size = MAX_BATCH
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
            if len(works) > 1:  # perhaps because of only one of them
                for work in works:
                    self.record([work])
            elif not _is_of_content(error):
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
            expired_pauses = self._store.paused.drop_expired()
            runs = self._store.journal.take_over()
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
            self._store.journal.jobs.renew(JUDGE)
        except Exception as error:  # noqa: BLE001 - another process judges them then
            log.debug("leases cannot be renewed: %s", describe_error(error))

    # ------------------------------------------------------------------ judged runs, and the rest

    def write(self, items: Sequence[Item]) -> Written:
        """Write what is held and then these, in their order; hold what the store cannot take."""
        written = Written()
        self.held.extend(items)
        for item in items:
            item.context.counters.add("waiting_to_store")
        while self.held and not self._backoff.is_pausing:
            batch = _batch(self.held, self._batch_size)
            try:
                self._write_batch(batch, written)
            except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                if len(batch) > 1:  # perhaps because of only one of them
                    self._batch_size = 1
                    self.held.extendleft(reversed(batch))
                elif _is_of_content(error):
                    self._drop(batch[0])
                    warn_once(
                        f"content:{batch[0].what}:{type(error).__name__}",
                        "%s cannot be kept in the store (%s); counted under 'not_stored'",
                        batch[0].what,
                        describe_error(error),
                    )
                else:
                    self._note_failure(batch[0].what, error)
                    self.held.append(batch[0])  # behind what waits, as it may fail for good
            else:
                for item in batch:
                    item.context.counters.add("waiting_to_store", -1)
                self._batch_size = min(MAX_BATCH, 2 * self._batch_size)
                self._backoff.note_success()
        while len(self.held) > self._max_waiting:
            self._drop(self.held.popleft())
        return written

    def _drop(self, item: Item) -> None:
        item.context.counters.add("waiting_to_store", -1)
        item.context.counters.add("not_stored")
        self.has_lost = True

    def _write_batch(self, batch: Sequence[Item], written: Written) -> None:
        """Write some runs in one transaction, or a verdict."""
        first = batch[0]
        if isinstance(first, VerdictWrite):
            written.items.append((first, first.write(self._store)))
            return
        works = [one for one in batch if isinstance(one, Work)]
        by_id = {work.scored.trace.id: work for work in works if work.scored is not None}
        runs = [work.scored for work in by_id.values() if work.scored is not None]
        tools = {tool for work in by_id.values() for tool in work.context.tools}
        if works[0].is_recorded:
            pairs = self._store.journal.write_judged(runs, tools)
        else:
            self._store.journal.add(runs, tools)
            pairs = [(one, None) for one in runs]
        for scored, rescored in pairs:
            work = by_id.pop(scored.trace.id)
            written.items.append((work, [] if rescored is None else [rescored]))
        written.gone.extend(by_id.values())

    def leave_to_parent(self) -> None:
        """Forget what waits, in a forked child."""
        for item in self.held:
            item.context.counters.add("waiting_to_store", -1)
        self.held.clear()
        self._renew_at, self._look_at = float("inf"), 0.0

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


def _is_of_content(error: BaseException | None) -> bool:
    """Return whether a write failed because of what was to be written, and would fail again."""
    from sqlalchemy.exc import DataError  # loaded by now, as something was written

    while error is not None:
        if isinstance(error, (*_OF_CONTENT, DataError)) and not isinstance(error, ConfigError):
            return True
        error = error.__cause__
    return False


def _batch(items: deque[Item], most: int) -> list[Item]:
    """Take the first item; if it is a run, with those that follow it and are written alike."""
    first = items.popleft()
    batch = [first]
    while (
        isinstance(first, Work)
        and items
        and isinstance(items[0], Work)
        and items[0].is_recorded == first.is_recorded
        and len(batch) < most
    ):
        batch.append(items.popleft())
    return batch
