"""Queries on runs, by their ids or by `RunFilters`: rows, traces, verdicts, lists, counts, jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from kp_langchain.config import Settings
from kp_langchain.gate.check import JudgedRun
from kp_langchain.run_keys import KINDS, Kind, forms_of
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.store.rows import MATCHES_SHOWN, clean_name, folded, trace_key, with_outcome_of
from kp_langchain.store.run_columns import (
    COLUMNS,
    KEY_COLUMNS,
    SEARCHED_CHARS,
    STORED_FIELDS,
    RunFilters,
    RunState,
    Sort,
)
from kp_langchain.store.tables import (
    batches,
    bodies,
    execute_rows,
    insert_or_ignore,
    insert_or_replace,
    jobs,
    runs,
    scores,
    vectors,
    verdicts,
)
from kp_langchain.values import clean_text
from kp_langchain.verdict import Verdict

_POSTGRES_LOCKS = 0x6B706B70  # any number, the same in every version of this package
_LAST_CHARACTER = "\U0010ffff"
_c = runs.c
newest_first = (_c.created_at.desc(), _c.trace_id.desc())
_of_outcome = (_c.success, _c.confidence, _c.score, _c.validated_by)
# More would delay the run that is written in the same transaction.
MOST_EXPIRED_AT_ONCE = 1000
_DELETE_BODY = sa.delete(bodies).where(bodies.c.trace_id == sa.bindparam("body_of"))
_of_verdict = tuple(verdicts.c[one.name] for one in fields(Verdict))
_oldest_first = (verdicts.c.at, verdicts.c.number)
weightiest_first = (verdicts.c.by_model, *(column.desc() for column in _oldest_first))
"""The order in which the verdict that counts comes first: see `Verdict.weight`."""
_stored_run_columns = [_c[name] for name in COLUMNS if name in STORED_FIELDS]


def select_stored_runs() -> sa.Select[Any]:
    """Return the statement that selects what `StoredRun` is made of, of judged runs."""
    is_kept_now = is_kept()
    kept_until = sa.case((is_kept_now, _c.body_expires_at)).label("kept_until")
    columns = (*_stored_run_columns, scores.c.breakdown, is_kept_now.label("kept"), kept_until)
    with_scores = runs.outerjoin(scores, scores.c.trace_id == _c.trace_id)
    return sa.select(*columns).select_from(with_scores).where(_c.state == "judged")


def is_kept(at: datetime | None = None) -> sa.ColumnElement[bool]:
    """Return whether the store has a run's trace; an expired one does not count, even if there.

    Args:
        at: The time at which it must not have expired; by default now.
    """
    is_current = sa.or_(
        _c.body_expires_at.is_(None), _c.body_expires_at > (at or datetime.now(UTC))
    )
    return sa.and_(_c.has_body, is_current)


# ------------------------------------------------------------------ writing


def record(
    connection: sa.Connection,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[dict[str, Any]],
    job_rows: Sequence[dict[str, Any]] = (),
    *,
    replaces: bool = False,
) -> None:
    """Insert runs that are not judged yet.

    Args:
        connection: A write transaction.
        rows: The rows of `runs`; where they replace others, in the order of their ids, so that no
            two transactions wait for each other.
        texts: The rows of `bodies`.
        job_rows: The rows of `jobs`.
        replaces: Whether a run replaces an earlier one with its id, and is not ignored.
    """
    insert = insert_or_replace if replaces else insert_or_ignore
    for table, of_table in ((runs, rows), (bodies, texts), (jobs, job_rows)):
        execute_rows(connection, insert(table, connection.dialect.name), of_table)


def write_judged(
    connection: sa.Connection,
    judged_rows: Sequence[dict[str, Any]],
    breakdowns: Sequence[dict[str, Any]],
) -> None:
    """Write what was decided on recorded runs.

    Args:
        connection: A write transaction that has ended their jobs.
        judged_rows: The new values of columns of `runs`, the same of each, with the `key` of the
            row.
        breakdowns: The rows of `scores`.
    """
    execute_rows(connection, _update_of(tuple(judged_rows[0])), judged_rows)
    execute_rows(connection, insert_or_replace(scores, connection.dialect.name), breakdowns)
    delete_bodies(connection, [row["key"] for row in judged_rows if not row["has_body"]])


@cache  # building it takes longer than executing it
def _update_of(names: tuple[str, ...]) -> sa.Update:
    values: dict[str, Any] = {name: sa.bindparam(name) for name in names if name != "key"}
    return sa.update(runs).where(_c.trace_id == sa.bindparam("key")).values(values)


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one run."""
    connection.execute(sa.update(runs).where(_c.trace_id == trace_id).values(**changes))


