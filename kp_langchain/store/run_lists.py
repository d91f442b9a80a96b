"""Lists of runs: which runs `RunFilters` select, in which order, and what is read of each.

Loads SQLAlchemy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa

from kp_langchain.config import Settings
from kp_langchain.gate.check import JudgedRun
from kp_langchain.run_keys import KINDS, Kind, forms_of
from kp_langchain.store.rows import clean_name, clean_text, folded, with_outcome_of
from kp_langchain.store.run_columns import KEY_COLUMNS, SEARCHED_CHARS
from kp_langchain.store.run_filters import RunFilters, Sort
from kp_langchain.store.run_queries import is_kept, select_stored_runs
from kp_langchain.store.tables import bodies, runs, verdicts

Conditions = Sequence[sa.ColumnElement[bool]]
_c = runs.c
_SORT_COLUMNS: dict[Sort, list[sa.Column[Any]]] = {
    "time": [], "score": [_c.score], "novelty": [_c.novelty],
}  # fmt: skip
_COLUMN_OF_KEY = {key: name for name, key in KEY_COLUMNS.items()}
# A page is read whole, so that no transaction stays open between two traces.
_PAGE_SIZE, _SUMMARIES_AT_ONCE = 20, 5000
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_newest_first = (_c.created_at.desc(), _c.trace_id.desc())
_outcome_columns = (_c.success, _c.confidence, _c.score, _c.validated_by)
# As text: most runs share the values of most of these columns, so each value is parsed once.
_SUMMARY_JSON = ("dimensions", "rules", "tools", "redactions", "dropped")
_summary_columns = [
    *(_c[name] for name in (
        "trace_id", "created_at", "domain", "decision", "gate", "score", "worth", "threshold",
        "success", "recovered_errors", "novelty_source",
    )),
    sa.or_(_c.twin_of.is_not(None), _c.replaced_by.is_not(None)).label("is_near_duplicate"),
    _c.withheld.is_not(None).label("is_withheld"),
    *(sa.cast(_c[name], sa.Text()).label(name) for name in _SUMMARY_JSON),
]  # fmt: skip


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
    "near_duplicates": lambda _: sa.or_(_c.twin_of.is_not(None), _c.replaced_by.is_not(None)),
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


def page_of_summaries(
    connection: sa.Connection, conditions: Conditions, *, after: tuple[datetime, str] | None
) -> list[dict[str, Any]]:
    """Return the next summaries, the oldest first, without their labels.

    Args:
        connection: A connection to read with.
        conditions: Only those of matching runs.
        after: `created_at` and `trace_id` of the last one before this page; None for the first.
    """
    select = sa.select(*_summary_columns).where(*conditions, *_beyond(after, newest_first=False))
    select = select.order_by(*order(newest_first=False)).limit(_SUMMARIES_AT_ONCE)
    page = [dict(row) for row in connection.execute(select).mappings()]
    for values in page:
        for name in _SUMMARY_JSON:
            values[name] = _parsed(values[name])
    return page


@lru_cache(maxsize=10_000)
def _parsed(text: str | None) -> Any:
    """Return the value of a JSON column; an empty one for what another program changed."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return {}


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
        .order_by(*_newest_first)
        .limit(limit)
    )
    if since is not None:
        select = select.where(_c.created_at >= since)
    rows = connection.execute(select).all()
    return [JudgedRun(row[0], bool(row[1]), row[2]) for row in reversed(rows)]


def page_of_bodies(
    connection: sa.Connection,
    conditions: Conditions,
    *,
    after: tuple[datetime, str] | None,
    newest_first: bool,
    with_expiring: bool,
) -> list[tuple[datetime, str, dict[str, Any], str | None]]:
    """Return the next traces, each with `created_at` and `trace_id` before, `namespace` after it.

    Args:
        connection: A connection to read with.
        conditions: Only those of matching runs.
        after: `created_at` and `trace_id` of the last one before this page; None for the first.
        newest_first: Whether the runs that began last come first.
        with_expiring: Whether traces that expire count, and not just those kept for good.
    """
    select = (
        sa.select(_c.created_at, _c.trace_id, bodies.c.trace, _c.namespace, *_outcome_columns)
        .join(bodies, bodies.c.trace_id == _c.trace_id)
        .where(is_kept() if with_expiring else is_kept(_LAST_MOMENT), *conditions)
        .where(*_beyond(after, newest_first=newest_first))
        .order_by(*order(newest_first=newest_first))
        .limit(_PAGE_SIZE)
    )
    return [
        (row["created_at"], row["trace_id"], with_outcome_of(row["trace"], row), row["namespace"])
        for row in connection.execute(select).mappings()
    ]
