"""Sends the contributions in an outbox to one registry, on a background thread.

Each attempt is recorded before and after its request, so another process can continue after this
one ends. If it is unknown whether a unit arrived, it asks the registry first, and then sends the
unit again with the same idempotency key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Literal

from kp_langchain._forksafe import ForkSafeLock, fork_gate
from kp_langchain._logging import warn_once
from kp_langchain.registry.answers import (
    LONGEST_BACKOFF_S,
    Answer,
    after_answer,
    backoff_s,
    json_object,
    parse_json,
    seconds_until,
    wait_s,
)
from kp_langchain.registry.client import ANONYMOUS, Registry
from kp_langchain.store import TraceStore
from kp_langchain.store.jobs import JobLoop, Jobs
from kp_langchain.store.registry_units import Contribution, Standing, with_new_idempotency_key

log = logging.getLogger("kp_langchain")

Request = Literal["contribute", "find", "withdraw"]

# By the kind of the answer, or "kept" for a deletion that is refused.
_WARNINGS = {
    "stopped": "the registry at %s accepts nothing (%s); runs that passed stay pending in the "
    "outbox. Check the key (kp-langchain registry register, KP_API_KEY) and registry_url, then "
    "run: kp-langchain registry outbox send",
    "later": "the registry at %s cannot accept a trace now (%s); it is retried later. "
    "See kp-langchain registry outbox",
    "refused": "the registry at %s refuses %s (%s). See this and later ones with: "
    "kp-langchain registry outbox",
    "kept": "the registry at %s does not delete %s (%s), so the trace stays public; the deletion "
    "is retried every hour. See this and later ones with: kp-langchain registry outbox, "
    "kp-langchain doctor",
}

_NO_KEY = (
    "nothing is sent to the registry at %s, because there is no key for it; runs that passed stay "
    "pending in the outbox. Get a key: kp-langchain registry register --agent-id kp:agent:NAME"
)

# The turn of one process, the pause that lets another take its turn, and the wait for a turn.
_TURN_S = 2.0
_OTHERS_TURN_S = 0.05
_RETRY_TURN_S = 1.0


class Sender:
    """Sends the contributions of one store to one registry, as far as its pace allows.

    Args:
        store: The store whose outbox is sent.
        registry: The registry to send to.
        clock: Returns the time in UTC.

    Attributes:
        registry: The registry to send to.
        loop: Its thread. `loop.drain` sends and withdraws until nothing is pending for this
            registry; it returns at once if the registry's quiet period is longer than its timeout.
    """

    def __init__(
        self,
        store: TraceStore,
        registry: Registry,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._outbox = store.outbox
        self._store = store  # because a shared store stays open only while it is referenced
        self.registry = registry
        self._clock = clock
        failure = f"contributions of {store.location} cannot be sent and stay pending"
        self.loop = JobLoop("kp_sender", self._send_with_turn, failure)

    def _send_with_turn(self, until: float) -> float | None:
        if self._outbox.next_pending(self.registry.url) is None:
            return None
        if self.registry.key_id == ANONYMOUS:
            warn_once(f"no key:{self.registry.url}", _NO_KEY, self.registry.url)
            return LONGEST_BACKOFF_S
        quiet_s = wait_s(self._standing(), self._clock())
        if quiet_s > 0.0:
            return quiet_s
        with suppress(Exception):  # the request reports what is wrong
            # A fork during an import leaves its lock locked in the child for ever.
            import_module("httpx")
        with self._outbox.sending(lasts_s=self.registry.longest_request_s) as lease:
            if lease is None:
                return _RETRY_TURN_S
            until = min(until, time.monotonic() + _TURN_S)
            while time.monotonic() < until:
                due_in_s = self._send_one(lease)
                if due_in_s is None or due_in_s > 0.0:
                    return due_in_s
        return _OTHERS_TURN_S

    def _standing(self) -> Standing:
        return self._outbox.standing(self.registry.url, self.registry.key_id)

    def _send_one(self, lease: Jobs) -> float | None:
        """Attempt the first pending contribution.

        Returns:
            0.0 after an attempt; the seconds until the attempt is due; None if nothing is pending.
        """
        now, standing = self._clock(), self._standing()
        stored_unit = self._outbox.next_pending(self.registry.url)
        if stored_unit is None:
            return None
        due_in_s = max(wait_s(standing, now), seconds_until(stored_unit.due_at, now))
        if due_in_s > 0.0:
            return due_in_s
        request = _next_request(stored_unit)
        unit = replace(
            stored_unit,
            attempts=stored_unit.attempts + 1,
            first_attempt_at=stored_unit.first_attempt_at or now,
            changed_at=now,
        )
        if not self._outbox.begin(unit, read=stored_unit, lease=lease):
            return 0.0
        with fork_gate.opened():
            answer = _make_request(self.registry, unit, request)
        now = self._clock()
        standing = after_answer(standing, answer, now)
        unit = replace(_after_answer(unit, request, answer, now), changed_at=now)
        self._outbox.record_answer(unit, standing, read=stored_unit, lease=lease)
        _log_answer(unit, request, answer, self.registry)
        return 0.0


# ------------------------------------------------------------------ one contribution


def _next_request(unit: Contribution) -> Request:
    """Return the next request about a contribution: `find` if its last attempt had no answer."""
    if unit.withdraw_asked:
        return "withdraw"
    return "contribute" if unit.first_attempt_at is None else "find"


def _make_request(registry: Registry, unit: Contribution, request: Request) -> Answer:
    """Send a request about a contribution and return the answer. Never raises."""
    if request == "contribute":
        return registry.contribute((unit.body or "").encode(), unit.idempotency_key)
    return registry.find(unit.unit_id) if request == "find" else registry.withdraw(unit.unit_id)


def _after_answer(
    unit: Contribution, request: Request, answer: Answer, now: datetime
) -> Contribution:
    """Return the contribution after an answer.

    Args:
        unit: The contribution as it was recorded before the request.
        request: The request.
        answer: The answer.
        now: When it arrived.
    """
    match request, answer.kind:
        case "withdraw", "done":
            return replace(unit, state="withdrawn", reason=None, body=None)
        case "withdraw", "refused":
            in_an_hour = now + timedelta(seconds=LONGEST_BACKOFF_S)
            return replace(unit, due_at=in_an_hour, reason=answer.reason)
        case "withdraw", _:
            return _try_again(unit, answer, now)
        case "find", "refused":  # the registry does not have it, so it is sent next
            return replace(unit, first_attempt_at=None, registry_id=None)
        case "find", "done" if not _has_same_verdict(unit, answer.data.get("unit")):
            # The registry has an earlier text of the unit, which this one replaces.
            registry_id = answer.registry_id or unit.registry_id
            return replace(unit, first_attempt_at=None, registry_id=registry_id)
        case "find", "done":
            return _sent(unit, answer)
        case "contribute", "done" if not answer.is_replayed:
            return _sent(unit, answer)
    if request == "contribute" and (answer.kind == "done" or answer.is_rejected):
        # The answer would be repeated to the same text. If it is a repetition itself, it concerns
        # an earlier request, whose unit may have been deleted since.
        body = unit.body and with_new_idempotency_key(unit.body, unit.attempts)
        first_attempt_at = None if answer.is_rejected else unit.first_attempt_at
        unit = replace(unit, body=body, first_attempt_at=first_attempt_at)
    if request == "contribute" and answer.kind == "refused" and not answer.is_stale:
        return replace(unit, state="dead", reason=answer.reason)
    return _try_again(unit, answer, now)


def _sent(unit: Contribution, answer: Answer) -> Contribution:
    id_ = answer.registry_id or unit.registry_id
    return replace(unit, state="sent", registry_id=id_, reason=None, body=None)


def _try_again(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution as it waits for another attempt.

    An answer that concerns the registry as a whole starts a quiet period there. After any other, it
    goes to the end of the queue, so that a unit that always fails does not block the others.
    """
    is_quiet = answer.is_throttled or (answer.kind == "stopped" and not answer.is_stale)
    due_at = now if is_quiet else now + timedelta(seconds=backoff_s(unit.attempts))
    return replace(unit, due_at=due_at, reason=answer.reason)