def write_breakdown(connection: sa.Connection, trace_id: str, values: Mapping[str, Any]) -> None:
    """Write how the score of a run comes about now, and what a model reads of it."""
    statement = sa.update(scores).where(scores.c.trace_id == trace_id)
    connection.execute(statement.values(**values))


def delete_bodies(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Delete the traces of runs, of which the figures stay."""
    if trace_ids:
        connection.execute(_DELETE_BODY, [{"body_of": id_} for id_ in sorted(trace_ids)])


# ------------------------------------------------------------------ traces


def body_texts(
    connection: sa.Connection, trace_ids: Collection[str], *conditions: sa.ColumnElement[bool]
) -> dict[str, str]:
    """Return the traces of several runs by trace id, as the text of their JSON.

    Args:
        connection: A connection to read with.
        trace_ids: Their ids; one whose trace is not kept is left out.
        conditions: On the runs.
    """
    select = (
        sa.select(_c.trace_id, bodies.c.trace, *_of_outcome)
        .join(bodies, bodies.c.trace_id == _c.trace_id)
        .where(_c.trace_id.in_(trace_ids), is_kept(), *conditions)
    )
    rows = connection.execute(select).mappings()
    return {row["trace_id"]: json.dumps(with_outcome_of(row["trace"], row)) for row in rows}


def set_expiry(connection: sa.Connection, trace_id: str, at: datetime | None) -> None:
    """Have the trace of a run expire; it is not deleted if it is None."""
    update = sa.update(runs).where(_c.trace_id == trace_id)
    connection.execute(update.values(body_expires_at=at))


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
        # The rows stay, for those who follow: see `vectors.forget`.
        connection.execute(sa.update(vectors).where(of_runs).values(fingerprint=None, vector=None))
    return len(trace_ids)


# ------------------------------------------------------------------ by id


def lock_names(connection: sa.Connection, names: Collection[str]) -> None:
    """Have other transactions that lock one of these names wait until this one ends."""
    if connection.dialect.name != "postgresql":
        return  # a SQLite file has one writer at a time anyway
    # Two names may share a key: then they only wait for each other, too.
    for key in sorted({crc32(name.encode()) - 2**31 for name in names}):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCKS, key)))


def whole_rows(
    connection: sa.Connection, trace_ids: Collection[str], state: RunState = "judged"
) -> list[dict[str, Any]]:
    """Return whole rows of runs, each with its `trace`, `breakdown` and `features`.

    Args:
        connection: A connection to read with, or a write transaction.
        trace_ids: The ids of the traces. A trace that is not kept, or has expired, is None.
        state: Only runs that have come so far. One that is not judged has no score.
    """
    kept_body = sa.and_(bodies.c.trace_id == _c.trace_id, is_kept())
    source = runs.outerjoin(bodies, kept_body)
    source = source.outerjoin(scores, scores.c.trace_id == _c.trace_id)
    select = (
        sa.select(runs, bodies.c.trace, scores.c.breakdown, scores.c.features)
        .select_from(source)
        .where(_c.trace_id.in_(trace_ids), _c.state == state)
        .order_by(_c.trace_id)
    )
    rows = [dict(row) for row in connection.execute(select).mappings()]
    if state == "judged":
        for row in rows:
            row["trace"] = with_outcome_of(row["trace"], row)
    return rows


def has_run(connection: sa.Connection, run_id: str) -> bool:
    """Return whether there is a run with this id of LangChain's, in whatever state."""
    select = sa.select(_c.trace_id).where(_c.run_id == run_id).limit(1)
    return connection.scalar(select) is not None


def lock(connection: sa.Connection, trace_ids: Collection[str]) -> list[str]:
    """Lock runs of whatever state until the transaction ends; return those that there are."""
    select = sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids)).order_by(_c.trace_id)
    return list(connection.scalars(select.with_for_update()))


