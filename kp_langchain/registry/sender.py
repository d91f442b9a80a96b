"""Send the contributions in an outbox to one registry, on a background thread.

Each attempt is recorded before and after the request. So another process can continue after this
one ends: if it is unknown whether a unit arrived, the registry is asked before the unit is sent
again, with the same idempotency key.
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
from datetime import UTC, datetime

from kp_langchain._forksafe import ForkSafeLock, NoForkSection
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.decision import may_leave
from kp_langchain.registry import pace
from kp_langchain.registry.client import ANONYMOUS, Registry
from kp_langchain.registry.contribution_state import after_attempt, after_lookup
from kp_langchain.registry.responses import Answer
from kp_langchain.store import Contribution, Standing, TraceStore

log = logging.getLogger("kp_langchain")

# The turn of one process, the pause that lets another take its turn, and the wait for a turn.
_TURN_S = 2.0
_OTHERS_TURN_S = 0.05
_RETRY_TURN_S = 1.0
_STORE_TROUBLE_S = 15.0
# A smaller difference between the clocks is measurement error.
_CLOCK_SET_S = 1.0


def _now() -> datetime:
    return datetime.now(UTC)


def _steady() -> float:
    """Return seconds of a clock that cannot be set; it counts sleep if the system supports that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Sender:
    """Sends the contributions of one store to one registry.

    Args:
        store: The store whose outbox is sent.
        registry: The registry to send to.
        clock: Returns the time in UTC.
        steady: Returns seconds of a clock that cannot be set.
    """

    def __init__(
        self,
        store: TraceStore,
        registry: Registry,
        *,
        clock: Callable[[], datetime] = _now,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self._outbox = store.outbox
        self._store = store  # because a shared store stays open only while it is referenced
        self._registry = registry
        self._clock = clock
        if steady is None:
            steady = _steady if clock is _now else lambda: clock().timestamp()
        self._steady = steady
        self._no_fork = NoForkSection()
        self._reset()
        _senders.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requested_pass = 0
        self._completed_pass = 0
        self._wait_s: float | None = None
        # The standing last read or written, with the time by both clocks.
        self._last_standing: tuple[Standing, datetime, float] | None = None

    @property
    def registry(self) -> Registry:
        """The registry to send to."""
        return self._registry

    def wake(self) -> None:
        """Start a pass of the background thread soon; never blocks for long."""
        with self._condition:
            self._requested_pass += 1
            self._condition.notify_all()
            if self._thread is None or not self._thread.is_alive():
                with suppress(RuntimeError):  # the interpreter is shutting down
                    thread = threading.Thread(target=self._work, name="kp_sender", daemon=True)
                    thread.start()
                    self._thread = thread

    def drain(self, timeout_s: float) -> bool:
        """Send and withdraw until nothing is pending for this registry.

        Returns at once if the quiet period of the registry is longer than `timeout_s`.

        Args:
            timeout_s: The longest time to take, in seconds; a running attempt is not awaited
                longer.

        Returns:
            Whether nothing is pending.
        """
        until = time.monotonic() + timeout_s
        while True:
            wait_s = self._run_pass(until)
            if wait_s is None:
                return True
            left_s = until - time.monotonic()
            if wait_s >= left_s:
                # The last one may have been sent just now, or by another process.
                return wait_s < float("inf") and self._is_empty()
            time.sleep(max(wait_s, _OTHERS_TURN_S))

    def _is_empty(self) -> bool:
        with (
            suppress(Exception),
            self._no_fork,
        ):  # the background thread has logged errors of the store
            return self._outbox.next_pending(self._registry.url) is None
        return False

    def _run_pass(self, until: float) -> float | None:
        """Wait for a pass of the background thread; return its wait until the next, in seconds."""
        self.wake()
        if self._thread is None:
            return self._send_due(until)
        with self._condition:
            pass_number = self._requested_pass
            is_complete = self._condition.wait_for(
                lambda: self._completed_pass >= pass_number, max(0.0, until - time.monotonic())
            )
            return self._wait_s if is_complete else float("inf")

    def _work(self) -> None:
        while True:
            with self._condition:
                pass_number = self._requested_pass
            wait_s = self._send_due()
            with self._condition:
                self._completed_pass = pass_number
                self._wait_s = wait_s
                self._condition.notify_all()
                self._condition.wait_for(
                    lambda: self._requested_pass > self._completed_pass, wait_s
                )

    def _send_due(self, until: float = float("inf")) -> float | None:
        """Send what is due; return the seconds until the next pass, None if nothing is pending."""
        try:
            return self._send_with_turn(until)
        except BaseException as error:  # noqa: BLE001 - the next attempt may succeed
            warn_once(
                f"sender:{type(error).__name__}",
                "contributions of %s cannot be sent (%s); they stay pending",
                self._store.location,
                describe_error(error),
            )
            return _STORE_TROUBLE_S

    def _send_with_turn(self, until: float) -> float | None:
        with ExitStack() as block, ExitStack() as turn:
            with self._no_fork:
                if self._outbox.next_pending(self._registry.url) is None:
                    return None
                if self._registry.key_id == ANONYMOUS:
                    self._warn_of_no_key()
                    return pace.LONGEST_BACKOFF_S
                now = self._clock()
                stored_standing, standing = self._standings(now)
                quiet_s = pace.wait_s(standing, now)
                if quiet_s > 0.0 and standing is stored_standing:
                    return quiet_s
                with suppress(Exception):  # the request reports what is wrong
                    self._registry.open()
                has_turn = turn.enter_context(self._outbox.sending())
            block.callback(self._end_turn, turn.pop_all())
            if not has_turn:
                return _RETRY_TURN_S
            until = min(until, time.monotonic() + _TURN_S)
            while time.monotonic() < until:
                wait_s = self._send_one()
                if wait_s is None or wait_s > 0.0:
                    return wait_s
        return _OTHERS_TURN_S

    def _end_turn(self, turn: ExitStack) -> None:
        with self._no_fork:
            turn.close()

    def _standings(self, now: datetime) -> tuple[Standing, Standing]:
        """Return the stored standing, and the same adjusted to a clock that was set."""
        stored_standing = self._outbox.standing(self._registry.url, self._registry.key_id)
        standing = stored_standing
        if self._last_standing is not None and self._last_standing[0] == stored_standing:
            _, at, steady_at = self._last_standing
            set_by_s = (now - at).total_seconds() - (self._steady() - steady_at)
            if abs(set_by_s) > _CLOCK_SET_S:
                standing = pace.shift_times(stored_standing, set_by_s)
        else:
            self._last_standing = (stored_standing, now, self._steady())
        return stored_standing, pace.restart_quiet_period(standing, now)

    def _remember_standing(self, standing: Standing, now: datetime) -> None:
        """Remember the standing and the time by both clocks."""
        self._last_standing = (standing, now, self._steady())

    def _send_one(self) -> float | None:
        """Attempt the first pending contribution.

        Returns:
            0.0 after an attempt; the seconds until the attempt is due; None if nothing is pending.
        """
        now = self._clock()
        with self._no_fork:
            stored_standing, standing = self._standings(now)
            stored_unit = self._outbox.next_pending(self._registry.url)
            if stored_unit is None:
                return None
            if _must_be_sent(stored_unit) and not _may_leave(stored_unit):
                self._reject_private(stored_unit, now)
                return 0.0
            due_in_s = pace.due_in_s(stored_unit, now)
            wait_s = max(pace.wait_s(standing, now), due_in_s)
            if wait_s <= 0.0:
                standing = pace.before_request(
                    standing, now, contributes=_must_be_sent(stored_unit)
                )
                unit = replace(
                    stored_unit,
                    attempts=stored_unit.attempts + 1,
                    first_attempt_at=stored_unit.first_attempt_at or now,
                    changed_at=now,
                )
                if not self._outbox.begin(unit, standing, read=stored_unit):
                    return 0.0
                self._remember_standing(standing, now)
            else:
                if standing is not stored_standing:
                    self._outbox.save(standing)
                    self._remember_standing(standing, now)
                if due_in_s > 0.0 and self._outbox.make_due_after_clock_change(
                    self._registry.url, now
                ):
                    return 0.0
                return wait_s
        self._attempt(unit, standing, stored_unit)
        return 0.0

    def _attempt(self, unit: Contribution, standing: Standing, stored_unit: Contribution) -> None:
        contributes = _must_be_sent(stored_unit)
        if stored_unit.withdraw_asked:
            answer = self._registry.withdraw(unit.unit_id)
        elif contributes:
            answer = self._registry.contribute((unit.body or "").encode(), unit.idempotency_key)
        else:
            answer = self._registry.find(unit.unit_id)
        now = self._clock()
        standing = pace.after_answer(standing, answer, now, contributes=contributes)
        is_lookup = not contributes and not stored_unit.withdraw_asked
        new_state = (
            after_lookup(unit, answer, now) if is_lookup else after_attempt(unit, answer, now)
        )
        with self._no_fork:
            self._outbox.settle(new_state, standing, read=stored_unit)
            self._remember_standing(standing, now)
        if new_state.first_attempt_at is not None or not is_lookup:
            self._log_answer(new_state, answer)

    def _reject_private(self, unit: Contribution, now: datetime) -> None:
        """Give up a contribution that must not leave this machine; earlier versions queued some."""
        reason = "not sent: its metadata says visibility or privacy_level 'private'"
        self._outbox.settle(replace(unit, state="dead", reason=reason, changed_at=now), read=unit)
        warn_once(
            f"kept here:{self._registry.url}",
            "%s is %s. See this and later ones with: kp-langchain outbox",
            unit.trace_id,
            reason,
        )

    def _warn_of_no_key(self) -> None:
        warn_once(
            f"no key:{self._registry.url}",
            "nothing is sent to the registry at %s, because there is no key for it; runs that "
            "passed stay pending in the outbox. Get a key: "
            "kp-langchain register --agent-id kp:agent:NAME",
            self._registry.url,
        )

    def _log_answer(self, unit: Contribution, answer: Answer) -> None:
        url = self._registry.url
        if pace.is_stale(answer):
            pass  # the next attempt has a current answer
        elif answer.kind == "stopped":
            warn_once(
                f"stopped:{url}:{self._registry.key_id}",
                "the registry at %s accepts nothing (%s); runs that passed stay pending in the "
                "outbox. Check the key (kp-langchain register, KP_API_KEY) and registry_url, then "
                "run: kp-langchain outbox send",
                url,
                answer.reason,
            )
        elif answer.kind == "refused" and unit.withdraw_asked:
            warn_once(
                f"not withdrawn:{url}",
                "the registry at %s does not delete %s (%s), so the trace stays public; the "
                "deletion is retried every hour. See this and later ones with: "
                "kp-langchain outbox, kp-langchain doctor",
                url,
                unit.trace_id,
                answer.reason,
            )
        elif answer.kind == "refused":
            warn_once(
                f"refused:{url}",
                "the registry at %s refuses %s (%s). See this and later ones with: "
                "kp-langchain outbox",
                url,
                unit.trace_id,
                answer.reason,
            )
        elif answer.kind == "later":
            warn_once(
                f"later:{url}",
                "the registry at %s cannot accept a trace now (%s); it is retried later. "
                "See kp-langchain outbox",
                url,
                answer.reason,
            )
        with suppress(Exception):  # the host's handlers and filters may raise
            log.info(
                "kp.contribution %s %s (attempt %d)%s",
                unit.status,
                unit.trace_id,
                unit.attempts,
                f": {unit.reason}" if unit.reason else "",
            )


def _must_be_sent(unit: Contribution) -> bool:
    """Return whether the next request sends the text of the contribution.

    Otherwise it is to be withdrawn, or looked up because an attempt had no answer.
    """
    return not unit.withdraw_asked and unit.first_attempt_at is None


def _may_leave(unit: Contribution) -> bool:
    """Return whether the metadata allow the contribution to leave this machine."""
    try:
        metadata = json.loads(unit.body or "")["metadata"]
        return may_leave(metadata["visibility"], metadata["privacy_level"])
    except (ValueError, KeyError, TypeError):
        return False


def sender_for(store: TraceStore, registry: Registry) -> Sender:
    """Return the sender for `store` and `registry`, one per process."""
    key = (store.location, registry)
    with _senders_lock:
        sender = _senders_by_target.get(key)
        if sender is None:
            sender = _senders_by_target[key] = Sender(store, registry)
        return sender


def drain_all(timeout_s: float) -> None:
    """Send what is pending with all senders of this process.

    Args:
        timeout_s: The longest time to take, in seconds.
    """
    until = time.monotonic() + timeout_s
    for sender in list(_senders_by_target.values()):
        sender.drain(max(0.0, until - time.monotonic()))


# Never removed: contributions may be pending after the handler that recorded them is gone.
_senders_by_target: dict[tuple[str, Registry], Sender] = {}
_senders_lock = ForkSafeLock()
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender._reset()  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
