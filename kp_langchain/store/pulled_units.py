"""`PulledUnits`: what was read from registries, and which of it may be shown to runs.

A unit comes in as `quarantined`. A person or a rule admits or rejects it (`admit`, `admit_clean`,
`reject`); only an admitted one is recalled. One that changes at the registry is quarantined again.
A rejected one stays rejected, without its text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.store import sql
from kp_langchain.store.rows import body_of, clean_name, clean_text, json_text
from kp_langchain.store.stored_run import trace_of

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store.database import Database

_OBJECTIVE_CHARS = 10_000
# What a rule of ours may make different of a unit that the registry did not change.
_TEXT_COLUMNS = ("objective", "body", "findings", "is_clean")

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


class PulledUnits:
    """The units of registries in one store. Got from `TraceStore.pulled`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"PulledUnits({str(self._database.location)!r})"

    def counts(self) -> dict[UnitState, int]:
        """Return the number of units in each state."""
        with self._database.reading() as connection:
            counts = sql.pulled_queries.counts(connection)
        return {state: counts.get(state, 0) for state in STATES}

    def entries(
        self,
        *,
        state: UnitState | None = None,
        domain: str | None = None,
        limit: int | None = 50,
        offset: int = 0,
    ) -> list[PulledUnit]:
        """Return units, those pulled last first.

        Args:
            state: Only those in this state.
            domain: Only those of this domain (exact name).
            limit: At most so many; None for all.
            offset: Skip so many at the beginning.

        Raises:
            ConfigError: `limit` or `offset` is negative, or there is no such state.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise ConfigError(f"limit={limit} and offset={offset} must not be negative")
        if state is not None and state not in STATES:
            raise ConfigError(f"{state!r} is not a state; give one of {', '.join(STATES)}")
        with self._database.reading() as connection:
            rows = sql.pulled_queries.units(
                connection, state=state, domain=domain, limit=limit, offset=offset
            )
        return [_unit(row) for row in rows]

    def get(self, id: str) -> PulledUnit | None:  # noqa: A002 - as TraceStore.get
        """Return the unit that `id` identifies, or None.

        Args:
            id: A trace id, or its first characters.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        with self._database.reading() as connection:
            rows = sql.pulled_queries.find(connection, str(id))
        if len(rows) > 1:
            lines = "".join(f"\n  {row['trace_id']}  {row['state']}" for row in rows)
            raise StoreError(
                f"{str(id)!r} may mean several; give more characters of the id:{lines}"
            )
        return _unit(rows[0]) if rows else None

    def trace(self, trace_id: str) -> ReasoningTrace | None:
        """Return the trace of a unit in any state; None for a rejected or an unknown one.

        Args:
            trace_id: The whole id.

        Raises:
            StoreError: Its body holds no trace.
        """
        with self._database.reading() as connection:
            bodies = sql.pulled_queries.bodies(connection, [trace_id], of_any_state=True)
        return trace_of(_json(bodies[trace_id]) or {}, trace_id) if bodies else None

    def write(self, units: Sequence[ExaminedUnit], *, registry: str, domain: str) -> list[Fate]:
        """Write units in one transaction: all of them or none.

        Args:
            units: The units, each with an id of its own.
            registry: URL of the registry that they come from.
            domain: The domain that they were pulled for.

        Returns:
            For each unit, what became of it.
        """
        now = datetime.now(UTC)
        rows = [_row(unit, registry=registry, domain=domain, now=now) for unit in units]
        ids = [row["trace_id"] for row in rows]
        with self._database.writing() as connection:
            own = sql.pulled_queries.ids_of_own_runs(connection, ids)
            digests = [row["digest"] for row in rows]
            rejected = sql.pulled_queries.rejected_digests(connection, digests)
            before = sql.pulled_queries.locked(connection, ids)
            bodies = sql.pulled_queries.bodies(connection, ids, of_any_state=True)
            fates = [_fate(row, before.get(row["trace_id"]), own, rejected) for row in rows]
            new = [row for row, fate in zip(rows, fates, strict=True) if fate == "new"]
            sql.pulled_queries.insert(connection, new)
            former = []
            for row, fate in zip(rows, fates, strict=True):
                id_ = row["trace_id"]
                if fate == "changed":
                    values = row | {"changed_at": now}
                elif fate == "unchanged" and not _has_same_text(row, before[id_], bodies.get(id_)):
                    values = {name: row[name] for name in _TEXT_COLUMNS}
                else:
                    continue
                sql.pulled_queries.update(connection, id_, values)
                former.append(before[id_])
            if new or former:
                sql.pulled_queries.note_change(connection, former)
        return fates

    def admit(self, *trace_ids: str, by: str, digest: str | None = None) -> list[str]:
        """Let quarantined units be shown to runs.

        Args:
            trace_ids: Their whole ids.
            by: Who decides.
            digest: The digest of what was read; needed for a unit that has changed at the registry,
                so that what is admitted is what was read.

        Returns:
            The ids of those that were not admitted before.

        Raises:
            StoreError: One is unknown, or was rejected, or has another digest, or has changed and
                no digest is given. None is admitted then.
        """
        with self._database.writing() as connection:
            before = _known(connection, trace_ids)
            for row in before.values():
                _check_admissible(row, digest)
            changed = [id_ for id_, row in before.items() if row["state"] != "admitted"]
            _decide(connection, changed, "admitted", by)
        return changed

    def admit_clean(
        self,
        *,
        min_quality: float = 0.0,
        domain: str | None = None,
        among: Collection[str] | None = None,
        by: str | None = None,
    ) -> list[str]:
        """Let those quarantined units be shown that have no findings.

        One that changed at its registry is left to a person.

        Args:
            min_quality: Only units whose claimed quality is at least this, 0 to 1.
            domain: Only units of this domain (exact name).
            among: Only units with these ids; None for all.
            by: Who decides; by default the rule, in words.

        Returns:
            The ids of those that are admitted by this.
        """
        with self._database.writing() as connection:
            ids = sql.pulled_queries.clean_ones(
                connection, domain=domain, min_quality=min_quality, among=among
            )
            quality = f", claimed quality at least {min_quality:g}" if min_quality else ""
            _decide(connection, ids, "admitted", by or f"rule: no findings{quality}")
        return ids

    def reject(self, *trace_ids: str, by: str) -> list[str]:
        """Never show units to runs, whether they were admitted before or not.

        Their texts and findings are deleted. What stays is the id, the registry, the claimed
        figures and the hash, so that neither the unit nor its content under another id comes back.

        Args:
            trace_ids: Their whole ids.
            by: Who decides.

        Returns:
            The ids of those that were not rejected before.

        Raises:
            StoreError: One is unknown. None is rejected then.
        """
        with self._database.writing() as connection:
            before = _known(connection, trace_ids)
            former = [row for row in before.values() if row["state"] != "rejected"]
            changed = [row["trace_id"] for row in former]
            without_text = {"objective": "", "findings": json_text([]), "body": None}
            _decide(connection, changed, "rejected", by, former, **without_text)
        return changed

    def forget(self, *trace_ids: str) -> list[str]:
        """Delete units with all that the store knows of them; a later pull may bring them again.

        Args:
            trace_ids: Their whole ids.

        Returns:
            The ids of those that there were.
        """
        with self._database.writing() as connection:
            before = sql.pulled_queries.locked(connection, trace_ids)
            sql.pulled_queries.delete(connection, list(before))
            if before:
                sql.pulled_queries.note_change(connection, before.values())
        return list(before)


