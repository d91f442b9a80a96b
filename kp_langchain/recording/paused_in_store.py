"""Joins a resumed run to what it recorded before it paused, in this process or in another one.

A paused run waits in memory, and redacted in the store. Which of the two counts is settled on the
worker when the resumed run ends, because only the store knows whether another process has gone on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.first_half import record_of
from kp_langchain.recording.requested_calls import name_answers, note_rejections
from kp_langchain.run_keys import stored_form
from kp_langchain.store.paused_runs import Half, place_of

if TYPE_CHECKING:
    from typing import Any

    from kp_langchain.recording.run_record import Resumed, RunRecord
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.redaction.custom_rules import Rules


@dataclass(frozen=True, slots=True)
class Halves:
    """The paused runs of one handler's domain and agent, in its store.

    Args:
        writer: Writes into the store.
        domain: The handler's domain.
        agent_id: The handler's agent.
        rules: What is redacted besides what always is.
        days: For how long they are kept.
        most: How many the store keeps at most.
    """

    writer: StoreWriter
    domain: str
    agent_id: str | None
    rules: Rules
    days: float
    most: int

    def keep(self, record: RunRecord, body: dict[str, Any]) -> None:
        """Have the redacted half of a paused run written."""
        place = self._place(record.thread_id)
        if place is None or record.paused_at is None:
            return
        half = Half(place, record.half_id, record.checkpoint_id, record.paused_at, body)
        self.writer.keep_half(half, record, days=self.days, most=self.most)

    def claim(self, thread_id: str) -> Half | None:
        """Take what waits in a thread out of the store."""
        place = self._place(thread_id)
        if place is None:
            return None
        with allow_forks():
            return self.writer.claim_half(place)

    def forget(self, thread_id: str, until: datetime) -> None:
        """Have deleted what had paused in a thread by `until`, when something new was asked."""
        self.writer.forget_half(lambda: self._place(thread_id), until)

    def _place(self, thread_id: str | None) -> str | None:
        thread = thread_id and stored_form("thread", thread_id, self.rules)
        return place_of(thread, self.domain, self.agent_id) if thread else None


def join(record: RunRecord, claim: Callable[[str], Half | None] | None) -> None:
    """Put what a resumed run recorded before its pauses in front of the rest.

    Args:
        record: The run.
        claim: Takes what waits in a thread out of the store; None where there is none.
    """
    parts = [record]
    while (resumed := parts[-1].resumed) is not None and resumed.earlier is not None:
        parts.append(resumed.earlier)
    for part in reversed(parts):
        resumed, part.resumed = part.resumed, None
        if resumed is None:
            continue
        half = claim(resumed.thread_id) if claim is not None and part.langgraph else None
        earlier = _first_part(part, resumed, half)
        name_answers([call for _, call in part.timeline()], earlier)
        if earlier is not None:
            part.continues(earlier)
    note_rejections(record)


def _first_part(record: RunRecord, resumed: Resumed, half: Half | None) -> RunRecord | None:
    own = resumed.earlier
    if half is None:
        if own is None or not own.kept:
            return own
        # It was in the store. If it was not this pause that ended, or nothing has happened since,
        # another process has gone on from it.
        elsewhere = None not in (own.checkpoint_id, resumed.checkpoint_id) and (
            own.checkpoint_id != resumed.checkpoint_id
        )
        return None if elsewhere or not record.head else own
    if own is not None and (own.half_id == half.half_id or _is_later(own, half, resumed)):
        return own
    try:
        earlier = record_of(half.body, record.recorder)
    except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
        warn_once(
            "half",
            "what a paused run of another process recorded cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return own
    record.recorder.counters.add("continued")
    return earlier


def _is_later(own: RunRecord, half: Half, resumed: Resumed) -> bool:
    """Tell which of two pauses in one thread ended: ours, if it is not the store's."""
    if own.checkpoint_id is not None and own.checkpoint_id == half.checkpoint_id:
        return True  # another handler recorded the same run
    if resumed.checkpoint_id is not None:
        if resumed.checkpoint_id == half.checkpoint_id:
            return False
        if resumed.checkpoint_id == own.checkpoint_id:
            return True
    return own.paused_at is not None and own.paused_at > half.paused_at
