"""Sends what an outbox holds for one registry, on a thread of its own.

Every attempt is written down before it is made and after. So whatever ends the process, the next
one goes on, with the same idempotency key: what the registry has taken already, it takes as that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kp_langchain._forksafe import ForkSafeLock, Undisturbed
from kp_langchain._notices import told, warn_once
from kp_langchain.registry import pace
from kp_langchain.registry.answers import Answer
from kp_langchain.registry.client import Registry
from kp_langchain.store import Contribution, Standing, TraceStore

log = logging.getLogger("kp_langchain")

# One holder's share before others get their turn, and how soon to look whether they are done.
_SHARE_S = 2.0
_OTHERS_TURN_S = 0.05
_LOOK_AGAIN_S = 1.0
_STORE_TROUBLE_S = 15.0
# The registry knows an idempotency key for a day. An attempt older than that may have arrived
# without a trace of it here, so the registry is asked first.
_KEY_KNOWN = timedelta(hours=23)
_NOT_FOUND = 404


def _now() -> datetime:
    return datetime.now(UTC)


class Sender:
    """Sends the contributions of one store to one registry.

    Args:
        store: The store whose outbox it empties.
        registry: Where to.
        clock: Tells the time in UTC.
    """

    def __init__(
        self, store: TraceStore, registry: Registry, *, clock: Callable[[], datetime] = _now
    ) -> None:
        self._outbox = store.outbox
        self._location = store.location
        self._registry = registry
        self._clock = clock
        self._undisturbed = Undisturbed()
        self._reset()
        _senders.add(self)

    def _reset(self) -> None:
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._answered = 0
        self._wait_s: float | None = None
        # The wall clock may jump forward; the silence that a registry asked for must not end then.
        self._quiet_until_monotonic = 0.0

    @property
    def registry(self) -> Registry:
        """Where it sends to."""
        return self._registry

    def wake(self) -> None:
        """Have what is due sent soon; never blocks for long."""
        with self._turn:
            self._asked += 1
            self._turn.notify_all()
            if self._thread is None or not self._thread.is_alive():
                with suppress(RuntimeError):  # the interpreter is shutting down
                    thread = threading.Thread(target=self._work, name="kp_sender", daemon=True)
                    thread.start()
                    self._thread = thread

    def drain(self, timeout_s: float) -> bool:
        """Send, and withdraw, until nothing is left for this registry, or the time is over.

        Returns at once when the registry is to be left alone for longer than the time there is.

        Args:
            timeout_s: Seconds to take at most; an attempt under way is not waited for longer.

        Returns:
            Whether nothing is pending any more.
        """
        until = time.monotonic() + timeout_s
        while True:
            wait_s = self._turn_taken(until)
            if wait_s is None:
                return True
            left_s = until - time.monotonic()
            if wait_s >= left_s:
                return False
            time.sleep(max(wait_s, _OTHERS_TURN_S))

    def _turn_taken(self, until: float) -> float | None:
        """Have the thread go through what is due; return what it says is left to wait for."""
        self.wake()
        if self._thread is None:
            return self._send_due(until)
        with self._turn:
            asked = self._asked
            done = self._turn.wait_for(
                lambda: self._answered >= asked, max(0.0, until - time.monotonic())
            )
            return self._wait_s if done else float("inf")

    def _work(self) -> None:
        while True:
            with self._turn:
                asked = self._asked
            wait_s = self._send_due()
            with self._turn:
                self._answered = asked
                self._wait_s = wait_s
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._asked > self._answered, wait_s)

    def _send_due(self, until: float = float("inf")) -> float | None:
        """Send what is due. Return the seconds until there may be more to do, None for never."""
        try:
            return self._send_due_alone(until)
        except BaseException as error:  # noqa: BLE001 - the next attempt may find things mended
            warn_once(
                f"sender:{type(error).__name__}",
                "sending from %s is held up (%s); what is pending stays so",
                self._location,
                told(error),
            )
            return _STORE_TROUBLE_S

    def _send_due_alone(self, until: float) -> float | None:
        with ExitStack() as block, ExitStack() as alone:
            with self._undisturbed:
                if self._outbox.next_pending(self._registry.url) is None:
                    return None
                quiet_s = self._quiet_until_monotonic - time.monotonic()
                if quiet_s > 0.0:
                    return quiet_s
                with suppress(Exception):  # the request itself will say what is wrong
                    self._registry.open()
                held = alone.enter_context(self._outbox.sending())
            block.callback(self._end, alone.pop_all())
            if not held:
                return _LOOK_AGAIN_S
            until = min(until, time.monotonic() + _SHARE_S)
            while time.monotonic() < until:
                wait_s = self._send_one()
                if wait_s is None or wait_s > 0.0:
                    return wait_s
        return _OTHERS_TURN_S

    def _end(self, alone: ExitStack) -> None:
        with self._undisturbed:
            alone.close()

    def _send_one(self) -> float | None:
        """Attempt what is due first. Return 0.0, or the seconds to wait before, None for never."""
        now = self._clock()
        with self._undisturbed:
            stored = self._outbox.standing(self._registry.url, self._registry.key_id)
            standing = pace.set_right(stored, now)
            unit = self._outbox.next_pending(self._registry.url)
            if unit is None:
                return None
            wait_s = max(
                pace.wait_s(standing, now),
                pace.due_in_s(unit, now),
                self._quiet_until_monotonic - time.monotonic(),
            )
            if wait_s <= 0.0:
                standing = pace.before_request(standing, now)
                read = unit
                unit = replace(
                    read,
                    attempts=read.attempts + 1,
                    first_attempt_at=read.first_attempt_at or now,
                    changed_at=now,
                )
                if not self._outbox.begin(unit, standing, read=read):
                    return 0.0
            elif standing is not stored:
                self._outbox.save(standing)
        if wait_s > 0.0:
            return wait_s
        self._attempt(unit, standing, now)
        return 0.0

    def _attempt(self, unit: Contribution, standing: Standing, began: datetime) -> None:
        first = unit.first_attempt_at or began
        arrived = True
        if unit.withdraw_asked:
            answer = self._registry.withdraw(unit.registry_id or unit.trace_id)
        elif unit.registry_id is None and timedelta(0) <= began - first <= _KEY_KNOWN:
            answer = self._registry.contribute((unit.body or "").encode(), unit.idempotency_key)
        else:
            answer = self._registry.find(unit.registry_id or unit.trace_id)
            arrived = answer.status != _NOT_FOUND
        now = self._clock()
        standing = pace.after_answer(standing, answer, now)
        self._quiet_until_monotonic = time.monotonic() + pace.wait_s(standing, now)
        # What never arrived is sent as if for the first time.
        missing = replace(unit, first_attempt_at=None, registry_id=None)
        unit = settled(unit, answer, now) if arrived else missing
        with self._undisturbed:
            self._outbox.save(unit, standing)
        if arrived:
            self._tell(unit, answer)

    def _tell(self, unit: Contribution, answer: Answer) -> None:
        url = self._registry.url
        if answer.verdict == "stopped":
            warn_once(
                f"stopped:{url}:{self._registry.key_id}",
                "the registry at %s takes nothing (%s); what passed stays pending in the outbox. "
                "See to the key (kp-langchain register, KP_API_KEY) or to registry_url, then: "
                "kp-langchain outbox send",
                url,
                answer.reason,
            )
        elif answer.verdict == "refused":
            warn_once(
                f"refused:{url}",
                "the registry at %s refuses %s (%s). This and later ones: kp-langchain outbox",
                url,
                unit.trace_id,
                answer.reason,
            )
        elif answer.verdict == "later":
            warn_once(
                f"later:{url}",
                "the registry at %s cannot answer for a trace now (%s); it is tried again later. "
                "See kp-langchain outbox",
                url,
                answer.reason,
            )
        with suppress(Exception):  # a handler or filter of the host's
            log.info(
                "kp.contribution %s %s (attempt %d)%s",
                unit.standing_in_words,
                unit.trace_id,
                unit.attempts,
                f": {unit.reason}" if unit.reason else "",
            )


def settled(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution as the registry's answer to an attempt leaves it."""
    unit = replace(unit, changed_at=now)
    if answer.verdict == "done" and unit.withdraw_asked:
        return replace(unit, state="withdrawn", reason=None, issues=None, body=None)
    if answer.verdict == "refused" and unit.withdraw_asked:
        due_at = now + timedelta(seconds=pace.LONGEST_REST_S)
        return replace(unit, due_at=due_at, reason=answer.reason, issues=answer.issues)
    if answer.verdict == "done":
        return replace(
            unit,
            state="sent",
            registry_id=answer.registry_id,
            reason=None,
            issues=None,
            body=None,
        )
    if answer.verdict == "refused":
        return replace(unit, state="dead", reason=answer.reason, issues=answer.issues)
    due_at = now
    if answer.verdict == "later" and not answer.throttled:
        # To the back of the queue, so that one that always fails does not hold the others up.
        due_at = now + timedelta(seconds=pace.rest_s(unit.attempts))
    return replace(unit, due_at=due_at, reason=answer.reason)


def sender_for(store: TraceStore, registry: Registry) -> Sender:
    """Return the sender that this process shares for `store` and `registry`."""
    key = (store.location, registry)
    with _shared_lock:
        sender = _shared.get(key)
        if sender is None:
            sender = _shared[key] = Sender(store, registry)
        return sender


def drain_all(timeout_s: float) -> None:
    """Send, for at most `timeout_s` seconds, what the senders of this process have pending."""
    until = time.monotonic() + timeout_s
    for sender in list(_shared.values()):
        sender.drain(max(0.0, until - time.monotonic()))


# Kept for good: a handler may be gone before what it recorded has been sent.
_shared: dict[tuple[str, Registry], Sender] = {}
_shared_lock = ForkSafeLock()
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender._reset()  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
