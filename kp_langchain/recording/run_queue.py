"""The queue of one handler: from the end of a run to its delivery to the sinks.

A run goes through two threads. The intake makes its redacted draft, which is on disk within
milliseconds. The lane scores it, and may wait: for a model, and for functions of the user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.recording import worker

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.draft import Draft
    from kp_langchain.recording.drafter import Judge
    from kp_langchain.recording.pipeline import Pipeline
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.registry.sender import Sender
    from kp_langchain.verdict import Verdict


class RunQueue:
    """Takes the finished and the paused runs of one handler, and verdicts on earlier ones.

    Args:
        pipeline: What happens to each run.
        writer: Writes into the store; None without a store.
        sender: Sends to the registry; None without one.
        max_queue: Most finished runs that wait, in this process.
        calls_user_code: Whether functions of the user are called for a run.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        writer: StoreWriter | None,
        sender: Sender | None,
        max_queue: int,
        *,
        calls_user_code: bool,
    ) -> None:
        self._pipeline = pipeline
        self._drafter = pipeline.drafter
        self._lane = pipeline.functions.lane
        self._counters = pipeline.functions.counters
        self._writer = writer
        self._sender = sender
        self._max_queue = max_queue
        self._calls_user_code = calls_user_code
        self._has_woken_sender = False
        self._prepared_in = 0  # the process in which all was made ready for the first run
        self.last: ScoredTrace | None = None
        """The newest scored run."""

    @property
    def redactor(self) -> Callable[[str], str] | None:
        """The user's function that redacts further, if there is one."""
        return self._drafter.redactor

    def prepare(self) -> None:
        """Start the threads when the first run begins, so that it does not wait when it ends."""
        if self._prepared_in != os.getpid():
            self._prepared_in = os.getpid()
            worker.intake.start()
            if self._writer is not None:
                self._writer.start(self._adopt)

    def add(self, record: RunRecord) -> None:
        """Take a finished run; drop it (counted) if too many wait."""
        if self._is_of_verifier():
            # a run started by a verifier; verifying it would recurse
            self._counters.add("by_verifiers")
            return
        if self._is_full():
            self._counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self._max_queue,
            )
            return
        self._start_threads()
        self._counters.add("queued")
        record.is_settled = True
        worker.intake.submit(lambda: self._take_in(record))

    def add_paused(self, record: RunRecord) -> None:
        """Have what a paused run recorded kept in the store, too."""
        if self._writer is None or self._is_of_verifier() or self._is_full():
            return
        self._start_threads()
        drafter, lane = self._drafter, self._lane
        if self._may_wait(record):
            worker.intake.submit(lambda: lane.submit(lambda: drafter.store_paused(record)))
        else:
            worker.intake.submit(lambda: drafter.store_paused(record))

    def add_verdict(self, run: str, verdict: Verdict, writer: StoreWriter) -> None:
        """Take a verdict on a run that ended; it is written behind the run itself.

        Args:
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is not redacted yet.
            writer: Writes it.
        """

        def write() -> None:
            try:
                redacted = self._drafter.redact_note(verdict, run)
                writer.write_verdict(
                    run, redacted, self._sender, self._counters, self._deliver_again
                )
            finally:
                self._counters.add("queued_verdicts", -1)

        self._counters.add("queued_verdicts")
        # The run may still wait for intake, or for its score.
        worker.intake.submit(lambda: self._lane.submit(write))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was added so far is scored, stored and delivered.

        Args:
            timeout_s: Seconds to wait at most; None for no limit.

        Returns:
            Whether that was done in time.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        writer, lane = self._writer, self._lane
        if writer is not None:
            writer.start(self._adopt)
            writer.wait_for_thread(left_s())  # what an earlier process left is in the lane then
        if not (worker.intake.wait(left_s()) and lane.wait(left_s())):
            return False
        # Rescored runs are delivered through the lane once the store's thread has written them.
        return writer is None or (writer.wait(left_s()) and lane.wait(left_s()))

    def _is_of_verifier(self) -> bool:
        verifiers = self._pipeline.verifiers
        return verifiers is not None and verifiers.asking

    def _is_full(self) -> bool:
        return worker.intake.waiting + self._lane.waiting >= self._max_queue

    def _may_wait(self, record: RunRecord) -> bool:
        """Return whether its draft calls the user's function, or asks the store."""
        return self._drafter.redactor is not None or record.resumption is not None

    def _start_threads(self) -> None:
        # When a run ends, because an interpreter that is ending starts no threads.
        self._lane.start(calls=self._calls_user_code)
        if self._writer is not None:
            self._writer.start(self._adopt)

    def _take_in(self, record: RunRecord) -> None:
        if self._sender is not None and not self._has_woken_sender:
            self._has_woken_sender = True
            self._sender.wake()  # an earlier process may have left something to send
        if self._may_wait(record):
            self._lane.submit(lambda: self._score(self._pipeline.draft(record)))
        else:
            draft = self._pipeline.draft(record)
            self._lane.submit(lambda: self._score(draft))

    def _score(self, draft: tuple[Draft, Judge | None] | None) -> None:
        try:
            scored = None if draft is None else self._pipeline.score(*draft)
            if scored is not None:
                self._pipeline.deliver(scored, to_user_code=False)
        finally:
            self._counters.add("queued", -1)
        if scored is not None:
            self.last = scored
            self._pipeline.deliver(scored, to_user_code=True)

    def _adopt(self, draft: Draft) -> None:
        """Queue for scoring a run that a dead process left unscored."""

        def score() -> None:
            scored = self._pipeline.score(draft, is_adopted=True)
            if scored is not None:
                self._pipeline.deliver(scored, to_user_code=False)
                self._pipeline.deliver(scored, to_user_code=True)

        self._counters.add("adopted")
        self._lane.submit(score)

    def _deliver_again(self, scored: ScoredTrace) -> None:
        """Deliver a run that was scored again after a verdict; called on the store's thread."""
        self._pipeline.deliver(scored, to_user_code=False)
        self._lane.submit(lambda: self._pipeline.deliver(scored, to_user_code=True))
