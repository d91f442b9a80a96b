"""Sends what an outbox holds for one registry, on a thread of its own.

Every attempt is written down before it is made and after. So whatever ends the process, the next
one goes on: where it is not known whether a text arrived, the registry is asked before it is sent
again, and then with the same idempotency key.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kp_langchain._forksafe import ForkSafeLock, Undisturbed
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate import may_leave
from kp_langchain.registry import pace
from kp_langchain.registry.answers import Answer
from kp_langchain.registry.client import ANONYMOUS, Registry
from kp_langchain.store import Contribution, Standing, TraceStore
from kp_langchain.store.contribution import with_new_idempotency_key

log = logging.getLogger("kp_langchain")

# One holder's share before others get their turn, and how soon to look whether they are done.
_SHARE_S = 2.0
_OTHERS_TURN_S = 0.05
_LOOK_AGAIN_S = 1.0
_STORE_TROUBLE_S = 15.0
# A clock that is off by less was not set, but read a moment later.
_CLOCK_SET_S = 1.0


def _now() -> datetime:
    return datetime.now(UTC)


def _steady() -> float:
    """Seconds that go on however the clock is set, where the system can tell also in its sleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Sender:
    """Sends the contributions of one store to one registry.

    Args:
        store: The store whose outbox it empties.
        registry: Where to.
        clock: Tells the time in UTC.
        steady: Tells seconds that no setting of that clock changes.
    """

    def __init__(
        self,
        store: TraceStore,
        registry: Registry,
        *,
        clock: Callable[[], datetime] = _now,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self._store = store  # because a shared store stays open only while it is referenced
        self._outbox = store.outbox
        self._registry = registry
        self._clock = clock
        if steady is None:
            steady = _steady if clock is _now else lambda: clock().timestamp()
        self._steady = steady
        self._undisturbed = Undisturbed()
        self._reset()
        _senders.add(self)

    def _reset(self) -> None:
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = 0
        self._answered = 0
        self._wait_s: float | None = None
        # The standing that was last read or written, when by the clock, and by the steady one.
        self._seen: tuple[Standing, datetime, float] | None = None

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
            Whether nothing is left.
        """
        until = time.monotonic() + timeout_s
        while True:
            wait_s = self._turn_taken(until)
            if wait_s is None:
                return True
            left_s = until - time.monotonic()
            if wait_s >= left_s:
                # The last one may have gone out as the time ended, or by another process.
                return wait_s < float("inf") and self._has_nothing_left()
            time.sleep(max(wait_s, _OTHERS_TURN_S))

    def _has_nothing_left(self) -> bool:
        with suppress(Exception), self._undisturbed:  # a store in trouble was told of already
            return self._outbox.next_pending(self._registry.url) is None
        return False

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
                self._store.location,
                describe_error(error),
            )
            return _STORE_TROUBLE_S

    def _send_due_alone(self, until: float) -> float | None:
        with ExitStack() as block, ExitStack() as alone:
            with self._undisturbed:
                if self._outbox.next_pending(self._registry.url) is None:
                    return None
                if self._registry.key_id == ANONYMOUS:
                    self._warn_of_no_key()
                    return pace.LONGEST_REST_S
                now = self._clock()
                stored, standing = self._standings(now)
                quiet_s = pace.wait_s(standing, now)
                if quiet_s > 0.0 and standing is stored:
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

    def _standings(self, now: datetime) -> tuple[Standing, Standing]:
        """Return the standing as it is stored, and as it is by a clock that may have been set."""
        stored = self._outbox.standing(self._registry.url, self._registry.key_id)
        standing = stored
        if self._seen is not None and self._seen[0] == stored:
            _, at, steady_at = self._seen
            set_by_s = (now - at).total_seconds() - (self._steady() - steady_at)
            if abs(set_by_s) > _CLOCK_SET_S:
                standing = pace.shifted(stored, set_by_s)
        else:
            self._seen = (stored, now, self._steady())
        return stored, pace.set_right(standing, now)

    def _note(self, standing: Standing, now: datetime) -> None:
        """Remember the standing that was written."""
        self._seen = (standing, now, self._steady())

    def _send_one(self) -> float | None:
        """Attempt what is due first. Return 0.0, or the seconds to wait before, None for never."""
        now = self._clock()
        with self._undisturbed:
            stored, standing = self._standings(now)
            read = self._outbox.next_pending(self._registry.url)
            if read is None:
                return None
            if _is_to_be_sent(read) and not _may_leave(read):
                self._keep_here(read, now)
                return 0.0
            due_in_s = pace.due_in_s(read, now)
            wait_s = max(pace.wait_s(standing, now), due_in_s)
            if wait_s <= 0.0:
                standing = pace.before_request(standing, now, contributes=_is_to_be_sent(read))
                unit = replace(
                    read,
                    attempts=read.attempts + 1,
                    first_attempt_at=read.first_attempt_at or now,
                    changed_at=now,
                )
                if not self._outbox.begin(unit, standing, read=read):
                    return 0.0
                self._note(standing, now)
            else:
                if standing is not stored:
                    self._outbox.save(standing)
                    self._note(standing, now)
                if due_in_s > 0.0 and self._outbox.make_due_after_clock_change(
                    self._registry.url, now
                ):
                    return 0.0
                return wait_s
        self._attempt(unit, standing, read)
        return 0.0

    def _attempt(self, unit: Contribution, standing: Standing, read: Contribution) -> None:
        contributes = _is_to_be_sent(read)
        if read.withdraw_asked:
            answer = self._registry.withdraw(unit.unit_id)
        elif contributes:
            answer = self._registry.contribute((unit.body or "").encode(), unit.idempotency_key)
        else:
            answer = self._registry.find(unit.unit_id)
        now = self._clock()
        standing = pace.after_answer(standing, answer, now, contributes=contributes)
        is_lookup = not contributes and not read.withdraw_asked
        after = looked_up(unit, answer, now) if is_lookup else settled(unit, answer, now)
        with self._undisturbed:
            self._outbox.settle(after, standing, read=read)
            self._note(standing, now)
        if after.first_attempt_at is not None or not is_lookup:
            self._tell(after, answer)

    def _keep_here(self, unit: Contribution, now: datetime) -> None:
        """Give up what must not leave this machine, such as what an earlier version let pass."""
        reason = "not sent: its metadata says visibility or privacy_level 'private'"
        self._outbox.settle(replace(unit, state="dead", reason=reason, changed_at=now), read=unit)
        warn_once(
            f"kept here:{self._registry.url}",
            "%s is %s. This and later ones: kp-langchain outbox",
            unit.trace_id,
            reason,
        )

    def _warn_of_no_key(self) -> None:
        warn_once(
            f"no key:{self._registry.url}",
            "nothing is sent to the registry at %s, because there is no key for it; what passed "
            "stays pending in the outbox. Get one: kp-langchain register --agent-id kp:agent:NAME",
            self._registry.url,
        )

    def _tell(self, unit: Contribution, answer: Answer) -> None:
        url = self._registry.url
        if pace.is_stale(answer):
            pass  # the next attempt tells how matters stand
        elif answer.verdict == "stopped":
            warn_once(
                f"stopped:{url}:{self._registry.key_id}",
                "the registry at %s takes nothing (%s); what passed stays pending in the outbox. "
                "See to the key (kp-langchain register, KP_API_KEY) or to registry_url, then: "
                "kp-langchain outbox send",
                url,
                answer.reason,
            )
        elif answer.verdict == "refused" and unit.withdraw_asked:
            warn_once(
                f"not withdrawn:{url}",
                "the registry at %s does not delete %s (%s), so it stays public; it is asked again "
                "every hour. This and later ones: kp-langchain outbox, kp-langchain doctor",
                url,
                unit.trace_id,
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
                unit.status,
                unit.trace_id,
                unit.attempts,
                f": {unit.reason}" if unit.reason else "",
            )


def _is_to_be_sent(unit: Contribution) -> bool:
    """Whether the next request about it gives the registry its text.

    Else it is to be withdrawn, or an attempt of which nothing is known may have arrived.
    """
    return not unit.withdraw_asked and unit.first_attempt_at is None


def _may_leave(unit: Contribution) -> bool:
    """Whether the text of it says that it may leave this machine."""
    try:
        metadata = json.loads(unit.body or "")["metadata"]
        return may_leave(metadata["visibility"], metadata["privacy_level"])
    except (ValueError, KeyError, TypeError):
        return False


def settled(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution as the registry's answer to an attempt leaves it.

    Args:
        unit: The contribution as it was tried.
        answer: The answer to giving it, or to withdrawing it.
        now: When the answer came.
    """
    unit = replace(unit, changed_at=now)
    rest_s = pace.rest_s(unit.attempts)
    if unit.withdraw_asked:
        if answer.verdict == "done":
            return replace(unit, state="withdrawn", reason=None, issues=None, body=None)
        if answer.verdict == "refused":
            rest_s = pace.LONGEST_REST_S
        due_at = now if answer.verdict == "stopped" or answer.throttled else _after(now, rest_s)
        return replace(unit, due_at=due_at, reason=answer.reason, issues=answer.issues)
    if answer.verdict == "done" and answer.replayed:
        # The answer to an earlier request with this text: what it stored may be gone since.
        return replace(unit, body=_fresh(unit), due_at=_after(now, rest_s), reason=answer.reason)
    if answer.verdict == "done":
        return _sent(unit, answer)
    if answer.was_turned_away:
        # Nothing of it is there, and the same text would be answered with the same refusal.
        unit = replace(unit, first_attempt_at=None, body=_fresh(unit))
    if pace.is_stale(answer):
        return replace(unit, due_at=_after(now, rest_s), reason=answer.reason)
    if answer.verdict == "refused":
        return replace(unit, state="dead", reason=answer.reason, issues=answer.issues)
    due_at = now
    if answer.verdict == "later" and not answer.throttled:
        # To the back of the queue, so that one that always fails does not hold the others up.
        due_at = _after(now, rest_s)
    return replace(unit, due_at=due_at, reason=answer.reason)


def looked_up(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution as it is once the registry was asked whether it has it.

    Args:
        unit: The contribution, of which nobody knows whether it arrived.
        answer: The answer to looking for it.
        now: When the answer came.
    """
    # What turns out not to be there is sent next, also if the clock was set back meanwhile.
    to_send = replace(unit, first_attempt_at=None, changed_at=now, due_at=min(unit.due_at, now))
    if answer.verdict == "refused":
        return replace(to_send, registry_id=None)
    if answer.verdict != "done":
        first = unit.first_attempt_at
        return replace(settled(unit, answer, now), first_attempt_at=first, body=unit.body)
    if _is_same(unit, answer.unit):
        return _sent(replace(unit, changed_at=now), answer)
    # An earlier text of it is there, which this one replaces.
    return replace(to_send, registry_id=answer.registry_id or unit.registry_id)


def _sent(unit: Contribution, answer: Answer) -> Contribution:
    id_ = answer.registry_id or unit.registry_id
    return replace(unit, state="sent", registry_id=id_, reason=None, issues=None, body=None)


def _fresh(unit: Contribution) -> str | None:
    return unit.body and with_new_idempotency_key(unit.body, unit.attempts)


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def _is_same(unit: Contribution, copy: Any) -> bool:
    """Whether a registry's copy says what this text says, in all that a verdict changes.

    The rest of a unit never changes. Of those who confirmed it the registry may know more.
    """
    if copy is None:  # it tells no more than that it has one
        return unit.registry_id is None
    try:
        ours, theirs = _verdict_in(json.loads(unit.body or "")), _verdict_in(copy)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return ours[0] == theirs[0] and ours[1] <= theirs[1]


def _verdict_in(unit: Any) -> tuple[list[Any], set[Any]]:
    metadata = unit["metadata"]
    figures = [metadata["success"], metadata["quality_score"], unit["outcome"]["confidence"]]
    return figures, set(metadata.get("validated_by") or ())


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
