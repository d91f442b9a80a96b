"""Units of a registry as the store has them.

A unit comes in as `quarantined`. A person or a rule admits or rejects it; only an admitted one is
recalled. One that changes at the registry is quarantined again. A rejected one stays rejected,
without its text. `PulledUnits` in `pulled_queries` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

UnitState = Literal["quarantined", "admitted", "rejected"]
STATES: tuple[UnitState, ...] = ("quarantined", "admitted", "rejected")

Fate = Literal["new", "unchanged", "changed", "rejected", "own run", "other registry", "too large"]
"""What `PulledUnits.write` did with a unit.

`new` and `changed` units are quarantined, also one whose domain changed. `unchanged` ones keep
their state; their text is written anew if it is redacted otherwise than before. `rejected` ones
were rejected before, under this id or with this content. The others are not written: the id is that
of a run of this store or of a unit of another registry, or no database takes a text of that size.
"""


@dataclass(frozen=True, slots=True)
class ExaminedUnit:
    """A unit as it may be written: validated, bounded and redacted.

    Attributes:
        trace: The redacted trace.
        digest: A hash of what the registry sent.
        findings: What looks like planted instructions in it, each with texts by name.
    """

    trace: ReasoningTrace
    digest: str
    findings: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class PulledUnit:
    """One unit of a registry, as the store has it, without its trace.

    Attributes:
        trace_id: The id of its trace.
        registry: URL of the registry that it comes from.
        domain: The domain that it was pulled for.
        objective: Its task in words, redacted; empty for a rejected unit.
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
