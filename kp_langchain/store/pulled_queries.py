"""`PulledUnits`: what was read from registries, and which of it may be shown to runs.

Loads SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.deletion_queries import note_deletion
from kp_langchain.store.pulled_units import (
    STATES,
    AdmittedUnit,
    ExaminedUnit,
    Fate,
    PulledUnit,
    UnitState,
    check_admissible,
    fate_of,
    has_same_text,
    read_json,
    row_of,
    unit_of,
)
from kp_langchain.store.rows import check_page, clean_name, clean_text, json_text, trace_key
from kp_langchain.store.run_columns import trace_of
from kp_langchain.store.run_queries import begins, possible_ids
from kp_langchain.store.statements import (
    Transactions,
    batches,
    insert_or_ignore,
    untyped,
)
from kp_langchain.store.tables import outbox, pulled_units, runs
from kp_langchain.store.vector_queries import PULLED, count_up, remove

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_MATCHES_SHOWN = 10
_c = pulled_units.c
_findings_text = sa.cast(_c.findings, sa.Text()).label("findings")
_columns = [
    _findings_text if column is _c.findings else column
    for column in pulled_units.columns
    if column not in (_c.body, _c.is_clean)
]
_newest_first = (_c.pulled_at.desc(), _c.trace_id.desc())
# What a rule of ours may make different of a unit that the registry did not change.
_TEXT_COLUMNS = ("objective", "body", "findings", "is_clean")


class PulledUnits:
    """The units of registries in one store. Got from `TraceStore.pulled`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"PulledUnits({str(self._database.location)!r})"

    def counts(self) -> dict[UnitState, int]:
        """Return the number of units in each state."""
        select = sa.select(_c.state, sa.func.count()).group_by(_c.state)
        with self._database.reading() as connection:
            counts = {row[0]: row[1] for row in connection.execute(select)}
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
        check_page(limit, offset)
        if state is not None and state not in STATES:
            raise ConfigError(f"{state!r} is not a state; give one of {', '.join(STATES)}")
        select = sa.select(*_columns).order_by(*_newest_first)
        if state is not None:
            select = select.where(_c.state == state)
        if domain is not None:
            select = select.where(_c.domain == clean_name(domain))
        # SQLite takes no offset without a limit, and -1 for none; SQLAlchemy writes that.
        with self._database.reading() as connection:
            rows = connection.execute(select.limit(limit).offset(offset or None)).mappings()
            return [unit_of(dict(row)) for row in rows]

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
        return unit_of(rows[0]) if rows else None

    def trace(self, trace_id: str) -> ReasoningTrace | None:
        """Return the trace of a unit in any state; None for a rejected or an unknown one.

        Args:
            trace_id: The whole id.

        Raises:
            StoreError: Its body holds no trace.
        """
        with self._database.reading() as connection:
            bodies = bodies_of(connection, [trace_id], of_any_state=True)
        return trace_of(read_json(bodies[trace_id]) or {}, trace_id) if bodies else None

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
        rows = [row_of(unit, registry=registry, domain=domain, now=now) for unit in units]
        ids = [row["trace_id"] for row in rows]
        with self._database.writing() as connection:
            own = _ids_of_own_runs(connection, ids)
            rejected = _rejected_digests(connection, [row["digest"] for row in rows])
            before = _locked(connection, ids)
            bodies = bodies_of(connection, ids, of_any_state=True)
            fates = [fate_of(row, before.get(row["trace_id"]), own, rejected) for row in rows]
            new = [row for row, fate in zip(rows, fates, strict=True) if fate == "new"]
            if new:
                in_order = sorted(new, key=lambda row: str(row["trace_id"]))
                connection.execute(
                    insert_or_ignore(pulled_units, connection.dialect.name), in_order
                )
            former = []
            for row, fate in zip(rows, fates, strict=True):
                id_ = row["trace_id"]
                if fate == "changed":
                    values = row | {"changed_at": now}
                elif fate == "unchanged" and not has_same_text(row, before[id_], bodies.get(id_)):
                    values = {name: row[name] for name in _TEXT_COLUMNS}
                else:
                    continue
                _update(connection, id_, values)
                former.append(before[id_])
            if new or former:
                _note_change(connection, former)
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
                check_admissible(row, digest)
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
            ids = _clean_ones(connection, domain, min_quality, among)
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
            before = _locked(connection, trace_ids)
            for batch in batches(list(before)):
                connection.execute(sa.delete(pulled_units).where(_c.trace_id.in_(batch)))
            if before:
                _note_change(connection, before.values())
        return list(before)


def admitted(connection: sa.Connection, domain: str) -> list[AdmittedUnit]:
    """Return the admitted units of a domain, the newest first; without runs of this store.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
    """
    select = sa.select(
        _c.trace_id, _c.objective, *map(untyped, (_c.success, _c.confidence, _c.quality_score))
    ).where(_c.domain == clean_name(domain), *_may_be_shown())
    return [AdmittedUnit(*row) for row in connection.execute(select.order_by(*_newest_first))]


