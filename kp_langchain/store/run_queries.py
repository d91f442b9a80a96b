"""Queries on the tables `runs` and `run_tags`. Loads SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from kp_langchain.gate.recent_values import JudgedRun
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name, clean_text, trace_key
from kp_langchain.store.run_filters import Sort
from kp_langchain.store.summary_queries import Filter, order
from kp_langchain.store.tables import run_entries, run_summaries, run_tags, runs

_MATCHES_SHOWN = 10
_POSTGRES_LOCKS = 0x6B706B70  # any number, the same in every version of this package
_LAST_CHARACTER = "\U0010ffff"
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000  # which no text in a database contains
_c, _s, _t = runs.c, run_summaries.c, run_tags.c
_INSERT_TAGS = sa.insert(run_tags)
_DELETE_TAGS = sa.delete(run_tags).where(_t.trace_id == sa.bindparam("tags_of"))
# The columns that only verdicts, calibration and the gate need are not in `StoredRun`.
_HIDDEN_COLUMNS = {
    "body", "body_expires_at", "keep_days", "task", "features", "twin_similarity",
    "gated_value", "passed", "pass_rate", "kept_change",
}  # fmt: skip
_stored_run_columns = [column for column in runs.columns if column.name not in _HIDDEN_COLUMNS]
_summary_columns = [_s[name] for name in ("recovered_errors", "tools", "redactions", "dropped")]
_runs_with_summaries = run_summaries.join(runs, _c.trace_id == run_summaries.c.trace_id)
_newest_first = (_c.created_at.desc(), _c.trace_id.desc())
# A page is read whole, so that no transaction stays open between two traces.
_PAGE_SIZE = 20
# More would delay the run that is written in the same transaction.
MOST_EXPIRED_AT_ONCE = 1000
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert `rows`; each replaces an earlier row with its trace id, but for its `kept_change`."""
    # Every process locks rows in one order, so that two writers of the same ids cannot deadlock.
    by_id = {row["trace_id"]: row for row in rows}
    in_order = [by_id[trace_id] for trace_id in sorted(by_id)]
    insert = insert_or_replace(runs, connection.dialect.name, but=_c.kept_change.name)
    connection.execute(insert, in_order)
    connection.execute(_DELETE_TAGS, [{"tags_of": row["trace_id"]} for row in in_order])
    tags = [
        {"tag": tag, "trace_id": row["trace_id"]}
        for row in in_order
        if row["tags"]
        for tag in json.loads(row["tags"])
    ]
    if tags:
        connection.execute(_INSERT_TAGS, tags)


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one run."""
    connection.execute(sa.update(runs).where(_c.trace_id == trace_id).values(**changes))


def select_runs(
    connection: sa.Connection,
    run_filter: Filter,
    *,
    sort: Sort,
    limit: int | None,
    offset: int,
    newest_first: bool,
) -> list[dict[str, Any]]:
    """Return the columns that `StoredRun` is made of, of the matching runs in their order."""
    # In two steps, so that only the rows of the page are read whole, and not all that match.
    page = run_filter.apply(sa.select(_s.trace_id), sort, newest_first=newest_first)
    page = page.limit(limit).offset(offset)
    select = _select_stored_runs().where(_s.trace_id.in_(page))
    rows = connection.execute(select.order_by(*order(sort, newest_first=newest_first)))
    return [dict(row) for row in rows.mappings()]


def recent_values(
    connection: sa.Connection, domain: str, *, gate: str, since: datetime | None, limit: int
) -> list[JudgedRun]:
    """Return what the gate saw of a domain's last runs, and which passed, the oldest first.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        gate: `score` or `worth`; only runs that this gate judged.
        since: Only runs that began at this time or later.
        limit: At most so many.
    """
    select = (
        sa.select(_c.gated_value, _c.passed, _c.pass_rate)
        .where(_c.domain == clean_name(domain), _c.gate == gate, _c.gated_value.is_not(None))
        .order_by(*_newest_first)
        .limit(limit)
    )
    if since is not None:
        select = select.where(_c.created_at >= since)
    rows = connection.execute(select).all()
    return [JudgedRun(row[0], bool(row[1]), row[2]) for row in reversed(rows)]


def _select_stored_runs() -> sa.Select[Any]:
    is_kept_now = is_kept()
    kept_until = sa.case((is_kept_now, _c.body_expires_at)).label("kept_until")
    columns = (*_stored_run_columns, *_summary_columns, is_kept_now.label("kept"), kept_until)
    # Outer, because a process of an earlier version writes runs without a summary.
    with_summaries = runs.outerjoin(run_summaries, _c.trace_id == _s.trace_id)
    return sa.select(*columns).select_from(with_summaries)


def is_kept(at: datetime | None = None) -> sa.ColumnElement[bool]:
    """Return whether a run has a body; an expired one does not count, even if still there.

    Args:
        at: The time at which it must not have expired; by default now.
    """
    # Also for the last moment: with only the first condition, SQLite would read all bodies without
    # an expiry by the index on it, and sort them.
    is_permanent = _c.body_expires_at.is_(None)
    is_current = sa.or_(is_permanent, _c.body_expires_at > (at or datetime.now(UTC)))
    return sa.and_(_c.body.is_not(None), is_current)


def body(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the body of one run; None if it is not kept."""
    value: dict[str, Any] | None = connection.scalar(
        sa.select(_c.body).where(_c.trace_id == trace_id, is_kept())
    )
    return value


