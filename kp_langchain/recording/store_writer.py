"""What goes through an engine into its store: runs and verdicts; `StoreWriter` writes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError, UnknownRunError
from kp_langchain.store.jobs import JUDGE, LEASE_S
from kp_langchain.store.verdicts import judge_stored

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from kp_langchain.gate.run import Run, ScoredTrace
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.run_builder import AskOutcome
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.windows import DomainWindow
    from kp_langchain.store import TraceStore
    from kp_langchain.store.jobs import Backoff
    from kp_langchain.verdict import Verdict

log = logging.getLogger("kp_langchain")

MAX_BATCH = 32
"""The most messages of one step besides the first, and the most runs of one transaction."""

_OF_CONTENT = (TypeError, ValueError, OverflowError, RecursionError)


Stage = Literal["lane", "engine", "record", "judge", "earlier runs", "write", "done"]
"""What an item waits for: a job of its lane, the engine, its turn to be recorded, judged or
written, that earlier runs are recorded; or nothing more."""


@dataclass(slots=True, eq=False)
class Item:
    """A run, a paused run or a verdict on its way through an engine.

    Attributes:
        context: The handler that it comes from.
        kind: What it is.
        record: What a run recorded; None of a run of another process, and once it is built.
        run: The same, redacted.
        ask_outcome: The outcome function, with the run that it is to judge.
        judged: The run as it is judged, without regard to the kept runs that it may repeat.
        scored: The same beside the kept runs: those that this process knows, and, once it is
            written, those of all processes.
        verdict: A verdict on a run that has ended.
        verdict_on: That run: a trace id, a run id, or the beginning of either.
        number: Its place in the order in which things came.
        steps: Does what is to be done; yields what it waits for.
        stage: What it waits for now.
        is_live: Whether those who wait for its handler wait for it.
        is_recorded: Whether the run is in the store, not judged yet.
        waits_for_store: Whether it is to be written, and its fate is open.
        fate: What became of it in the store: it was written, or dropped; or its run was deleted
            meanwhile, or judged by another process. None if it is not written yet.
        failures: How often it could not be written.
        changed_runs: The runs that a verdict changed when it was written: this one, or one that
            came before its run was judged.
    """

    context: HandlerContext
    kind: Literal["run", "pause", "verdict"]
    record: RunRecord | None = None
    run: Run | None = None
    ask_outcome: AskOutcome | None = None
    judged: ScoredTrace | None = None
    scored: ScoredTrace | None = None
    verdict: Verdict | None = None
    verdict_on: str = ""
    number: int = 0
    steps: Iterator[Stage] = field(init=False)
    stage: Stage = "engine"
    is_live: bool = True
    is_recorded: bool = False
    waits_for_store: bool = False
    fate: Literal["written", "dropped", "gone"] | None = None
    failures: int = 0
    changed_runs: Sequence[ScoredTrace] = ()

    @property
    def is_unrecorded(self) -> bool:
        """Whether it is a run that is nowhere but in this process."""
        return self.kind == "run" and self.scored is None and not self.is_recorded

    def let_go(self) -> None:
        """Have nobody wait for it any more."""
        if self.is_live:
            self.is_live = False
            self.context.n_live -= 1

    @property
    def is_held(self) -> bool:
        """Whether the store could not take it, and it is tried again."""
        return self.stage == "write" and not self.is_live


class StoreWriter:
    """The writes of one engine; used by its thread only.

    Args:
        store: The store.
        max_waiting: Most things that wait for the store; of more, the oldest are dropped.
        backoff: While it is pausing, nothing is written.

    """

    def __init__(self, store: TraceStore, max_waiting: int, backoff: Backoff) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._backoff = backoff
        self._renew_at = float("inf")
        self._look_at = 0.0

    # ------------------------------------------------------------------ the journal

    def record(self, items: Sequence[Item]) -> None:
        """Write runs that are not judged yet; those that fail are written once they are judged."""
        if not items or self._backoff.is_pausing:
            return
        try:
            self._store.journal.record([item.run for item in items if item.run is not None])
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            if len(items) > 1:  # perhaps because of only one of them
                for item in items:
                    self.record([item])
            elif not _is_of_content(error):
                self._note_failure("run", error)
            return
        for item in items:
            item.is_recorded = True
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
        """Renew the leases of the runs that this process judges, if that is due."""
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

    def write(self, items: Sequence[Item]) -> None:
        """Write judged runs and verdicts in their order, and set the fate of each.

        What the store cannot take now keeps none, and is to be written again.
        """
        for kind, group in groupby(items, key=lambda item: (item.kind, item.is_recorded)):
            alike = list(group)
            size = MAX_BATCH if kind[0] == "run" else 1
            for at in range(0, len(alike), size):
                self._try_to_write(alike[at : at + size])
        held = [item for item in items if item.fate is None]
        for item in held[: max(0, len(held) - self._max_waiting)]:
            _drop(item)

    def _try_to_write(self, batch: Sequence[Item]) -> None:
        if self._backoff.is_pausing:
            return
        try:
            self._write_batch(batch)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            item = batch[0]
            if len(batch) > 1:  # perhaps because of only one of them
                for item in batch:
                    self._try_to_write([item])
            elif _is_of_content(error):
                _drop(item)
                warn_once(
                    f"content:{item.kind}:{type(error).__name__}",
                    "a %s cannot be kept in the store (%s); counted under 'not_stored'",
                    item.kind,
                    describe_error(error),
                )
            else:
                item.failures += 1
                self._note_failure(item.kind, error)
        else:
            self._backoff.note_success()

    def _write_batch(self, batch: Sequence[Item]) -> None:
        """Write some runs in one transaction, or a verdict."""
        if batch[0].verdict is not None:
            self._write_verdict(batch[0], batch[0].verdict)
            return
        by_id = {item.judged.trace.id: item for item in batch if item.judged is not None}
        runs = [item.judged for item in by_id.values() if item.judged is not None]
        tools = {tool for item in batch for tool in item.context.tools}

        def admit(run: ScoredTrace, connection: Connection) -> ScoredTrace:
            item = by_id[run.trace.id]
            if item.scored is not None:  # those are no longer among the kept of this process
                run = replace(run, replaces=item.scored.replaces)
            item.scored = _window(item, run).admit(run, connection)
            return item.scored

        for window in {_window(by_id[one.trace.id], one) for one in runs if one.decision == "kept"}:
            window.read_kept()
        journal = self._store.journal
        pairs: Sequence[tuple[ScoredTrace, ScoredTrace | None]]
        if batch[0].is_recorded:
            pairs = journal.write_judged(runs, tools, admit)
        else:
            pairs = [(one, None) for one in journal.add(runs, tools, admit)]
        for item in batch:
            item.fate = "gone"
        for scored, rescored in pairs:
            item = by_id[scored.trace.id]
            item.fate, item.scored = "written", scored
            item.changed_runs = [] if rescored is None else [rescored]
        # Perhaps an earlier attempt was committed, and the connection cut before its answer.
        unsure = [id_ for id_, item in by_id.items() if item.fate == "gone" and item.failures]
        for id_ in journal.judged(unsure):
            by_id[id_].fate = "written"

    def _write_verdict(self, item: Item, verdict: Verdict) -> None:
        context = item.context
        try:
            item.changed_runs = judge_stored(
                self._store.database,
                item.verdict_on,
                verdict,
                jobs=self._store.journal.jobs,
                registry=context.registry_url,
                tools=context.tools,
            )
        except UnknownRunError as error:
            context.counters.add("verdict_errors")
            warn_once(
                "verdict",
                "an outcome was reported of a run that is not known: %s",
                describe_error(error),
            )
        context.counters.add("rescored", len(item.changed_runs))
        item.fate = "written"

    def leave_to_parent(self) -> None:
        """Forget what the parent process does."""
        self._renew_at, self._look_at = float("inf"), 0.0

    def _note_failure(self, kind: str, error: Exception) -> None:
        """Begin a pause, and warn, once per store, kind of item and kind of error."""
        self._backoff.note_failure()
        warn_once(
            f"write:{kind}:{self._store.location}:{type(error).__name__}",
            "a %s cannot be kept in %s now (%s); it waits in memory and is tried again",
            kind,
            self._store.location,
            describe_error(error),
        )


def _window(item: Item, run: ScoredTrace) -> DomainWindow:
    return item.context.windows.of(run.trace.metadata.task_domain)


def _drop(item: Item) -> None:
    """Give up a run or a verdict; no other run is a repeat of it."""
    item.fate = "dropped"
    if item.scored is not None:
        _window(item, item.scored).drop(item.scored)


def _is_of_content(error: BaseException | None) -> bool:
    """Return whether a write failed because of what was to be written, and would fail again."""
    from sqlalchemy.exc import DataError  # loaded by now, as something was written

    while error is not None:
        if isinstance(error, (*_OF_CONTENT, DataError)) and not isinstance(error, ConfigError):
            return True
        error = error.__cause__
    return False
