"""`Contribution`: one trace on its way to a registry; `Standing`: what that registry allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal

State = Literal["pending", "sent", "dead", "withdrawn"]
STATES: tuple[State, ...] = ("pending", "sent", "dead", "withdrawn")


@dataclass(frozen=True, slots=True)
class Contribution:
    """One trace that passed, and how far it has come on its way to a registry.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        registry: URL of the registry it goes to.
        state: `pending`, `sent`, `dead` (the registry will never take it) or `withdrawn`.
        queued_at: When it entered the outbox, in UTC.
        changed_at: When it last changed, in UTC.
        due_at: When the next request about it is due, in UTC.
        attempts: Number of requests made about it.
        first_attempt_at: When its present body was first sent, in UTC; None if it never was, or if
            the registry is known not to have taken it. As long as a pending contribution has one,
            the registry may have it, and is asked before it is sent again.
        registry_id: The registry's id for it, once sent. A pending one that has an id replaces the
            registry's copy.
        reason: Why the last attempt failed; None if it succeeded.
        issues: The registry's complaints, each with `path` and `message`.
        body: The JSON text to send; None once it was sent or withdrawn.
        withdraw_asked: Whether a verdict asks for its withdrawal, which the sender carries out.
    """

    trace_id: str
    registry: str
    state: State
    queued_at: datetime
    changed_at: datetime
    due_at: datetime
    attempts: int = 0
    first_attempt_at: datetime | None = None
    registry_id: str | None = None
    reason: str | None = None
    issues: Sequence[dict[str, str]] | None = None
    body: str | None = None
    withdraw_asked: bool = False

    @property
    def status(self) -> str:
        """The state; `to withdraw` or `to replace` if the registry's copy is still to change."""
        if self.withdraw_asked and self.state in ("pending", "sent"):
            return "to withdraw"
        return "to replace" if self.state == "pending" and self.registry_id else self.state

    @property
    def unit_id(self) -> str:
        """The id that the registry knows it by: its own id once sent, before that the body's id.

        The id in the body can differ from the store's `trace_id`, which is cut to fit an index.
        """
        if self.registry_id is not None:
            return self.registry_id
        body_id: str = json.loads(self.body or "{}").get("id", self.trace_id)
        return body_id

    @property
    def idempotency_key(self) -> str:
        """SHA-256 of the body in hexadecimal: the same for every attempt, in every process."""
        return sha256((self.body or "").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Standing:
    """Limits and failures of one registry under one key, shared by all processes on a store.

    Attributes:
        registry: The registry's URL.
        key_id: An identifier of the API key that does not reveal the key.
        quiet_until: When the quiet period ends, in UTC; nothing is sent before.
        quiet_reason: Why there is a quiet period.
        stopped: Whether the quiet period is there because the registry refused the key or the URL.
        failures: Number of attempts in a row that got no usable answer.
        throttled_at: When it answered 429 within the last hour (UTC, ISO 8601).
    """

    registry: str
    key_id: str
    quiet_until: datetime | None = None
    quiet_reason: str | None = None
    stopped: bool = False
    failures: int = 0
    throttled_at: Sequence[str] = ()


def with_new_idempotency_key(body: str, attempts: int) -> str:
    """Return the same JSON padded with spaces, as a text that no attempt so far has sent.

    Its hash is the idempotency key. For a day, a registry replays its earlier answer to an
    identical text: a refusal even after its cause was mended, or a success even after the unit was
    deleted.

    Args:
        body: The JSON text.
        attempts: Number of attempts so far.
    """
    return body.rstrip(" ") + " " * attempts
