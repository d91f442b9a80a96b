"""`PulledUnits`: what was read from registries, and which of it may be shown to runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.database import StorePart
from kp_langchain.store.registry_units import UNIT_STATES, ExaminedUnit, Fate, PulledUnit, UnitState
from kp_langchain.store.rows import (
    MATCHES_SHOWN,
    body_of,
    check_page,
    clean_name,
    json_text,
    trace_key,
)
from kp_langchain.store.run_columns import trace_of
from kp_langchain.store.run_queries import begins, first_matches, lock_names, possible_ids
from kp_langchain.store.tables import (
    batches,
    insert_or_replace,
    outbox,
    pulled_units,
    runs,
)
from kp_langchain.store.vectors import RESETS, count_up, remove
from kp_langchain.values import clean_text

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_OBJECTIVE_CHARS = 10_000
_c = pulled_units.c
_columns = [column for column in _c if column not in (_c.body, _c.is_clean)]
_DECISION = ("decided_at", "decided_by")
# What a rule of ours may make different of a unit that the registry did not change.
_TEXT = ("objective", "body", "findings")
_newest_first = (_c.pulled_at.desc(), _c.trace_id.desc())


class PulledUnits(StorePart):
    """The units of registries in one store. Got from `TraceStore.pulled`."""

    def counts(self) -> dict[UnitState, int]:
        """Return the number of units in each state."""
        select = sa.select(_c.state, sa.func.count()).group_by(_c.state)
        with self._database.reading() as connection:
            counts = {row[0]: row[1] for row in connection.execute(select)}
        return {state: counts.get(state, 0) for state in UNIT_STATES}

    def units(
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
        check_page(limit, offset)
        if state is not None and state not in UNIT_STATES:
            raise ConfigError(f"{state!r} is not a state; give one of {', '.join(UNIT_STATES)}")
        select = sa.select(*_columns).order_by(*_newest_first)
        if state is not None:
            select = select.where(_c.state == state)
        if domain is not None:
            select = select.where(_c.domain == clean_name(domain))
        # SQLite takes no offset without a limit, and -1 for none; SQLAlchemy writes that.
        with self._database.reading() as connection:
            rows = connection.execute(select.limit(limit).offset(offset or None)).mappings()
            return [PulledUnit(**row) for row in rows]

    def get(self, id: str) -> PulledUnit | None:  # noqa: A002 - as TraceStore.get
        """Return the unit that `id` identifies, or None.

        Args:
            id: A trace id, or its first characters.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        with self._database.reading() as connection:
            rows = _find(connection, str(id))
        if len(rows) > 1:
            lines = "".join(f"\n  {row['trace_id']}  {row['state']}" for row in rows)
            raise StoreError(
                f"{str(id)!r} may mean several; give more characters of the id:{lines}"
            )
        return PulledUnit(**rows[0]) if rows else None

    def trace(self, trace_id: str) -> ReasoningTrace | None:
        """Return the trace of a unit in any state; None for a rejected or an unknown one.

        Args:
            trace_id: The whole id.

        Raises:
            StoreError: Its body holds no trace.
        """
        select = sa.select(_c.body).where(_c.trace_id == trace_id)
        with self._database.reading() as connection:
            body = connection.scalar(select)
        return None if body is None else trace_of(body, trace_id)

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
        rows = [_row_of(unit, registry, domain, now) for unit in units]
        ids = [row["trace_id"] for row in rows]
        with self._database.writing() as connection:
            # Units that two pulls bring at once are new to both.
            lock_names(connection, ["pulled units"])
            own_ids = _ids_of_own_runs(connection, ids)
            rejected_digests = _rejected_digests(connection, [row["digest"] for row in rows])
            before = _locked_rows(connection, ids, _c.body)
            fates = [
                _fate_of(row, before.get(row["trace_id"]), own_ids, rejected_digests)
                for row in rows
            ]
            rows_to_write = []
            for row, fate in zip(rows, fates, strict=True):
                row_before = before.get(row["trace_id"], {})
                stays = {"changed_at": None, "decided_at": None, "decided_by": None}
                if fate == "changed":
                    stays |= {name: row_before[name] for name in _DECISION} | {"changed_at": now}
                elif fate == "unchanged" and not _has_same_text(row, row_before):
                    stays = {name: row_before[name] for name in row_before if name not in _TEXT}
                elif fate != "new":
                    continue
                rows_to_write.append(row | stays)
            if rows_to_write:
                in_order = sorted(rows_to_write, key=lambda row: str(row["trace_id"]))
                statement = insert_or_replace(pulled_units, connection.dialect.name)
                connection.execute(statement, in_order)
            _note_change(
                connection,
                [before[id_] for row in rows_to_write if (id_ := row["trace_id"]) in before],
            )
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
            before = _known_rows(connection, trace_ids)
            for row in before.values():
                _check_admissible(row, digest)
            rows_to_decide = [row for row in before.values() if row["state"] != "admitted"]
            return _decide(connection, rows_to_decide, "admitted", by)

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
            units = _clean_ones(connection, domain, min_quality, among)
            quality = f", claimed quality at least {min_quality:g}" if min_quality else ""
            return _decide(connection, units, "admitted", by or f"rule: no findings{quality}")

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
            before = _known_rows(connection, trace_ids)
            rows_to_decide = [row for row in before.values() if row["state"] != "rejected"]
            without_text = {"objective": "", "findings": json_text([]), "body": None}
            return _decide(connection, rows_to_decide, "rejected", by, **without_text)

    def forget(self, *trace_ids: str) -> list[str]:
        """Delete units with all that the store knows of them; a later pull may bring them again.

        Args:
            trace_ids: Their whole ids.

        Returns:
            The ids of those that there were.
        """
        with self._database.writing() as connection:
            before = _locked_rows(connection, trace_ids)
            for batch in batches(list(before)):
                connection.execute(sa.delete(pulled_units).where(_c.trace_id.in_(batch)))
            _note_change(connection, before.values())
        return list(before)