def find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten runs whose trace id or run id is, or else begins with, `id_prefix`."""
    return _find(connection, id_prefix, select_stored_runs().limit(MATCHES_SHOWN))


def find_names(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return ids, domain, beginning and state of runs as `find` does, of whatever state."""
    select = sa.select(_c.trace_id, _c.run_id, _c.domain, _c.created_at, _c.state)
    return _find(connection, id_prefix, select)


def _find(
    connection: sa.Connection, id_prefix: str, select: sa.Select[Any]
) -> list[dict[str, Any]]:
    ids = possible_ids(id_prefix)
    run_id = clean_name(ids[-1].removeprefix(TRACE_ID_PREFIX)) if ids else ""
    of_run = (_c.run_id == run_id, begins(_c.run_id, run_id)) if run_id else (sa.false(),) * 2
    exact = [sa.or_(_c.trace_id == trace_key(id_), of_run[0]) for id_ in ids]
    by_prefix = [sa.or_(begins(_c.trace_id, clean_text(id_)), of_run[1]) for id_ in ids]
    return first_matches(connection, select.order_by(*newest_first), (*exact, *by_prefix))


def first_matches(
    connection: sa.Connection,
    select: sa.Select[Any],
    conditions: Iterable[sa.ColumnElement[bool]],
) -> list[dict[str, Any]]:
    """Return the rows that meet the first condition that any row meets."""
    for condition in conditions:
        rows = connection.execute(select.where(condition)).mappings().all()
        if rows:
            return [dict(row) for row in rows]
    return []


def possible_ids(id_prefix: str) -> list[str]:
    """Return the trace ids that `id_prefix` may be, or be a prefix of, the likeliest first.

    They are the text as it is, without surrounding blanks, and in lower case, as UUIDs are.
    """
    trimmed_text = id_prefix.strip()
    texts = dict.fromkeys((id_prefix, trimmed_text, trimmed_text.lower()))
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
            **asdict(verdict),
            "trace_id": trace_id,
            "note": verdict.note and clean_text(verdict.note),
            "source": clean_text(verdict.source),
        }
        for trace_id, verdict in by_trace
    ]
    if rows:
        connection.execute(sa.insert(verdicts), rows)


def verdicts_on(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, list[Verdict]]:
    """Return the verdicts on several traces by trace id, those on each the oldest first."""
    by_trace: dict[str, list[Verdict]] = {}
    for batch in batches(trace_ids):
        select = sa.select(verdicts.c.trace_id, *_of_verdict)
        select = select.where(verdicts.c.trace_id.in_(batch)).order_by(*_oldest_first)
        for trace_id, *values in connection.execute(select):
            by_trace.setdefault(trace_id, []).append(Verdict(*values))
    return by_trace


# ------------------------------------------------------------------ conditions

Conditions = Sequence[sa.ColumnElement[bool]]
_SORT_COLUMNS: dict[Sort, list[sa.Column[Any]]] = {
    "time": [], "score": [_c.score], "novelty": [_c.novelty],
}  # fmt: skip
_COLUMN_OF_KEY = {key: name for name, key in KEY_COLUMNS.items()}
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_is_near_duplicate = sa.or_(_c.twin_of.is_not(None), _c.replaced_by.is_not(None))
_FIGURES: list[Any] = [
    *(_c[name] for name in ("trace_id", "domain", "decision", "gate", "score", "worth")),
    *(_c[name] for name in ("threshold", "recovered_errors", "novelty_source")),
    _is_near_duplicate.label("is_near_duplicate"),
    _c.withheld.is_not(None).label("is_withheld"),
    *(
        _c.dimensions[name, at].as_float().label(name + ending)
        for name in DIMENSION_NAMES
        for at, ending in enumerate(("", "_weight"))
    ),
    *(sa.cast(_c[name], sa.Text()).label(name) for name in ("rules", "redactions", "dropped")),
]
_ROWS_AT_ONCE = 10_000


