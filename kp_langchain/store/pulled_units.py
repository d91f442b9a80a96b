"""Units of a registry as the store has them, and what becomes of one that is pulled.

A unit comes in as `quarantined`. A person or a rule admits or rejects it; only an admitted one is
recalled. One that changes at the registry is quarantined again. A rejected one stays rejected,
without its text. `PulledUnits` in `pulled_queries` reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kp_langchain.errors import StoreError
from kp_langchain.store.rows import body_of, clean_name, clean_text, json_text

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_OBJECTIVE_CHARS = 10_000

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


class AdmittedUnit(NamedTuple):
    """An admitted unit, with what its contributor claims, as the driver gives it."""

    trace_id: str
    objective: str
    success: Any
    confidence: Any
    quality_score: Any


def check_admissible(row: Mapping[str, Any], digest: str | None) -> None:
    """Check that a unit may be admitted by someone who has read the text with this digest.

    Raises:
        StoreError: It may not; the message says why.
    """
    id_ = row["trace_id"]
    has_changed = row["changed_at"] is not None and row["state"] == "quarantined"
    if has_changed if digest is None else digest != row["digest"]:
        what = "has changed, or new rules find more in it" if has_changed else "has another digest"
        raise StoreError(
            f"{id_} {what}; read what it is now, and give the digest that stands "
            f"there: kp-langchain quarantine show {id_}"
        )
    if row["state"] == "rejected":
        raise StoreError(
            f"{id_} was rejected, and its text was deleted; to have it pulled again: "
            f"kp-langchain quarantine forget {id_}"
        )


def fate_of(
    row: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    own: Collection[str],
    rejected: Collection[str],
) -> Fate:
    """Return what is to become of a unit.

    Args:
        row: Its row.
        before: Its row in the store, if there is one.
        own: Ids of runs of this store.
        rejected: The digests of rejected units.
    """
    if row["trace_id"] in own:
        return "own run"
    if row["body"] is None:
        return "too large"
    if (before is not None and before["state"] == "rejected") or row["digest"] in rejected:
        return "rejected"
    if before is None:
        return "new"
    if before["registry"] != row["registry"]:
        return "other registry"
    domain_before = str(before["domain"])  # a registry takes no account of case
    is_same = domain_before.casefold() == row["domain"].casefold()
    is_same = is_same and before["digest"] == row["digest"]
    known = findings_of(before["findings"])
    are_known = all(one in known for one in findings_of(row["findings"]))
    return "unchanged" if is_same and are_known else "changed"


def has_same_text(
    row: Mapping[str, Any], before: Mapping[str, Any], body_before: str | None
) -> bool:
    """Return whether our rules still make the same of a unit that the registry did not change."""
    is_same = findings_of(row["findings"]) == findings_of(before["findings"])
    return is_same and _content(row["body"]) == _content(body_before or "")


def _content(text: str) -> Any:
    """Return a body without its time, which is that of the pull where the unit has none."""
    body = read_json(text)
    if isinstance(body, dict) and isinstance(metadata := body.get("metadata"), dict):
        metadata.pop("created_at", None)
    return body


def read_json(text: Any) -> Any:
    """Return what JSON says; None for damaged text."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # damaged
        return None


def row_of(unit: ExaminedUnit, *, registry: str, domain: str, now: datetime) -> dict[str, Any]:
    """Return the row of the table `pulled_units` for a unit."""
    trace = unit.trace
    return {
        "trace_id": trace.id,
        "registry": clean_text(registry),
        "domain": clean_name(domain),
        "objective": clean_text(trace.task.objective[:_OBJECTIVE_CHARS]),
        "quality_score": trace.metadata.quality_score,
        "success": trace.metadata.success,
        "confidence": trace.outcome.confidence,
        "state": "quarantined",
        "findings": json_text([dict(finding) for finding in unit.findings]),
        "is_clean": not unit.findings,
        "body": body_of(trace),
        "digest": clean_name(unit.digest),
        "pulled_at": now,
    }


def unit_of(row: Mapping[str, Any]) -> PulledUnit:
    """Return the unit that a row holds, whatever its findings are."""
    return PulledUnit(**{**row, "findings": findings_of(row["findings"])})


def findings_of(text: object) -> list[dict[str, str]]:
    """Return the findings that a column holds; a note if another program has damaged them."""
    values = read_json(text)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        return [{"kind": "unreadable", "words": "they were changed outside kp-langchain"}]
    return [{str(name): str(value) for name, value in one.items()} for one in values]
