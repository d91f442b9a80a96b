"""Send the contributions in an outbox to one registry, on a background thread."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib import import_module

from kp_langchain._forksafe import ForkSafeLock, NoForkSection
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.registry import pace
from kp_langchain.registry.client import ANONYMOUS, Registry
from kp_langchain.registry.contributions import (
    after_answer,
    before_request,
    give_up_private,
    is_private,
    log_answer,
    make_request,
    next_request,
    warn_of_no_key,
)
from kp_langchain.store import Standing, TraceStore

# The turn of one process, the pause that lets another take its turn, and the wait for a turn.
_TURN_S = 2.0
_OTHERS_TURN_S = 0.05
_RETRY_TURN_S = 1.0
_STORE_TROUBLE_S = 15.0


def _now() -> datetime:
    return datetime.now(UTC)


class Sender:
    """Sends the contributions of one store to one registry.

    Args:
        store: The store whose outbox is sent.
        registry: The registry to send to.
        clock: Returns the time in UTC.
    """

    def __init__(
        self,
        store: TraceStore,
        registry: Registry,
        *,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._outbox = store.outbox
        self._store = store  # because a shared store stays open only while it is referenced
        self._registry = registry
        self._clock = clock
        self._no_fork = NoForkSection()
        self._reset()
        _senders.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requested_pass = 0
        self._completed_pass = 0
        self._wait_s: float | None = None

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
                    warn_of_no_key(self._registry)
                    return pace.LONGEST_BACKOFF_S
                quiet_s = pace.wait_s(self._standing(), self._clock())
                if quiet_s > 0.0:
                    return quiet_s
                with suppress(Exception):  # the request reports what is wrong
                    # A fork during an import leaves its lock locked in the child for ever.
                    import_module("httpx")
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

    def _standing(self) -> Standing:
        return self._outbox.standing(self._registry.url, self._registry.key_id)

    def _send_one(self) -> float | None:
        """Attempt the first pending contribution.

        Returns:
            0.0 after an attempt; the seconds until the attempt is due; None if nothing is pending.
        """
        now = self._clock()
        with self._no_fork:
            standing = self._standing()
            stored_unit = self._outbox.next_pending(self._registry.url)
            if stored_unit is None:
                return None
            request = next_request(stored_unit)
            if request == "contribute" and is_private(stored_unit):
                self._outbox.settle(give_up_private(stored_unit, now), read=stored_unit)
                return 0.0
            wait_s = max(pace.wait_s(standing, now), pace.due_in_s(stored_unit, now))
            if wait_s > 0.0:
                return wait_s
            contributes = request == "contribute"
            standing = pace.before_request(standing, now, contributes=contributes)
            unit = before_request(stored_unit, now)
            if not self._outbox.begin(unit, standing, read=stored_unit):
                return 0.0
        answer = make_request(self._registry, unit, request)
        now = self._clock()
        standing = pace.after_answer(standing, answer, now, contributes=contributes)
        unit = after_answer(unit, request, answer, now)
        with self._no_fork:
            self._outbox.settle(unit, standing, read=stored_unit)
        log_answer(unit, request, answer, self._registry)
        return 0.0


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
