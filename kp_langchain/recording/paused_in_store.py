"""Joins a resumed run to what it recorded before it paused, in this process or in another one.

A paused run is kept in memory, and redacted in the store. The worker decides which copy to use when
the resumed run ends, because only the store knows whether another process has resumed the run
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.first_half import first_half_record
from kp_langchain.recording.resumed_answers import name_answers, note_rejections
from kp_langchain.run_keys import stored_form
from kp_langchain.store.paused_runs import FirstHalf, paused_run_key

if TYPE_CHECKING:
    from typing import Any

    from kp_langchain.recording.run_record import Resumption, RunRecord
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
        most: Paused runs that the store keeps at most.
    """

    writer: StoreWriter
    domain: str
    agent_id: str | None
    rules: Rules
    days: float
    most: int

    def add(self, record: RunRecord, body: dict[str, Any]) -> None:
        """Queue the first half of a paused run to be written.

        Args:
            record: The run, which is marked as stored once it is.
            body: What it recorded, redacted; see `first_half_body`.
        """
        place = self._place(record.thread_id)
        if place is None or record.paused_at is None:
            return
        first_half = FirstHalf(
            place, record.first_half_id, record.checkpoint_id, record.paused_at, body
        )
        self.writer.store_first_half(first_half, record, days=self.days, most=self.most)

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


def join(record: RunRecord, claim: Callable[[str], FirstHalf | None] | None) -> None:
    """Put what a resumed run recorded before its pauses in front of the rest.

    Args:
        record: The run; changed.
        claim: Removes and returns the first half of the run paused in a thread from the store;
            None without a store.
    """
    parts = [record]
    while (resumption := parts[-1].resumption) is not None and resumption.earlier is not None:
        parts.append(resumption.earlier)
    for part in reversed(parts):
        resumption, part.resumption = part.resumption, None
        if resumption is None:
            continue
        first_half = None
        if claim is not None and part.is_langgraph:
            first_half = claim(resumption.thread_id)
        earlier = _earlier_record(part, resumption, first_half)
        requests = None if earlier is None else earlier.requested_calls
        name_answers([call for _, call in part.timeline()], requests)
        if earlier is not None:
            part.prepend(earlier)
    note_rejections((call for _, call in record.timeline()), record.requested_calls.names_of_paused)


def _earlier_record(
    record: RunRecord, resumption: Resumption, first_half: FirstHalf | None
) -> RunRecord | None:
    """Return the record of what a run recorded before a pause; None if that is lost.

    Args:
        record: What was recorded after the pause.
        resumption: The pause.
        first_half: What the store has of the run.
    """
    own = resumption.earlier
    if first_half is None:
        if own is None or not own.is_stored:
            return own
        # It was in the store and no longer is. Another process has resumed it if the run resumed
        # here continues from another checkpoint, or has recorded nothing since.
        is_elsewhere = None not in (own.checkpoint_id, resumption.checkpoint_id) and (
            own.checkpoint_id != resumption.checkpoint_id
        )
        return None if is_elsewhere or not record.head else own
    if own is not None and (
        own.first_half_id == first_half.half_id or _is_later(own, first_half, resumption)
    ):
        return own
    try:
        earlier = first_half_record(first_half.body, record.owner)
    except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
        warn_once(
            "half",
            "what a paused run of another process recorded cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return own
    record.owner.counters.add("continued")
    return earlier


def _is_later(own: RunRecord, first_half: FirstHalf, resumption: Resumption) -> bool:
    """Return whether, of two pauses in one thread, ours is the one that ended, not the store's."""
    if own.checkpoint_id is not None and own.checkpoint_id == first_half.checkpoint_id:
        return True  # another handler recorded the same run
    if resumption.checkpoint_id is not None:
        if resumption.checkpoint_id == first_half.checkpoint_id:
            return False
        if resumption.checkpoint_id == own.checkpoint_id:
            return True
    return own.paused_at is not None and own.paused_at > first_half.paused_at