def _contains(column: sa.Column[Any], part: str) -> sa.ColumnElement[bool]:
    # LIKE ignores the case of letters on SQLite, and only there.
    text = sa.cast(column, sa.Text())
    return sa.func.replace(text, part, "") != text


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _has_key(kind: Kind, columns: Any, text: str) -> sa.ColumnElement[bool]:
    """Return the condition that a run has a key, in plain text or as the store has it."""
    rules = Settings.current().redaction  # its `pseudonym_key` may be the key of the hashes
    forms = [clean_name(form) for form in forms_of(kind, text, rules)]
    if kind == "tag":
        return sa.or_(sa.false(), *(_contains(columns.tags, _json_text(form)) for form in forms))
    condition: sa.ColumnElement[bool] = columns[_COLUMN_OF_KEY[kind]].in_(forms)
    return condition


def _has_words(text: str) -> sa.ColumnElement[bool]:
    words = folded(text)[:SEARCHED_CHARS].split()
    return sa.and_(sa.true(), *(_c.search_text.contains(one, autoescape=True) for one in words))


_CONDITIONS: Mapping[str, Callable[[Any], sa.ColumnElement[bool]]] = {
    "decision": lambda value: _c.decision == clean_text(value),
    "min_score": lambda value: _c.score >= value,
    "search": _has_words,
    "rule": lambda value: _contains(_c.rules, f"{_json_text(value)}:"),
    "tool": lambda value: _contains(_c.tools, _json_text(clean_name(value))),
    "recovered_errors": lambda _: _c.recovered_errors > 0,
    "near_duplicates": lambda _: _is_near_duplicate,
}
# These a run has before it is judged, and in `paused_runs` as well.
_EARLY_CONDITIONS: Mapping[str, Callable[[Any, Any], sa.ColumnElement[bool]]] = {
    "domain": lambda columns, value: columns.domain == clean_name(value),
    "since": lambda columns, value: columns.created_at >= value,
    "until": lambda columns, value: columns.created_at < value,
    **{kind: partial(_has_key, kind) for kind in KINDS},
}


def selecting(filters: RunFilters) -> dict[str, Any]:
    """Return the filters that leave out any run.

    Raises:
        TypeError: There is no such filter.
    """
    for name in filters:
        if name not in RunFilters.__annotations__:
            raise TypeError(f"unexpected filter {name!r}; see RunFilters")
    values: dict[str, Any] = dict(filters)
    if not (values.get("search") or "").split():
        values.pop("search", None)
    return {name: value for name, value in values.items() if value not in (None, False)}


def conditions_of(filters: RunFilters) -> Conditions:
    """Return the conditions on judged runs, as `RunFilters` explains them."""
    conditions = [_c.state == "judged"]
    for name, value in selecting(filters).items():
        if name in _EARLY_CONDITIONS:
            conditions.append(_EARLY_CONDITIONS[name](_c, value))
        else:
            conditions.append(_CONDITIONS[name](value))
    return conditions


def conditions_before_judging(filters: RunFilters, table: sa.Table) -> Conditions:
    """Return the conditions on runs that are not judged yet, which match by what they have.

    Args:
        filters: The filters.
        table: `runs` or `paused_runs`.
    """
    values = selecting(filters)
    if not values.keys() <= _EARLY_CONDITIONS.keys():
        return [sa.false()]
    conditions = [_EARLY_CONDITIONS[name](table.c, value) for name, value in values.items()]
    return [*conditions, _c.state == "recorded"] if table is runs else conditions


def order(sort: Sort = "time", *, newest_first: bool = True) -> list[sa.ColumnElement[Any]]:
    """Return what to order by: a figure, then the time at which runs began, then their ids.

    Args:
        sort: The figure; `time` for none.
        newest_first: If False, the order is reversed.
    """
    columns: list[Any] = [*_SORT_COLUMNS[sort], _c.created_at, _c.trace_id]
    return [column.desc() for column in columns] if newest_first else columns


# ------------------------------------------------------------------ lists and counts


