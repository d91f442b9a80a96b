"""Queries on one run or some, by their ids: their rows, traces, scores and verdicts.

Loads SQLAlchemy. Lists of runs are in `run_lists`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.rows import clean_name, clean_text, trace_key, with_outcome_of
from kp_langchain.store.run_columns import COLUMNS, StoredRun
from kp_langchain.store.statements import batches, insert_or_replace
from kp_langchain.store.tables import bodies, runs, scores, vectors, verdicts
from kp_langchain.verdict import Verdict

_MATCHES_SHOWN = 10
_POSTGRES_LOCKS = 0x6B706B70  # any number, the same in every version of this package
_LAST_CHARACTER = "\U0010ffff"
_c = runs.c
_newest_first = (_c.created_at.desc(), _c.trace_id.desc())
_outcome_columns = (_c.success, _c.confidence, _c.score, _c.validated_by)
_IS_JUDGED = _c.state == "judged"
# More would delay the run that is written in the same transaction.
MOST_EXPIRED_AT_ONCE = 1000
_DELETE_BODY = sa.delete(bodies).where(bodies.c.trace_id == sa.bindparam("body_of"))
_of_verdict = tuple(verdicts.c[one.name] for one in fields(Verdict))
_oldest_first = (verdicts.c.at, verdicts.c.number)
weightiest_first = (verdicts.c.by_model, *(column.desc() for column in _oldest_first))
"""The order in which the verdict that counts comes first: see `Verdict.weight`."""
_stored_run_columns = [_c[name] for name in COLUMNS if name in StoredRun.__dataclass_fields__]


def select_stored_runs() -> sa.Select[Any]:
    """Return the statement that selects what `StoredRun` is made of, of judged runs."""
    is_kept_now = is_kept()
    kept_until = sa.case((is_kept_now, _c.body_expires_at)).label("kept_until")
    columns = (*_stored_run_columns, scores.c.breakdown, is_kept_now.label("kept"), kept_until)
    with_scores = runs.outerjoin(scores, scores.c.trace_id == _c.trace_id)
    return sa.select(*columns).select_from(with_scores).where(_IS_JUDGED)


def is_kept(at: datetime | None = None) -> sa.ColumnElement[bool]:
    """Return whether the store has a run's trace; an expired one does not count, even if there.

    Args:
        at: The time at which it must not have expired; by default now.
    """
    is_current = sa.or_(
        _c.body_expires_at.is_(None), _c.body_expires_at > (at or datetime.now(UTC))
    )
    return sa.and_(_c.has_body, is_current)


def write(
    connection: sa.Connection,
    rows: Sequence[dict[str, Any]],
    traces: Mapping[str, str],
    breakdowns: Sequence[dict[str, Any]],
) -> None:
    """Insert judged runs; each replaces an earlier one with its trace id.

    Args:
        connection: A write transaction.
        rows: The rows of `runs`.
        traces: The texts of their traces by trace id, of those that are kept.
        breakdowns: The rows of `scores`.
    """
    # Every process locks rows in one order, so that two writers of the same ids cannot deadlock.
    dialect = connection.dialect.name
    in_order = _newest_by_id(rows)
    connection.execute(insert_or_replace(runs, dialect), in_order)
    connection.execute(insert_or_replace(scores, dialect), _newest_by_id(breakdowns))
    delete_bodies(connection, [row["trace_id"] for row in in_order if not row["has_body"]])
    texts = [{"trace_id": id_, "trace": traces[id_]} for id_ in sorted(traces)]
    if texts:
        connection.execute(insert_or_replace(bodies, dialect), texts)


def _newest_by_id(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = {row["trace_id"]: row for row in rows}
    return [by_id[trace_id] for trace_id in sorted(by_id)]


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one run."""
    connection.execute(sa.update(runs).where(_c.trace_id == trace_id).values(**changes))


def write_breakdown(
    connection: sa.Connection,
    trace_id: str,
    breakdown: str,
    features: Mapping[str, float] | None,
) -> None:
    """Write how the score of a run comes about now, and what a model reads of it."""
    statement = sa.update(scores).where(scores.c.trace_id == trace_id)
    connection.execute(statement.values(breakdown=breakdown, features=features))