def _row_of(unit: ExaminedUnit, registry: str, domain: str, now: datetime) -> dict[str, Any]:
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


def _fate_of(
    row: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    own_ids: Collection[str],
    rejected_digests: Collection[str],
) -> Fate:
    """Return what is to become of a unit.

    Args:
        row: Its row.
        before: Its row in the store, if there is one.
        own_ids: Ids of runs of this store.
        rejected_digests: The digests of rejected units.
    """
    if row["trace_id"] in own_ids:
        return "own run"
    if row["body"] is None:
        return "too large"
    if (before is not None and before["state"] == "rejected") or row["digest"] in rejected_digests:
        return "rejected"
    if before is None:
        return "new"
    if before["registry"] != row["registry"]:
        return "other registry"
    # A registry takes no account of case.
    is_same = before["domain"].casefold() == row["domain"].casefold()
    is_same = is_same and before["digest"] == row["digest"]
    are_known = all(one in before["findings"] for one in json.loads(row["findings"]))
    return "unchanged" if is_same and are_known else "changed"


def _has_same_text(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether our rules still make the same of a unit that the registry did not change."""
    body = json.loads(row["body"])
    for one in (body, before["body"]):  # its time is that of the pull where the unit has none
        one["metadata"].pop("created_at", None)
    after = body, json.loads(row["findings"])
    return after == (before["body"], before["findings"])


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
            f"there: kp-langchain registry quarantine show {id_}"
        )
    if row["state"] == "rejected":
        raise StoreError(
            f"{id_} was rejected, and its text was deleted; to have it pulled again: "
            f"kp-langchain registry quarantine forget {id_}"
        )


def _find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten units whose id is, or else begins with, `id_prefix`; without bodies.

    Only a whole id counts as one. Others choose the ids of units, and one that is the beginning of
    another must not be taken for it.
    """
    select = sa.select(*_columns).order_by(*_newest_first).limit(MATCHES_SHOWN)
    ids = possible_ids(id_prefix)
    is_whole = id_prefix.strip().startswith(TRACE_ID_PREFIX)
    exact = [_c.trace_id == trace_key(id_) for id_ in ids] if is_whole else []
    by_prefix = [begins(_c.trace_id, clean_text(id_)) for id_ in ids]
    return first_matches(connection, select, (*exact, *by_prefix))


def _clean_ones(
    connection: sa.Connection,
    domain: str | None,
    min_quality: float,
    among: Collection[str] | None,
) -> list[Mapping[str, Any]]:
    """Return the quarantined units that have no findings and never changed, locked."""
    select = sa.select(*_columns).where(
        _c.state == "quarantined",
        _c.is_clean,
        _c.changed_at.is_(None),
        _c.quality_score >= min_quality,
    )
    if domain is not None:
        select = select.where(_c.domain == clean_name(domain))
    # In the order of `locked`. A row that another transaction changes meanwhile is compared anew.
    select = select.order_by(_c.trace_id).with_for_update()
    if among is None:
        return list(map(dict, connection.execute(select).mappings()))
    units: list[Mapping[str, Any]] = []
    for batch in batches(sorted(set(among))):
        rows = connection.execute(select.where(_c.trace_id.in_(batch))).mappings()
        units += map(dict, rows)
    return units


def _known_rows(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the units, locked.

    Raises:
        StoreError: One is unknown.
    """
    rows_by_id = _locked_rows(connection, trace_ids)
    unknown = [id_ for id_ in trace_ids if id_ not in rows_by_id]
    if unknown:
        raise StoreError(
            f"no unit {unknown[0]!r:.200} was pulled; list them: kp-langchain registry quarantine"
        )
    return rows_by_id


def _locked_rows(
    connection: sa.Connection, trace_ids: Collection[str], *more: sa.Column[Any]
) -> dict[str, dict[str, Any]]:
    """Return those of the units that there are, by id, locked for this transaction."""
    by_id: dict[str, dict[str, Any]] = {}
    for batch in batches(sorted(set(trace_ids))):
        select = sa.select(*_columns, *more).where(_c.trace_id.in_(batch)).order_by(_c.trace_id)
        rows = connection.execute(select.with_for_update()).mappings()
        by_id |= {row["trace_id"]: dict(row) for row in rows}
    return by_id


def _ids_of_own_runs(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those ids that a run of this store has or had; ids in lower case match as well."""
    forms = {form for id_ in trace_ids for form in (id_, id_.lower())}
    own_ids: set[str] = set()
    for table in (runs, outbox):
        column = table.c.trace_id
        for batch in batches(forms):
            own_ids |= set(connection.scalars(sa.select(column).where(column.in_(batch))))
    return {id_ for id_ in trace_ids if id_ in own_ids or id_.lower() in own_ids}


def _rejected_digests(connection: sa.Connection, digests: Collection[str]) -> set[str]:
    """Return those of the digests that rejected units have."""
    select = sa.select(_c.digest).where(_c.digest.in_(digests), _c.state == "rejected")
    return set(connection.scalars(select)) if digests else set()


def _decide(
    connection: sa.Connection,
    units: Sequence[Mapping[str, Any]],
    state: UnitState,
    by: str,
    **more: Any,
) -> list[str]:
    """Write a decision on units, and return their ids.

    Args:
        connection: A write transaction.
        units: The units, as they were.
        state: Their new state.
        by: Who or what decides.
        more: New values of other columns.
    """
    ids = [unit["trace_id"] for unit in units]
    decision = {"state": state, "decided_at": datetime.now(UTC), "decided_by": clean_name(by)}
    for batch in batches(ids):
        update = sa.update(pulled_units).where(_c.trace_id.in_(batch))
        connection.execute(update.values(**decision | more))
    _note_change(connection, units)
    return ids


def _note_change(connection: sa.Connection, former: Collection[Mapping[str, Any]]) -> None:
    """Count a change to units, so that other processes read them anew.

    Args:
        connection: A write transaction.
        former: The units that changed, as they were.
    """
    if former:
        remove(connection, "task", [row["trace_id"] for row in former])
        count_up(connection, RESETS)
