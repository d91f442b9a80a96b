"""What is written into the store beside runs, in its turn: verdicts and paused runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import UnknownRunError
from kp_langchain.store.verdicts import judge_stored

if TYPE_CHECKING:
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.engine import Engine
    from kp_langchain.recording.handler_context import HandlerContext
    from kp_langchain.recording.pauses import PausedRunStore
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict


@dataclass(slots=True, eq=False)
class VerdictWrite:
    """A verdict on a run that has ended; it is written behind the run itself.

    Attributes:
        engine: Announces the runs that it changes.
        context: The handler through which it was reported.
        run: A trace id, a run id, or the beginning of either.
        verdict: The verdict; its note is redacted by `build`.
    """

    engine: Engine
    context: HandlerContext
    run: str
    verdict: Verdict
    number: int = 0
    what: str = "a verdict"

    @property
    def counters(self) -> Counters:
        """Where it counts as waiting for the store."""
        return self.context.counters

    @property
    def lane(self) -> Lane | None:
        """Behind the run, which may still be on its way; and the redactor may take its time."""
        context = self.context
        has_user_code = context.judges_with_user_code or context.builder.redactor is not None
        return context.functions.lane if has_user_code else None

    def build(self) -> bool:
        """Redact the note."""
        self.verdict = self.context.builder.redact_note(self.verdict, self.run)
        self.counters.add("queued_verdicts", -1)
        return True

    def write(self, store: TraceStore) -> None:
        """Write it, and announce the runs that it changes."""
        context = self.context
        try:
            runs = judge_stored(
                store.database,
                self.run,
                self.verdict,
                registry=context.builder.registry,
                jobs_of=lambda runs: store.journal.jobs.score_rows(runs, context.tools),
            )
        except UnknownRunError as error:
            self.counters.add("verdict_errors")
            warn_once(
                "verdict",
                "an outcome was reported of a run that is not known: %s",
                describe_error(error),
            )
            return
        self.counters.add("rescored", len(runs))
        for run in runs:
            self.engine.announce_rescored(context, run, self.number)
        context.wake_sender()


@dataclass(slots=True, eq=False)
class PauseWrite:
    """What a paused run recorded.

    Attributes:
        engine: Counts paused runs that the store drops for it.
        context: The handler that recorded it.
        paused_runs: The paused runs of that handler, in its store.
        record: The run.
        body: What it recorded, redacted by `build`.
    """

    engine: Engine
    context: HandlerContext
    paused_runs: PausedRunStore
    record: RunRecord
    body: dict[str, Any] | None = None
    number: int = 0
    what: str = "what a paused run recorded"
    counters: None = None

    @property
    def lane(self) -> Lane | None:
        """Where `build` is called, if that may take its time."""
        context = self.context
        return context.functions.lane if context.builder.may_wait(self.record) else None

    def build(self) -> bool:
        """Redact it; return False if it is no longer paused."""
        self.body = self.context.builder.build_half(self.record)
        return self.body is not None

    def write(self, _: TraceStore) -> None:
        """Write it, in place of an earlier one."""
        if self.body is not None:
            self.engine.expired_pauses += self.paused_runs.put(self.record, self.body)


@dataclass(slots=True, eq=False)
class PauseDeletion:
    """The end of a pause that nobody resumed: something new was asked in its thread.

    Attributes:
        context: The handler that saw it.
        paused_runs: The paused runs of that handler, in its store.
        thread_id: The thread.
        until: The latest time, in UTC, at which the run paused.
    """

    context: HandlerContext
    paused_runs: PausedRunStore
    thread_id: str
    until: datetime
    number: int = 0
    what: str = "the end of a pause"
    counters: None = None
    lane: None = None

    def build(self) -> bool:
        """Return that there is something to do."""
        return True

    def write(self, _: TraceStore) -> None:
        """Delete what the run recorded, if it is there."""
        self.paused_runs.forget(self.thread_id, self.until)