def _has_same_verdict(unit: Contribution, copy: Any) -> bool:
    """Return whether the registry's copy has the same verdict as this text."""
    if copy is None:  # the registry does not send its copy
        return unit.registry_id is None
    return _verdict(parse_json(unit.body)) == _verdict(copy)


def _verdict(unit: Any) -> list[Any]:
    metadata, outcome = (json_object(json_object(unit).get(key)) for key in ("metadata", "outcome"))
    return [metadata.get("success"), metadata.get("quality_score"), outcome.get("confidence")]


def _log_answer(unit: Contribution, request: Request, answer: Answer, registry: Registry) -> None:
    """Log what became of a contribution; warn of each kind of trouble once.

    Args:
        unit: The contribution after the answer.
        request: The request.
        answer: The answer.
        registry: The registry.
    """
    if request == "find" and unit.first_attempt_at is None:
        return  # the registry does not have it, so it is sent next
    kind = "kept" if answer.kind == "refused" and request == "withdraw" else answer.kind
    if kind in _WARNINGS and not answer.is_stale:
        trace = (unit.trace_id,) if kind in ("refused", "kept") else ()
        warning = f"{kind}:{registry.url}:{registry.key_id}"
        warn_once(warning, _WARNINGS[kind], registry.url, *trace, answer.reason)
    with suppress(Exception):  # the host's handlers and filters may raise
        reason = f": {unit.reason}" if unit.reason else ""
        log.info(
            "kp.contribution %s %s (attempt %d)%s",
            unit.status,
            unit.trace_id,
            unit.attempts,
            reason,
        )


# ------------------------------------------------------------------ senders of this process


def sender_for(store: TraceStore, registry: Registry) -> Sender:
    """Return the sender for `store` and `registry`, one per process."""
    key = (store.location, registry.url, registry.key_id)
    with _senders_lock:
        sender = _senders_by_target.get(key)
        if sender is None:
            sender = _senders_by_target[key] = Sender(store, registry)
        return sender


# Never removed: contributions may be pending after the handler that recorded them is gone.
_senders_by_target: dict[tuple[str, str, str], Sender] = {}
_senders_lock = ForkSafeLock()
