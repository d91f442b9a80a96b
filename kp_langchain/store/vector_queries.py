"""Queries on the table `vectors`, and on what was changed in a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.rows import clean_name, short_key
from kp_langchain.store.run_queries import body_texts, is_kept
from kp_langchain.store.tables import (
    batches,
    counts,
    execute_rows,
    insert_into,
    pulled_units,
    runs,
    vectors,
)

DELETIONS = "deletions"
PULLED = "pulled"
_CHANGES = "changes"

# A page of vectors of 384 takes 8 MB; a memory may have a million.
PAGE_SIZE = 5000

_r, _p = runs.c, pulled_units.c
_run, _task = vectors.alias("of_run"), vectors.alias("of_task")
_v, _t, _c = _run.c, _task.c, vectors.c


class FollowerMark(NamedTuple):
    """Up to where a reader that reads now has seen what changed in a store.

    In PostgreSQL, transactions commit in another order than they begin in. So a change has the
    number of its transaction, and a reader begins at the oldest one that was under way: it may read
    a change twice, and misses none. In SQLite, writes are numbered one by one.

    Attributes:
        change: The lowest number of a change that it may not have seen.
        under_way: In PostgreSQL, which transactions were under way. Without a difference there is
            nothing new.
        deletions: How often runs were deleted.
        pulled: How often units of registries changed.
    """

    change: int
    under_way: str
    deletions: int
    pulled: int


class Space(NamedTuple):
    """Rows whose vectors can be compared with each other.

    Attributes:
        kind: Their kind.
        scope: Their scope.
        model: Name of the embedder's model; empty if there was none.
        revision: Its version.
        baseline: Similarity of unrelated texts to it.
    """

    kind: str
    scope: str
    model: str = ""
    revision: str = ""
    baseline: float = 0.0

    def condition(self, columns: Any = _c) -> sa.ColumnElement[bool]:
        """Return the condition that a row is one of them."""
        return sa.and_(*(columns[name] == value for name, value in self._asdict().items()))


def scope_of(domain: str) -> str:
    """Return the scope of the runs of a domain."""
    return short_key(clean_name(domain))


def _count_of(name: str) -> sa.ColumnElement[int]:
    select = sa.select(counts.c.number).where(counts.c.name == name)
    return sa.func.coalesce(select.scalar_subquery(), 0)


_MARKS = {
    dialect: sa.select(change, under_way, _count_of(DELETIONS), _count_of(PULLED))
    for dialect, change, under_way in (
        ("sqlite", _count_of(_CHANGES) + 1, sa.literal("")),
        (
            "postgresql",
            sa.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint"),
            sa.literal_column("pg_current_snapshot()::text"),
        ),
    )
}
_THIS_CHANGE: dict[str, sa.ColumnElement[int]] = {
    "sqlite": _count_of(_CHANGES),
    "postgresql": sa.literal_column("pg_current_xact_id()::text::bigint"),
}


def mark(connection: sa.Connection) -> FollowerMark:
    """Return the mark of a reader that reads now, on this connection."""
    # In one statement, so that all of it is of the same moment.
    return FollowerMark(*connection.execute(_MARKS[connection.dialect.name]).one())


def count_up(connection: sa.Connection, name: str) -> None:
    """Add one to a count of the table `counts`."""
    execute_rows(connection, _add_one(connection.dialect.name), [{"name": name, "number": 1}])


@cache
def _add_one(dialect: str) -> Any:
    return insert_into(counts, dialect).on_conflict_do_update(
        index_elements=[counts.c.name], set_={"number": counts.c.number + 1}
    )


# ------------------------------------------------------------------ writing


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; each replaces an earlier one of its kind, trace, scope and embedder.

    Args:
        connection: A write transaction.
        rows: The rows, which have the same columns.
    """
    if rows:
        _begin_change(connection)
        execute_rows(connection, _insert(connection.dialect.name), rows)


@cache
def _insert(dialect: str) -> Any:
    insert = insert_into(vectors, dialect).values(change=_THIS_CHANGE[dialect])
    names = set(_c.keys()) - {"number", *_KEY}
    values = {name: insert.excluded[name] for name in names}
    return insert.on_conflict_do_update(index_elements=list(_KEY), set_=values)


