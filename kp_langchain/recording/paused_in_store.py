"""`PausedRunStore`: what one handler's paused runs recorded, redacted, in its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.run_keys import stored_form
from kp_langchain.store.paused_runs import FirstHalf, paused_run_key

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.store import TraceStore


@dataclass(frozen=True, slots=True)
class PausedRunStore:
    """The paused runs of one handler's domain and agent, in its store.

    Attributes:
        store: The store.
        domain: The handler's domain.
        agent_id: The handler's agent.
        rules: What is redacted besides what always is.
        days: Days for which a paused run is kept.
        max_paused: The most paused runs that the store keeps.
    """

    store: TraceStore
    domain: str
    agent_id: str | None
    rules: Rules
    days: float
    max_paused: int

    def half_of(self, record: RunRecord, body: dict[str, Any]) -> FirstHalf | None:
        """Return the first half of a paused run as it is stored.

        Args:
            record: The run.
            body: What it recorded, redacted; see `first_half_body`.
        """
        place, pause = self.place(record.thread_id), record.pause
        if place is None or pause is None:
            return None
        return FirstHalf(place, pause.half_id, pause.checkpoint_id, pause.paused_at, body)

    def claim(self, thread_id: str) -> FirstHalf | None:
        """Remove and return the first half of the run paused in a thread.

        None also if the store cannot give it, which is logged.
        """
        place = self.place(thread_id)
        if place is None:
            return None
        try:
            with allow_forks():
                return self.store.paused.claim(place)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"claim:{self.store.location}:{type(error).__name__}",
                "what a run recorded before it paused cannot be read from %s now (%s); it is "
                "scored without that",
                self.store.location,
                describe_error(error),
            )
            return None

    def place(self, thread_id: str | None) -> str | None:
        """Return the key under which a run paused in a thread is stored."""
        thread = thread_id and stored_form("thread", thread_id, self.rules)
        return paused_run_key(thread, self.domain, self.agent_id) if thread else None
