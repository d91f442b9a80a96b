"""`PausedRunStore`: what one handler's paused runs recorded, redacted, in its store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import allow_forks
from kp_langchain.run_keys import stored_form
from kp_langchain.store.paused_runs import FirstHalf, paused_run_key

if TYPE_CHECKING:
    from typing import Any

    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.redaction.custom_rules import Rules


@dataclass(frozen=True, slots=True)
class PausedRunStore:
    """The paused runs of one handler's domain and agent, in its store.

    Attributes:
        writer: Writes into the store.
        domain: The handler's domain.
        agent_id: The handler's agent.
        rules: What is redacted besides what always is.
        days: Days for which a paused run is kept.
        max_paused: The most paused runs that the store keeps.
    """

    writer: StoreWriter
    domain: str
    agent_id: str | None
    rules: Rules
    days: float
    max_paused: int

    def add(self, record: RunRecord, body: dict[str, Any]) -> None:
        """Queue the first half of a paused run to be written.

        Args:
            record: The run; its `is_stored` is set once it is written.
            body: What it recorded, redacted; see `first_half_body`.
        """
        place = self._place(record.thread_id)
        if place is None or record.paused_at is None:
            return
        first_half = FirstHalf(
            place, record.first_half_id, record.checkpoint_id, record.paused_at, body
        )
        self.writer.store_first_half(first_half, record, days=self.days, max_paused=self.max_paused)

    def claim(self, thread_id: str) -> FirstHalf | None:
        """Remove and return the first half of the run paused in a thread."""
        place = self._place(thread_id)
        if place is None:
            return None
        with allow_forks():
            return self.writer.claim_first_half(place)

    def forget(self, thread_id: str, until: datetime) -> None:
        """Queue the deletion of the run paused in a thread by `until`, in UTC."""
        self.writer.forget_first_half(lambda: self._place(thread_id), until)

    def _place(self, thread_id: str | None) -> str | None:
        thread = thread_id and stored_form("thread", thread_id, self.rules)
        return paused_run_key(thread, self.domain, self.agent_id) if thread else None