_KEY = ("trace_id", "kind", "scope", "model", "revision", "baseline")


def note_change(connection: sa.Connection, trace_ids: Collection[str], **values: None) -> None:
    """Have other processes read runs again.

    Args:
        connection: A write transaction.
        trace_ids: Runs that are no longer kept, or not replaced after all.
        values: New values of columns.
    """
    if trace_ids:
        _begin_change(connection)
        update = sa.update(vectors).where(_c.kind == "run", _c.trace_id.in_(trace_ids))
        change = _THIS_CHANGE[connection.dialect.name]
        connection.execute(update.values(change=change, **values))


def forget(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Remove what runs without a body are compared by; their rows stay, for those who follow."""
    note_change(connection, trace_ids, fingerprint=None, vector=None)


def remove(connection: sa.Connection, kind: str, trace_ids: Collection[str]) -> None:
    """Delete the rows of a kind of traces that are not kept, or are replaced."""
    for batch in batches(trace_ids):
        connection.execute(sa.delete(vectors).where(_c.kind == kind, _c.trace_id.in_(batch)))


def _begin_change(connection: sa.Connection) -> None:
    if connection.dialect.name == "sqlite":  # where one transaction writes at a time
        count_up(connection, _CHANGES)


# ------------------------------------------------------------------ kept runs

_KEPT: sa.Select[Any] = sa.select(
    *(_r[name] for name in ("trace_id", "run_id", "visibility", "privacy_level", "namespace")),
    (_r.decision == "kept").label("is_kept"),
    *(
        _v[name]
        for name in (
            "fingerprint", "vector", "model", "revision", "baseline", "confidence", "is_stated",
        )
    ),
).join_from(_run, runs, _r.trace_id == _v.trace_id).where(_v.kind == "run")  # fmt: skip


def of_run(connection: sa.Connection, trace_id: str) -> sa.Row[Any] | None:
    """Return a run with its vector; None if it has none."""
    return connection.execute(_KEPT.where(_v.trace_id == trace_id)).first()


def kept_rows(
    connection: sa.Connection, domain: str, since: int | None, limit: int
) -> Sequence[sa.Row[Any]]:
    """Return the newest kept runs of a domain, the oldest of them first.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        since: Return the runs, kept or not, that have changed since, in the order of that.
        limit: At most so many, unless there is `since`.
    """
    select = _KEPT.where(_v.scope == scope_of(domain))
    if since is not None:
        select = select.where(_v.change >= since).order_by(_v.change, _v.number)
        return connection.execute(select).all()
    has_something = sa.or_(_v.fingerprint.is_not(None), _v.vector.is_not(None))
    newest_first = (_r.created_at.desc(), _r.trace_id.desc())
    select = select.where(_r.decision == "kept", has_something).order_by(*newest_first)
    return connection.execute(select.limit(limit)).all()[::-1]


# ------------------------------------------------------------------ memory


def memory_rows(
    connection: sa.Connection,
    memory: Space,
    *,
    since: int | None,
    newest: int,
    oldest: datetime | None,
) -> Iterator[Sequence[sa.Row[Any]]]:
    """Yield the newest rows of a memory, the oldest of them first, a page at a time.

    Args:
        connection: A connection to read with.
        memory: The memory. Text hashes are those of its scope, vectors those of its embedder.
        since: Only rows that have changed since; None for all.
        newest: At most so many of each.
        oldest: Only rows of a later time, in UTC; None for all.
    """
    is_meant = sa.and_(_c.kind == memory.kind, _c.scope == memory.scope)
    is_comparable = sa.and_(memory.condition(), _c.vector.is_not(None))
    conditions = (is_comparable, sa.and_(is_meant, _c.fingerprint.is_not(None)))
    last = min(connection.scalar(_nth_newest(one, newest)) or 0 for one in conditions)
    vector = sa.case((is_comparable, _c.vector)).label("vector")
    columns = (_c.number, _c.trace_id, _c.fingerprint, vector, _c.at)
    select: sa.Select[Any] = (
        sa.select(*columns).where(is_meant).order_by(_c.number).limit(PAGE_SIZE)
    )
    if since is not None:
        select = select.where(_c.change >= since)
    if oldest is not None:
        select = select.where(_c.at > oldest)
    while True:
        rows = connection.execute(select.where(_c.number > last)).all()
        yield rows
        if len(rows) < PAGE_SIZE:
            return
        last = rows[-1].number


def prune(connection: sa.Connection, *, keep: int, until: datetime | None) -> int:
    """Delete the rows of memories that are too many or too old; return their number.

    Args:
        connection: A write transaction.
        keep: The newest of each embedder that stay.
        until: Rows of this time or an earlier one are deleted, too; None for none.
    """
    of_embedder = (_c.scope, _c.model, _c.revision, _c.baseline)
    place = sa.func.row_number().over(partition_by=of_embedder, order_by=_c.number.desc())
    select = sa.select(_c.number, _c.at, place.label("place")).where(_c.kind == "memory")
    rank_columns = select.subquery().c
    is_superfluous = rank_columns.place > keep
    if until is not None:
        is_superfluous = sa.or_(is_superfluous, rank_columns.at <= until)
    superfluous = sa.select(rank_columns.number).where(is_superfluous)
    return connection.execute(sa.delete(vectors).where(_c.number.in_(superfluous))).rowcount


def count_remembered(connection: sa.Connection) -> int:
    """Return the number of rows of all memories."""
    select = sa.select(sa.func.count()).select_from(vectors).where(_c.kind == "memory")
    return connection.scalar(select) or 0


def _nth_newest(condition: sa.ColumnElement[bool], count: int) -> sa.Select[tuple[int]]:
    """Return the query for the number of the row that so many newer ones precede."""
    return sa.select(_c.number).where(condition).order_by(_c.number.desc()).offset(count).limit(1)


# ------------------------------------------------------------------ tasks


_TASK_VECTOR = (
    _t.trace_id.is_not(None).label("is_embedded"),
    _t.vector,
    _t.planted,
    _t.plan,
)


def _may_be_shown() -> sa.ColumnElement[bool]:
    return sa.and_(_r.decision == "kept", _r.withheld.is_(None), is_kept())


def tasks(
    connection: sa.Connection,
    domain: str,
    space: Space,
    scan_version: int,
    *,
    since: int | None,
    limit: int,
) -> Sequence[sa.Row[Any]]:
    """Return the newest kept runs of a domain, with what is compared of their tasks.

    Of each namespace come as many; what one does not need is left to the others.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        space: The tasks of an embedder.
        scan_version: Rows of another version of the scan count as missing.
        since: Return the runs, kept or not, that have changed since.
        limit: At most so many, unless there is `since`.
    """
    is_of_run = sa.and_(_t.trace_id == _r.trace_id, _is_of(space, scan_version))
    select: sa.Select[Any] = (
        sa.select(
            *(_r[name] for name in ("trace_id", "namespace", "privacy_level", "objective")),
            _may_be_shown().label("is_open"),
            sa.true().label("is_own"),
            _r.success,
            sa.func.coalesce(_v.confidence, _r.confidence).label("confidence"),
            _v.is_stated,
            sa.func.coalesce(_r.worth, _r.score).label("worth"),
            *_TASK_VECTOR,
        )
        .join_from(_run, runs, _r.trace_id == _v.trace_id)
        .outerjoin(_task, is_of_run)
        .where(_v.kind == "run", _v.scope == scope_of(domain))
    )
    if since is not None:
        select = select.where(_v.change >= since).order_by(_v.change, _v.number)
        return connection.execute(select).all()
    newest_first = (_r.created_at.desc(), _r.trace_id.desc())
    place = sa.func.row_number().over(partition_by=_r.namespace, order_by=newest_first)
    of_domain = sa.select(_r.trace_id).where(_r.domain == clean_name(domain), _may_be_shown())
    newest = of_domain.order_by(place, *newest_first).limit(limit).subquery()
    select = select.where(_r.trace_id.in_(sa.select(newest.c.trace_id)))
    return connection.execute(select.order_by(*newest_first)).all()


def admitted_tasks(
    connection: sa.Connection, domain: str, space: Space, scan_version: int, *, limit: int
) -> Sequence[sa.Row[Any]]:
    """Return the newest admitted units of a domain, as `tasks` does; without runs of this store.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        space: The tasks of an embedder.
        scan_version: Rows of another version of the scan count as missing.
        limit: At most so many.
    """
    is_of_unit = sa.and_(_t.trace_id == _p.trace_id, _is_of(space, scan_version))
    select: sa.Select[Any] = (
        sa.select(
            *(_p[name] for name in ("trace_id", "objective", "success", "confidence")),
            _p.quality_score.label("worth"),
            sa.null().label("namespace"),
            sa.null().label("privacy_level"),
            sa.true().label("is_open"),
            sa.false().label("is_own"),
            sa.false().label("is_stated"),
            *_TASK_VECTOR,
        )
        .join_from(pulled_units, _task, is_of_unit, isouter=True)
        .where(_p.domain == clean_name(domain), is_admitted())
        .order_by(_p.pulled_at.desc(), _p.trace_id.desc())
        .limit(limit)
    )
    return connection.execute(select).all()


def is_admitted() -> sa.ColumnElement[bool]:
    """Return the condition that a unit of a registry may be shown."""
    # A run that was stored after the unit with its id counts, and not the unit.
    is_own_run = sa.exists().where(_r.trace_id == _p.trace_id)
    return sa.and_(_p.state == "admitted", ~is_own_run)


def _is_of(space: Space, scan_version: int) -> sa.ColumnElement[bool]:
    return sa.and_(space.condition(_t), _t.scan_version == scan_version)


def write_tasks(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows of tasks, of those traces that the store still has."""
    trace_ids = sorted(row["trace_id"] for row in rows)
    stored_ids: set[str] = set()
    for column in (_r.trace_id, _p.trace_id):
        # Locked, so that none is deleted meanwhile.
        select = sa.select(column).order_by(column).with_for_update(read=True, key_share=True)
        for batch in batches(trace_ids):
            stored_ids |= set(connection.scalars(select.where(column.in_(batch))))
    in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
    write(connection, [row for row in in_order if row["trace_id"] in stored_ids])


class Eligibility(NamedTuple):
    """Whether recall may show a trace, as the store has it now.

    Attributes:
        domain: Its domain.
        objective: Its task in words.
        is_open: Whether it is a success that is kept and not withheld; or, of a registry, admitted.
        planted: What looks like planted instructions in it, if recall has looked and found some.
    """

    domain: str
    objective: str
    is_open: bool
    planted: str | None


def eligibility(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, Eligibility]:
    """Return by id whether recall may show traces: kept runs, and units of a registry.

    Args:
        connection: A connection to read with.
        trace_ids: Their ids; one that the store does not have is left out.
    """
    is_admitted = _p.state == "admitted"
    own = sa.select(_r.trace_id, _r.domain, _r.objective, _may_be_shown(), _r.success)
    pulled = sa.select(_p.trace_id, _p.domain, _p.objective, is_admitted, _p.success)
    planted_in = planted_kinds(connection, trace_ids)
    eligibility_by_id: dict[str, Eligibility] = {}
    for batch in batches(trace_ids):
        # A run of this store counts, and not a unit with its id.
        for select, column in ((pulled, _p.trace_id), (own, _r.trace_id)):
            for row in connection.execute(select.where(column.in_(batch))):
                trace_id, domain, objective, may_be_shown, success = row
                is_open = bool(may_be_shown and success)
                eligibility_by_id[trace_id] = Eligibility(
                    domain, objective, is_open, planted_in.get(trace_id)
                )
    return eligibility_by_id


def planted_kinds(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return by id what looks like planted instructions, of those of the traces with any."""
    newest: dict[str, Any] = {}
    select = sa.select(_t.trace_id, _t.planted).where(_t.kind == "task")
    for batch in batches(trace_ids):
        # Of several embedders, the row that the newest rules made; it comes last.
        in_order = select.where(_t.trace_id.in_(batch)).order_by(_t.scan_version)
        newest |= {row[0]: row[1] for row in connection.execute(in_order)}
    return {id_: kinds for id_, kinds in newest.items() if kinds is not None}


def bodies_to_show(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return the traces of those of the runs that are still kept, as the text of their JSON."""
    return body_texts(connection, trace_ids, _r.decision == "kept", _r.withheld.is_(None))