def _known(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the units, locked.

    Raises:
        StoreError: One is unknown.
    """
    found = sql.pulled_queries.locked(connection, trace_ids)
    unknown = [id_ for id_ in trace_ids if id_ not in found]
    if unknown:
        raise StoreError(
            f"no unit {unknown[0]!r:.200} was pulled; list them: kp-langchain quarantine"
        )
    return found


def _check_admissible(row: Mapping[str, Any], digest: str | None) -> None:
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


def _decide(
    connection: sa.Connection,
    trace_ids: Sequence[str],
    state: UnitState,
    by: str,
    former: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> None:
    """Write a decision; `former` are the units that lose their text by it."""
    decision = {"state": state, "decided_at": datetime.now(UTC), "decided_by": clean_name(by)}
    for trace_id in trace_ids:
        sql.pulled_queries.update(connection, trace_id, decision | more)
    if trace_ids:
        sql.pulled_queries.note_change(connection, former)


def _fate(
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
    known = _findings(before["findings"])
    are_known = all(one in known for one in _findings(row["findings"]))
    return "unchanged" if is_same and are_known else "changed"


def _has_same_text(
    row: Mapping[str, Any], before: Mapping[str, Any], body_before: str | None
) -> bool:
    """Return whether our rules still make the same of a unit that the registry did not change."""
    is_same = _findings(row["findings"]) == _findings(before["findings"])
    return is_same and _content(row["body"]) == _content(body_before or "")


def _content(text: str) -> Any:
    """Return a body without its time, which is that of the pull where the unit has none."""
    body = _json(text)
    if isinstance(body, dict) and isinstance(metadata := body.get("metadata"), dict):
        metadata.pop("created_at", None)
    return body


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # damaged
        return None


def _row(unit: ExaminedUnit, *, registry: str, domain: str, now: datetime) -> dict[str, Any]:
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


def _unit(row: Mapping[str, Any]) -> PulledUnit:
    return PulledUnit(**{**row, "findings": _findings(row["findings"])})


def _findings(text: object) -> list[dict[str, str]]:
    """Return the findings that a column holds; a note if another program has damaged them."""
    values = _json(text)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        return [{"kind": "unreadable", "words": "they were changed outside kp-langchain"}]
    return [{str(name): str(value) for name, value in one.items()} for one in values]
