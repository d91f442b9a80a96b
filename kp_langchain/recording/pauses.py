"""Runs of this process that are paused until a human decides, and what resumes them.

A graph that pauses ends its root run; the resumed run is a new root run with the same `thread_id`,
and often reaches another handler object, because handlers are made per request. So the paused runs
belong to the process and not to a handler.

A paused run is kept in memory, and redacted in the store. Which copy is used is decided when the
resumed run ends: that in memory, unless the store has another run of this thread by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.bounds import RecordOwner
from kp_langchain.recording.calls import Call, RequestedCalls, UnnamedCallKey
from kp_langchain.recording.first_half import first_half_record
from kp_langchain.run_keys import stored_form
from kp_langchain.store.paused_runs import paused_run_key

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.store import TraceStore

_lock = ForkSafeLock()
_paused_runs: dict[tuple[str, int], RunRecord] = {}  # by thread and the identity of the owner
_limit = 1000


def set_limit(runs: int) -> None:
    """Keep at most `runs` paused runs; for a new one, the one paused for longest is dropped."""
    global _limit
    _limit = runs


def has_any() -> bool:
    """Return whether any run is paused, without a lock: for almost every run the answer is no."""
    return bool(_paused_runs)


def add(record: RunRecord) -> None:
    """Add a run that paused; one that is still paused in the same thread is abandoned."""
    key, excess = _key(record), []
    with _lock:
        old = _paused_runs.pop(key, None)
        _paused_runs[key] = record
        while len(_paused_runs) > _limit:
            excess.append(_paused_runs.pop(next(iter(_paused_runs))))
    if old is not None:
        old.owner.counters.add("abandoned")
    for one in excess:
        one.owner.counters.add(_fate(one))


def _key(record: RunRecord) -> tuple[str, int]:
    return record.thread_id or "", id(record.owner)


def _fate(record: RunRecord) -> str:
    # Any process can continue a run that is in the store.
    return "handed_over" if record.owner.keeps_paused else "abandoned"


def take(thread_id: str, owner: RecordOwner, until: datetime | None = None) -> RunRecord | None:
    """Remove and return the run paused in a thread: the owner's, else one of equal scope.

    Args:
        thread_id: The thread.
        owner: The owner of the run that resumes it.
        until: The latest time, in UTC, at which it may have paused; None for any.
    """
    own_key = (thread_id, id(owner))
    with _lock:
        for key in (own_key, *_paused_runs):
            record = _paused_runs.get(key)
            if (
                record is not None
                and key[0] == thread_id
                and record.owner.scope == owner.scope
                and not _is_after(record, until)
            ):
                return _paused_runs.pop(key)
    return None


def _is_after(record: RunRecord, until: datetime | None) -> bool:
    return record.paused_at is not None and until is not None and record.paused_at > until


def give_up(owner: RecordOwner) -> None:
    """Forget the paused runs of one owner; other processes can resume those in the store."""
    with _lock:
        keys = [key for key, record in _paused_runs.items() if record.owner is owner]
        records = [_paused_runs.pop(key) for key in keys]
    for record in records:
        owner.counters.add(_fate(record))


def holds(record: RunRecord) -> bool:
    """Return whether a run is still paused."""
    with _lock:
        return _paused_runs.get(_key(record)) is record


def count(owner: RecordOwner) -> int:
    """Return how many runs of one owner are paused."""
    with _lock:
        return sum(record.owner is owner for record in _paused_runs.values())


@dataclass(frozen=True, slots=True)
class PausedRunStore:
    """The paused runs of one handler's domain and agent, in its store.

    Attributes:
        store: The store.
        scope: The handler's domain and agent; see `RecordOwner`.
        rules: What is redacted besides what always is.
        days: Days for which a paused run is kept.
        max_paused: The most paused runs that the store keeps.
    """

    store: TraceStore
    scope: tuple[str, str | None]
    rules: Rules
    days: float
    max_paused: int

    @classmethod
    def of(
        cls, store: TraceStore | None, scope: tuple[str, str | None], settings: Settings
    ) -> PausedRunStore | None:
        """Return the paused runs in a store; None where they are not kept."""
        days, most = settings.paused_days, settings.max_paused_runs
        if store is None or days <= 0:
            return None
        return cls(store, scope, settings.redaction, days, most)

    def put(self, record: RunRecord, body: dict[str, Any]) -> int:
        """Write what a paused run recorded, redacted; return how many others were dropped for it.

        Args:
            record: The run; nothing is written if it was resumed meanwhile.
            body: See `first_half_body`.
        """
        place, paused_at = self._place(record.thread_id or ""), record.paused_at
        if place is None or paused_at is None or not holds(record):
            return 0
        return self.store.paused.put(
            place, body, paused_at=paused_at, days=self.days, most=self.max_paused
        )

    def claim(self, thread_id: str) -> dict[str, Any] | None:
        """Remove and return what the run paused in a thread recorded.

        None also if the store cannot give it, which is logged.
        """
        place = self._place(thread_id)
        try:
            return None if place is None else self.store.paused.claim(place)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"claim:{self.store.location}:{type(error).__name__}",
                "what a run recorded before it paused cannot be read from %s now (%s); it is "
                "scored without that",
                self.store.location,
                describe_error(error),
            )
            return None

    def forget(self, thread_id: str, until: datetime) -> None:
        """Delete what the run paused in a thread by a time, in UTC, recorded."""
        if (place := self._place(thread_id)) is not None:
            self.store.paused.forget(place, until)

    def _place(self, thread_id: str) -> str | None:
        """Return the key under which a run paused in a thread is stored."""
        thread = thread_id and stored_form("thread", thread_id, self.rules)
        return paused_run_key(thread, *self.scope) if thread else None


def join_paused(record: RunRecord, paused_runs: PausedRunStore | None) -> None:
    """Put what a resumed run recorded before its pauses in front of the rest.

    Args:
        record: The run; changed.
        paused_runs: What paused runs recorded, in the store; None where it is not kept.
    """
    parts = [record]
    while (resumption := parts[-1].resumption) is not None and resumption.earlier is not None:
        parts.append(resumption.earlier)
    for part in reversed(parts):
        resumption, part.resumption = part.resumption, None
        if resumption is None:
            continue
        is_kept = paused_runs is not None and part.is_langgraph
        body = paused_runs.claim(resumption.thread_id) if paused_runs and is_kept else None
        earlier = _earlier_record(part, resumption.earlier, body)
        requests = None if earlier is None else earlier.requested_calls
        _name_answers([call for _, call in part.timeline], requests)
        if earlier is not None:
            part.prepend(earlier)
    _note_rejections((call for _, call in record.timeline), record.requested_calls.names_of_paused)


def _earlier_record(
    record: RunRecord, in_memory: RunRecord | None, body: dict[str, Any] | None
) -> RunRecord | None:
    """Return the record of what a run recorded before a pause; None if that is lost.

    Another process may have resumed the run in memory meanwhile, and paused another one.

    Args:
        record: What was recorded after the pause.
        in_memory: What this process recorded before it.
        body: What the store has of the run.
    """
    if body is None:
        # A run that another process has resumed to its end has nothing more to record here.
        is_over = record.owner.keeps_paused and not record.timeline
        return None if is_over else in_memory
    if in_memory is not None and str(in_memory.run_id) == body.get("run_id"):
        return in_memory
    try:
        earlier = first_half_record(body, record.owner)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        warn_once(
            "half",
            "what a paused run of another process recorded cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return in_memory
    record.owner.counters.add("continued")
    return earlier


def _name_answers(calls: Sequence[Call], earlier: RequestedCalls | None) -> None:
    """Complete the calls that were answered before their requests were known.

    Args:
        calls: The calls since the run was resumed; changed.
        earlier: The calls requested before the pause; None if they are lost. Then calls answered
            without a request leave no step.
    """
    names_without_id = [
        one.name for one in calls if one.kind == "tool" and one.tool_call_id is None
    ]
    for call in calls:
        if not isinstance(key := call.key, UnnamedCallKey):
            continue
        call.key = ("tool", key.call_id)
        request = None if earlier is None else earlier.take(key.call_id)
        if request is None:
            call.is_void = True
        elif request.name in names_without_id:  # a tool that did not know the id answered it
            names_without_id.remove(request.name)
            call.is_void = True
        else:
            call.name = request.name
            call.input = request.arguments if isinstance(request.arguments, dict) else {}
            if call.has_failed and key.by_human:
                call.reject()


def _note_rejections(calls: Iterable[Call], names_of_paused: Mapping[str, str]) -> None:
    """Mark failed calls as rejected if the tool had asked a human who refused.

    Args:
        calls: The calls of the whole run; changed.
        names_of_paused: The calls in which a tool had asked: tools' names by call ids.
    """
    names = set(names_of_paused.values())
    for call in calls:
        call_id = call.tool_call_id
        has_asked = call.name in names if call_id is None else call_id in names_of_paused
        if call.has_failed and call.is_after_rejection and has_asked:
            call.reject()