def select_runs(
    connection: sa.Connection,
    conditions: Conditions,
    *,
    sort: Sort,
    limit: int | None,
    offset: int,
    newest_first: bool,
) -> list[dict[str, Any]]:
    """Return the columns that `StoredRun` is made of, of the matching runs in their order."""
    # In two steps, so that only the rows of the page are read whole, and not all that match.
    page = sa.select(_c.trace_id).where(*conditions)
    page = page.order_by(*order(sort, newest_first=newest_first)).limit(limit).offset(offset)
    select = select_stored_runs().where(_c.trace_id.in_(page))
    rows = connection.execute(select.order_by(*order(sort, newest_first=newest_first)))
    return [dict(row) for row in rows.mappings()]


def count(connection: sa.Connection, conditions: Conditions) -> int:
    """Return the number of matching runs."""
    return connection.scalar(sa.select(sa.func.count()).where(*conditions)) or 0


def figures(connection: sa.Connection, conditions: Conditions) -> dict[str, list[Any]]:
    """Return the figures of the matching runs as columns, the oldest run first.

    Args:
        connection: A connection to read with.
        conditions: Only matching runs.
    """
    select = sa.select(*_FIGURES).where(*conditions).order_by(*order(newest_first=False))
    columns: dict[str, list[Any]] = {column.name: [] for column in _FIGURES}
    for rows in connection.execute(select).partitions(_ROWS_AT_ONCE):
        for column, values in zip(columns.values(), zip(*rows, strict=True), strict=True):
            column.extend(values)
    success_of = labels(connection)
    return columns | {"label": [success_of.get(trace_id) for trace_id in columns["trace_id"]]}


def select_bodies(conditions: Conditions, *, with_expiring: bool) -> sa.Select[Any]:
    """Return the statement that selects the traces of the matching runs.

    Args:
        conditions: Only those of matching runs.
        with_expiring: Whether traces that expire count, and not just those kept for good.
    """
    columns = (_c.created_at, _c.trace_id, bodies.c.trace, _c.namespace, *_of_outcome)
    select = sa.select(*columns).join(bodies, bodies.c.trace_id == _c.trace_id)
    is_there = is_kept() if with_expiring else is_kept(_LAST_MOMENT)
    return select.where(is_there, *conditions)


def page_of(
    connection: sa.Connection,
    select: sa.Select[Any],
    *,
    after: tuple[datetime, str] | None,
    newest_first: bool,
    limit: int,
) -> list[dict[str, Any]]:
    """Return the next rows in the order of time; a trace has the outcome that its row has.

    Args:
        connection: A connection to read with.
        select: Selects columns of runs.
        after: `created_at` and `trace_id` of the last one before this page; None for the first.
        newest_first: Whether the runs that began last come first.
        limit: At most so many.
    """
    select = select.where(*_beyond(after, newest_first=newest_first))
    select = select.order_by(*order(newest_first=newest_first)).limit(limit)
    rows = [dict(row) for row in connection.execute(select).mappings()]
    for row in rows:
        if "trace" in row:
            row["trace"] = with_outcome_of(row["trace"], row)
    return rows


def _beyond(
    after: tuple[datetime, str] | None, *, newest_first: bool
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the condition that a run comes after another one in the order of time."""
    if after is not None:
        key = sa.tuple_(_c.created_at, _c.trace_id)
        last = sa.tuple_(
            sa.literal(after[0], _c.created_at.type), sa.literal(after[1], _c.trace_id.type)
        )
        yield key < last if newest_first else key > last


def labels(connection: sa.Connection) -> dict[str, bool]:
    """Return what the verdict that counts says, of those that state success, by trace id."""
    select = (
        sa.select(verdicts.c.trace_id, verdicts.c.success)
        .where(verdicts.c.success.is_not(None))
        .order_by(verdicts.c.by_model.desc(), verdicts.c.at, verdicts.c.number)
    )
    return {row[0]: row[1] for row in connection.execute(select)}  # the last one counts


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
        .order_by(*newest_first)
        .limit(limit)
    )
    if since is not None:
        select = select.where(_c.created_at >= since)
    rows = connection.execute(select).all()
    return [JudgedRun(row[0], bool(row[1]), row[2]) for row in reversed(rows)]
