"""Queries on the table `pulled_units`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.deletion_queries import note_deletion
from kp_langchain.store.inserts import insert_into, insert_or_ignore
from kp_langchain.store.rows import clean_name, clean_text, trace_key
from kp_langchain.store.run_queries import begins, possible_ids
from kp_langchain.store.statements import batches, untyped
from kp_langchain.store.tables import counts as counts_table
from kp_langchain.store.tables import outbox, pulled_units, recall_entries, runs

_PULLED = "pulled"
_COUNT = sa.select(counts_table.c.number).where(counts_table.c.name == _PULLED)
_MATCHES_SHOWN = 10
_c = pulled_units.c
_findings_text = sa.cast(_c.findings, sa.Text()).label("findings")
_columns = [
    _findings_text if column is _c.findings else column
    for column in pulled_units.columns
    if column not in (_c.body, _c.is_clean)
]
_newest_first = (_c.pulled_at.desc(), _c.trace_id.desc())


class AdmittedUnit(NamedTuple):
    """An admitted unit, with what its contributor claims, as the driver gives it."""

    trace_id: str
    objective: str
    success: Any
    confidence: Any
    quality_score: Any


def newest_change(connection: sa.Connection) -> int:
    """Return how often units were written or decided on; a higher number means some were."""
    return connection.scalar(_COUNT) or 0


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


def bodies(
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


def units(
    connection: sa.Connection,
    *,
    state: str | None,
    domain: str | None,
    limit: int | None,
    offset: int,
) -> list[dict[str, Any]]:
    """Return units without their bodies, the newest first."""
    select = sa.select(*_columns).order_by(*_newest_first)
    if state is not None:
        select = select.where(_c.state == state)
    if domain is not None:
        select = select.where(_c.domain == clean_name(domain))
    # SQLite takes no offset without a limit, and -1 for none; SQLAlchemy writes that.
    return _dicts(connection.execute(select.limit(limit).offset(offset or None)))


def find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
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
        matches = _dicts(connection.execute(select.where(condition)))
        if matches:
            return matches
    return []


def counts(connection: sa.Connection) -> dict[str, int]:
    """Return the number of units in each state that has any."""
    rows = connection.execute(sa.select(_c.state, sa.func.count()).group_by(_c.state))
    return {row[0]: row[1] for row in rows}


def clean_ones(
    connection: sa.Connection,
    *,
    domain: str | None,
    min_quality: float,
    among: Collection[str] | None,
) -> list[str]:
    """Return the ids of the quarantined units that have no findings and never changed, locked.

    Args:
        connection: A write transaction.
        domain: Only units of this domain.
        min_quality: Only units whose claimed quality is at least this.
        among: Only these units; None for all.
    """
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


def locked(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return those of the units that there are, by id, locked for this transaction."""
    by_id: dict[str, dict[str, Any]] = {}
    for batch in batches(sorted(set(trace_ids))):
        select = sa.select(*_columns).where(_c.trace_id.in_(batch)).order_by(_c.trace_id)
        rows = connection.execute(select.with_for_update())
        by_id |= {row["trace_id"]: row for row in _dicts(rows)}
    return by_id


def ids_of_own_runs(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those ids that a run of this store has or had; ids in lower case match as well."""
    forms = {form for id_ in trace_ids for form in (id_, id_.lower())}
    own: set[str] = set()
    for table in (runs, outbox):
        column = table.c.trace_id
        for batch in batches(forms):
            own |= set(connection.scalars(sa.select(column).where(column.in_(batch))))
    return {id_ for id_ in trace_ids if id_ in own or id_.lower() in own}


def rejected_digests(connection: sa.Connection, digests: Collection[str]) -> set[str]:
    """Return those of the digests that rejected units have."""
    select = sa.select(_c.digest).where(_c.digest.in_(digests), _c.state == "rejected")
    return set(connection.scalars(select)) if digests else set()


def insert(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert units; one that there is already stays as it is."""
    if rows:
        in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
        connection.execute(insert_or_ignore(pulled_units, connection.dialect.name), in_order)


def update(connection: sa.Connection, trace_id: str, values: Mapping[str, Any]) -> None:
    """Write new values into some columns of one unit."""
    connection.execute(sa.update(pulled_units).where(_c.trace_id == trace_id).values(**values))


def delete(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Delete units."""
    for batch in batches(trace_ids):
        connection.execute(sa.delete(pulled_units).where(_c.trace_id.in_(batch)))


def note_change(connection: sa.Connection, former: Collection[Mapping[str, Any]] = ()) -> None:
    """Count a change to units, so that other processes read them anew.

    Args:
        connection: A write transaction.
        former: The units whose text is another one now, or gone, as they were.
    """
    for batch in batches([row["trace_id"] for row in former]):
        has_entry = recall_entries.c.trace_id.in_(batch)
        connection.execute(sa.delete(recall_entries).where(has_entry))
    if any(row["state"] == "admitted" for row in former):
        note_deletion(connection)
    insert = insert_into(counts_table, connection.dialect.name)
    add_one = insert.on_conflict_do_update(
        index_elements=[counts_table.c.name], set_={"number": counts_table.c.number + 1}
    )
    connection.execute(add_one, [{"name": _PULLED, "number": 1}])


def _may_be_shown() -> tuple[sa.ColumnElement[bool], ...]:
    # A run that was stored after the unit with its id counts, and not the unit.
    is_own_run = sa.exists().where(runs.c.trace_id == _c.trace_id)
    return (_c.state == "admitted", ~is_own_run)


def _dicts(rows: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.mappings()]