def bodies_of(
    connection: sa.Connection, trace_ids: Collection[str], *, of_any_state: bool = False
) -> dict[str, str]:
    """Return the bodies of those of the units that are admitted, as the text of their JSON, by id.

    Args:
        connection: A connection to read with.
        trace_ids: Ids of units.
        of_any_state: Whether to return those of units in any state.
    """
    texts: dict[str, str] = {}
    conditions = () if of_any_state else _may_be_shown()
    for batch in batches(trace_ids):
        select = sa.select(_c.trace_id, sa.cast(_c.body, sa.Text())).where(
            _c.trace_id.in_(batch), _c.body.is_not(None), *conditions
        )
        texts |= {row[0]: row[1] for row in connection.execute(select)}
    return texts


def _find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten units whose id is, or else begins with, `id_prefix`; without bodies.

    Only a whole id counts as one. Others choose the ids of units, and one that is the beginning of
    another must not be taken for it.
    """
    select = sa.select(*_columns).order_by(*_newest_first).limit(_MATCHES_SHOWN)
    ids = possible_ids(id_prefix)
    is_whole = id_prefix.strip().startswith(TRACE_ID_PREFIX)
    exact = [_c.trace_id == trace_key(id_) for id_ in ids] if is_whole else []
    by_prefix = [begins(_c.trace_id, clean_text(id_)) for id_ in ids]
    for condition in (*exact, *by_prefix):
        matches = connection.execute(select.where(condition)).mappings().all()
        if matches:
            return [dict(row) for row in matches]
    return []


def _clean_ones(
    connection: sa.Connection,
    domain: str | None,
    min_quality: float,
    among: Collection[str] | None,
) -> list[str]:
    """Return the ids of the quarantined units that have no findings and never changed, locked."""
    select = sa.select(_c.trace_id).where(
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
        return list(connection.scalars(select))
    ids: list[str] = []
    for batch in batches(sorted(set(among))):
        ids += connection.scalars(select.where(_c.trace_id.in_(batch)))
    return ids


def _known(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the units, locked.

    Raises:
        StoreError: One is unknown.
    """
    found = _locked(connection, trace_ids)
    unknown = [id_ for id_ in trace_ids if id_ not in found]
    if unknown:
        raise StoreError(
            f"no unit {unknown[0]!r:.200} was pulled; list them: kp-langchain quarantine"
        )
    return found


def _locked(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return those of the units that there are, by id, locked for this transaction."""
    by_id: dict[str, dict[str, Any]] = {}
    for batch in batches(sorted(set(trace_ids))):
        select = sa.select(*_columns).where(_c.trace_id.in_(batch)).order_by(_c.trace_id)
        rows = connection.execute(select.with_for_update()).mappings()
        by_id |= {row["trace_id"]: dict(row) for row in rows}
    return by_id


def _ids_of_own_runs(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those ids that a run of this store has or had; ids in lower case match as well."""
    forms = {form for id_ in trace_ids for form in (id_, id_.lower())}
    own: set[str] = set()
    for table in (runs, outbox):
        column = table.c.trace_id
        for batch in batches(forms):
            own |= set(connection.scalars(sa.select(column).where(column.in_(batch))))
    return {id_ for id_ in trace_ids if id_ in own or id_.lower() in own}


def _rejected_digests(connection: sa.Connection, digests: Collection[str]) -> set[str]:
    """Return those of the digests that rejected units have."""
    select = sa.select(_c.digest).where(_c.digest.in_(digests), _c.state == "rejected")
    return set(connection.scalars(select)) if digests else set()


def _update(connection: sa.Connection, trace_id: str, values: Mapping[str, Any]) -> None:
    connection.execute(sa.update(pulled_units).where(_c.trace_id == trace_id).values(**values))


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
        _update(connection, trace_id, decision | more)
    if trace_ids:
        _note_change(connection, former)


def _note_change(connection: sa.Connection, former: Collection[Mapping[str, Any]] = ()) -> None:
    """Count a change to units, so that other processes read them anew.

    Args:
        connection: A write transaction.
        former: The units whose text is another one now, or gone, as they were.
    """
    remove(connection, "task", [row["trace_id"] for row in former])
    if any(row["state"] == "admitted" for row in former):
        note_deletion(connection)
    count_up(connection, PULLED)


def _may_be_shown() -> tuple[sa.ColumnElement[bool], ...]:
    # A run that was stored after the unit with its id counts, and not the unit.
    is_own_run = sa.exists().where(runs.c.trace_id == _c.trace_id)
    return (_c.state == "admitted", ~is_own_run)