def delete_bodies(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Delete the traces of runs, of which the figures stay."""
    if trace_ids:
        connection.execute(_DELETE_BODY, [{"body_of": id_} for id_ in sorted(trace_ids)])


# ------------------------------------------------------------------ traces


def body(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the trace of one run; None if it is not kept."""
    select = sa.select(bodies.c.trace, *_outcome_columns).join(runs, _c.trace_id == trace_id)
    row = (
        connection.execute(select.where(bodies.c.trace_id == trace_id, is_kept()))
        .mappings()
        .first()
    )
    return None if row is None else with_outcome_of(row["trace"], row)


def body_texts(
    connection: sa.Connection, trace_ids: Collection[str], *conditions: sa.ColumnElement[bool]
) -> dict[str, str]:
    """Return the traces of several runs by trace id, as the text of their JSON, damaged or not.

    Args:
        connection: A connection to read with.
        trace_ids: Their ids; one whose trace is not kept is left out.
        conditions: On the runs.
    """
    text = sa.cast(bodies.c.trace, sa.Text()).label("trace")
    select = (
        sa.select(_c.trace_id, text, *_outcome_columns)
        .join(bodies, bodies.c.trace_id == _c.trace_id)
        .where(_c.trace_id.in_(trace_ids), is_kept(), *conditions)
    )
    rows = connection.execute(select).mappings()
    return {row["trace_id"]: _text_with_outcome(row) for row in rows}


def _text_with_outcome(row: Mapping[Any, Any]) -> str:
    text: str = row["trace"]
    try:
        trace = json.loads(text)
    except (ValueError, RecursionError):  # another program has damaged it
        return text
    return json.dumps(with_outcome_of(trace, row)) if isinstance(trace, dict) else text


def drop_expired_bodies(connection: sa.Connection) -> int:
    """Delete the expired traces of up to `MOST_EXPIRED_AT_ONCE` runs; return their number."""
    select = sa.select(_c.trace_id).where(_c.body_expires_at <= datetime.now(UTC))
    # A row that another transaction holds is left for later: it may wait for one of this.
    select = select.limit(MOST_EXPIRED_AT_ONCE).with_for_update(skip_locked=True)
    trace_ids = connection.scalars(select).all()
    if trace_ids:
        statement = sa.update(runs).where(_c.trace_id.in_(trace_ids))
        connection.execute(statement.values(has_body=False, body_expires_at=None))
        delete_bodies(connection, trace_ids)
        of_runs = sa.and_(vectors.c.kind == "run", vectors.c.trace_id.in_(trace_ids))
        connection.execute(sa.delete(vectors).where(of_runs))
    return len(trace_ids)


# ------------------------------------------------------------------ by id


def lock_kept(connection: sa.Connection, trace_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return those of the runs that are kept, locked for this transaction.

    Each row has `trace_id`, `keep_days`, and `is_stated`: whether a verdict states its success.
    """
    if not trace_ids:
        return []
    is_stated = (
        sa.select(vectors.c.is_stated)
        .where(vectors.c.kind == "run", vectors.c.trace_id == _c.trace_id)
        .scalar_subquery()
    )
    select = (
        sa.select(_c.trace_id, _c.keep_days, is_stated.label("is_stated"))
        .where(_c.trace_id.in_(trace_ids), _c.decision == "kept")
        .order_by(_c.trace_id)
        .with_for_update(of=runs)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def lock_domains(connection: sa.Connection, domains: Collection[str]) -> None:
    """Have no other verdict change what is kept in these domains before this transaction ends.

    So of two repeats that are confirmed at the same time, the later one sees the earlier one.
    """
    if connection.dialect.name != "postgresql":
        return  # a SQLite file has one writer at a time anyway
    # Two names may share a key: then they only wait for each other, too.
    for key in sorted({crc32(name.encode()) - 2**31 for name in domains}):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCKS, key)))


def whole_row(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the whole row of a judged run, as `whole_rows` does; None if there is none."""
    rows = whole_rows(connection, [trace_id], lock=False)
    return rows[0] if rows else None


def whole_rows(
    connection: sa.Connection, trace_ids: Sequence[str], *, lock: bool
) -> list[dict[str, Any]]:
    """Return whole rows of judged runs, each with its `trace`, `breakdown` and `features`.

    Args:
        connection: A connection to read with, or a write transaction.
        trace_ids: The ids of the traces. A trace that is not kept, or has expired, is None.
        lock: Whether to lock the rows for this transaction.
    """
    select = (
        sa.select(runs, bodies.c.trace, scores.c.breakdown, scores.c.features)
        .select_from(
            runs.outerjoin(bodies, sa.and_(bodies.c.trace_id == _c.trace_id, is_kept())).outerjoin(
                scores, scores.c.trace_id == _c.trace_id
            )
        )
        .where(_c.trace_id.in_(trace_ids), _IS_JUDGED)
        .order_by(_c.trace_id)
    )
    if lock:
        select = select.with_for_update(of=runs)
    rows = connection.execute(select).mappings()
    return [{**row, "trace": with_outcome_of(row["trace"], row)} for row in rows]


def find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten runs whose trace id or run id is, or else begins with, `id_prefix`."""
    return _find(connection, id_prefix, select_stored_runs())


def lock(connection: sa.Connection, trace_ids: Collection[str]) -> list[str]:
    """Lock runs of whatever state until the transaction ends; return those that there are."""
    select = sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids)).order_by(_c.trace_id)
    return list(connection.scalars(select.with_for_update()))


def find_names(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return ids, domain, beginning and state of runs as `find` does, of whatever state."""
    select = sa.select(_c.trace_id, _c.run_id, _c.domain, _c.created_at, _c.state)
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
    return sa.and_(column >= prefix, column <= prefix + _LAST_CHARACTER)


# ------------------------------------------------------------------ verdicts


def add_verdicts(connection: sa.Connection, by_trace: Iterable[tuple[str, Verdict]]) -> None:
    """Insert verdicts, each given with the id of its trace."""
    rows = [
        {
            "trace_id": trace_id,
            "at": verdict.at,
            "success": verdict.success,
            "confidence": verdict.confidence,
            "note": verdict.note and clean_text(verdict.note),
            "source": clean_text(verdict.source),
            "by_model": verdict.by_model,
        }
        for trace_id, verdict in by_trace
    ]
    if rows:
        connection.execute(sa.insert(verdicts), rows)


def counting_verdict(connection: sa.Connection, trace_id: str) -> Verdict | None:
    """Return the verdict on a trace that counts."""
    select = sa.select(*_of_verdict).where(verdicts.c.trace_id == trace_id)
    row = connection.execute(select.order_by(*weightiest_first).limit(1)).mappings().first()
    return None if row is None else Verdict(**row)


def verdicts_on(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the verdicts on several traces by trace id, those on each the oldest first."""
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for batch in batches(trace_ids):
        select = (
            sa.select(verdicts.c.trace_id, *_of_verdict)
            .where(verdicts.c.trace_id.in_(batch))
            .order_by(*_oldest_first)
        )
        for row in connection.execute(select).mappings():
            fields = dict(row)
            by_trace.setdefault(fields.pop("trace_id"), []).append(fields)
    return by_trace
