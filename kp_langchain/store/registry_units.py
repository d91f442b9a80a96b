"""What goes to a registry, `Contribution`, and what comes from one, `PulledUnit`.

A unit comes in as `quarantined`. A person or a rule admits or rejects it; only an admitted one is
recalled. One that changes at the registry is quarantined again. A rejected one stays rejected,
without its text. `Outbox` has the contributions, `PulledUnits` the units.

A unit is a trace or a pattern. Beside them are the patterns that a person admitted or rejected of
those of this store's own runs; they have no registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import KnowledgeUnit
    from kp_langchain.schema import ReasoningTrace

ContributionState = Literal["pending", "sent", "dead", "withdrawn"]
CONTRIBUTION_STATES: tuple[ContributionState, ...] = ("pending", "sent", "dead", "withdrawn")


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
        reason: Why the last attempt failed, in one line; None if it succeeded.
        body: The JSON text to send; None once it was sent or withdrawn.
        withdraw_asked: Whether a verdict asks for its withdrawal, which the sender carries out.
    """

    trace_id: str
    registry: str
    state: ContributionState
    queued_at: datetime
    changed_at: datetime
    due_at: datetime
    attempts: int = 0
    first_attempt_at: datetime | None = None
    registry_id: str | None = None
    reason: str | None = None
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

    Its hash is the idempotency key. For a day, a registry repeats its answer to an identical text.
    It repeats a refusal whose cause was mended, and a success whose unit was deleted since.

    Args:
        body: The JSON text.
        attempts: Number of attempts so far.
    """
    return body.rstrip(" ") + " " * attempts


# ------------------------------------------------------------------ what comes from a registry

UnitState = Literal["quarantined", "admitted", "rejected"]
UNIT_STATES: tuple[UnitState, ...] = ("quarantined", "admitted", "rejected")

OWN = ""
"""Stands in `PulledUnit.registry` for this store's own runs."""

Fate = Literal["new", "unchanged", "changed", "rejected", "own run", "other registry"]
"""What `PulledUnits.write` did with a unit.

`new` and `changed` units are quarantined, also one whose domain changed. `unchanged` ones keep
their state; their text is written anew if it is redacted otherwise than before. `rejected` ones
were rejected before, under this id or with this content. The others are not written: the id is that
of a run of this store, or of a unit of another registry or a pattern of this store.
"""


@dataclass(frozen=True, slots=True)
class ExaminedUnit:
    """A unit as it may be written: validated, bounded and redacted.

    Attributes:
        unit: The redacted trace or pattern.
        digest: A hash of what the registry sent; of a pattern of this store, of the pattern.
        findings: What looks like planted instructions in it, each with texts by name.
        namespace: Of a pattern of this store: whose runs it is of; None if anybody's.
        members: Of a pattern of this store: the ids of the traces of its members.
    """

    unit: KnowledgeUnit
    digest: str
    findings: Sequence[Mapping[str, str]] = ()
    namespace: str | None = None
    members: Sequence[str] = ()

    @property
    def trace(self) -> ReasoningTrace:
        """The trace; of a pattern, its steps as one."""
        return self.unit.as_trace()


@dataclass(frozen=True, slots=True)
class PulledUnit:
    """One unit of a registry, or a pattern of this store, without its text.

    Attributes:
        trace_id: The id of its trace, or of the pattern.
        registry: URL of the registry that it comes from; empty if this store's runs are its source.
        domain: The domain that it was pulled for.
        objective: Its task in words, redacted, or what the pattern is for; empty for a rejected
            unit.
        quality_score: The score that its contributor claims, 0 to 1.
        success: Whether its contributor claims that the run reached its goal.
        confidence: The confidence that its contributor claims, 0 to 1.
        state: `quarantined`, `admitted` or `rejected`.
        findings: What looks like planted instructions in it, each with texts by name.
        digest: A hash of what the registry sent.
        pulled_at: When its present content was pulled, in UTC.
        changed_at: When a change at the registry was noticed, in UTC; None if there was none.
        decided_at: When it was last decided on, in UTC. If it changed later, the decision was on
            its earlier content.
        decided_by: Who or what decided.
        namespace: Whose runs may be shown it; None if all.
        members: The ids of the traces of a pattern's members; empty for a unit of a registry.
    """

    trace_id: str
    registry: str
    domain: str
    objective: str
    quality_score: float
    success: bool
    confidence: float
    state: UnitState
    findings: Sequence[Mapping[str, str]]
    digest: str
    pulled_at: datetime
    changed_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None
    namespace: str | None = None
    members: Sequence[str] = ()