def body_texts(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return the bodies of several runs by trace id, as the text of their JSON, damaged or not."""
    select = sa.select(_c.trace_id, sa.cast(_c.body, sa.Text())).where(
        _c.trace_id.in_(trace_ids), is_kept()
    )
    return {row[0]: row[1] for row in connection.execute(select)}


def drop_expired_bodies(connection: sa.Connection) -> int:
    """Delete the expired bodies of up to `MOST_EXPIRED_AT_ONCE` runs; return their number."""
    select = sa.select(_c.trace_id).where(_c.body_expires_at <= datetime.now(UTC))
    # A row that another transaction holds is left for later: it may wait for one of this.
    select = select.limit(MOST_EXPIRED_AT_ONCE).with_for_update(skip_locked=True)
    trace_ids = connection.scalars(select).all()
    if trace_ids:
        update = sa.update(runs).where(_c.trace_id.in_(trace_ids))
        connection.execute(update.values(body=None, body_expires_at=None))
        connection.execute(sa.delete(run_entries).where(run_entries.c.trace_id.in_(trace_ids)))
    return len(trace_ids)


def existing(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those of the traces that have a row."""
    if not trace_ids:
        return set()
    return set(connection.scalars(sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids))))


def lock_kept(connection: sa.Connection, trace_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return those of the runs that are kept, locked for this transaction.

    Each row has `trace_id`, `domain`, `keep_days`, and `is_stated` of its entry.
    """
    if not trace_ids:
        return []
    is_stated = (
        sa.select(run_entries.c.is_stated)
        .where(run_entries.c.trace_id == _c.trace_id)
        .scalar_subquery()
    )
    select = (
        sa.select(_c.trace_id, _c.domain, _c.keep_days, is_stated.label("is_stated"))
        .where(_c.trace_id.in_(trace_ids), _c.decision == "contributed")
        .order_by(_c.trace_id)
        .with_for_update(of=runs)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def lock_domains(connection: sa.Connection, domains: Collection[str]) -> None:
    """Have no other transaction change what is kept in these domains before this one ends.

    So of two that come at the same time the later one sees what the earlier one keeps, and their
    changes have numbers in the order in which others see them. A transaction does it once, before
    it locks rows, so that no two wait for each other.
    """
    if connection.dialect.name != "postgresql":
        return  # a SQLite file has one writer at a time anyway
    # Two names may share a key: then they only wait for each other, too.
    for key in sorted({crc32(name.encode()) - 2**31 for name in domains}):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCKS, key)))


def find_to_judge(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return the whole rows of the runs that `find` returns, locked for this transaction.

    Their domains are locked as well: see `lock_domains`.
    """
    matches = find(connection, id_prefix)
    trace_ids = [run["trace_id"] for run in matches]
    lock_domains(connection, {run["domain"] for run in matches})
    select = sa.select(runs).where(_c.trace_id.in_(trace_ids)).order_by(_c.trace_id)
    rows = connection.execute(select.with_for_update()).mappings()
    return [_without_expired_body(dict(row)) for row in rows]


def whole_row(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the whole row of a run, without a body that has expired."""
    row = connection.execute(sa.select(runs).where(_c.trace_id == trace_id)).mappings().first()
    return None if row is None else _without_expired_body(dict(row))


def _without_expired_body(row: dict[str, Any]) -> dict[str, Any]:
    if row["body_expires_at"] is not None and row["body_expires_at"] <= datetime.now(UTC):
        row |= {"body": None, "body_expires_at": None}
    return row


def find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten runs whose trace id or run id is, or else begins with, `id_prefix`."""
    return _find(connection, id_prefix, _select_stored_runs())


def find_names(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return ids, domain and beginning of the runs that `find` returns, damaged ones included."""
    select = sa.select(_c.trace_id, _c.run_id, _c.domain, _c.created_at)
    return _find(connection, id_prefix, select, limit=None)


def _find(
    connection: sa.Connection,
    id_prefix: str,
    select: sa.Select[Any],
    *,
    limit: int | None = _MATCHES_SHOWN,
) -> list[dict[str, Any]]:
    select = select.order_by(*_newest_first).limit(limit)
    ids = possible_ids(id_prefix)
    run_id = clean_name(ids[-1].removeprefix(TRACE_ID_PREFIX)) if ids else ""
    of_run = (_c.run_id == run_id, begins(_c.run_id, run_id)) if run_id else (sa.false(),) * 2
    exact = [sa.or_(_c.trace_id == trace_key(id_), of_run[0]) for id_ in ids]
    by_prefix = [sa.or_(begins(_c.trace_id, clean_text(id_)), of_run[1]) for id_ in ids]
    for condition in (*exact, *by_prefix):
        matches = connection.execute(select.where(condition)).mappings().all()
        if matches:
            return [dict(row) for row in matches]
    return []


def page_of_bodies(
    connection: sa.Connection,
    run_filter: Filter,
    *,
    after: tuple[datetime, str] | None,
    newest_first: bool,
    with_expiring: bool,
) -> list[tuple[datetime, str, dict[str, Any], str | None]]:
    """Return the next bodies, each with `created_at` and `trace_id` before, `namespace` after it.

    Args:
        connection: A connection to read with.
        run_filter: Only bodies of matching runs.
        after: `created_at` and `trace_id` of the last body before this page; None for the first.
        newest_first: Whether the runs that began last come first.
        with_expiring: Whether bodies that expire count, and not just those kept for good.
    """
    key = sa.tuple_(_s.created_at, _s.trace_id)
    select = (
        sa.select(_s.created_at, _s.trace_id, _c.body, _c.namespace)
        .select_from(_runs_with_summaries)
        .where(is_kept() if with_expiring else is_kept(_LAST_MOMENT))
    )
    if after is not None:
        last = sa.tuple_(
            sa.literal(after[0], _s.created_at.type), sa.literal(after[1], _s.trace_id.type)
        )
        select = select.where(key < last if newest_first else key > last)
    select = run_filter.apply(select, newest_first=newest_first).limit(_PAGE_SIZE)
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(select)]


def possible_ids(id_prefix: str) -> list[str]:
    """Return the trace ids that `id_prefix` may be, or be a prefix of, the likeliest first.

    They are the text as it is, without surrounding blanks, and in lower case, as UUIDs are.
    """
    trimmed = id_prefix.strip()
    texts = dict.fromkeys((id_prefix, trimmed, trimmed.lower()))
    ids = [
        text if text.startswith(TRACE_ID_PREFIX) else f"{TRACE_ID_PREFIX}{text}" for text in texts
    ]
    return [id_ for id_ in ids if id_ != TRACE_ID_PREFIX]


def begins(column: sa.Column[str], prefix: str) -> sa.ColumnElement[bool]:
    """Return the condition that `column` begins with `prefix`."""
    # As a range, because an index can answer that; LIKE would read the whole table.
    at_least = column >= prefix
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return at_least
    last = ord(stem[-1]) + 1
    after = chr(_AFTER_SURROGATES if last == _FIRST_SURROGATE else last)
    return sa.and_(at_least, column < stem[:-1] + after)
