"""Queries on the table `run_summaries`, and the conditions that select runs. Loads SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name, clean_text
from kp_langchain.store.run_filters import Sort
from kp_langchain.store.summaries import SEARCHED_CHARS, folded
from kp_langchain.store.tables import run_summaries, run_tags, runs, verdicts

_PAGE_SIZE = 5000
_r, _s, _t = runs.c, run_summaries.c, run_tags.c
_SORT_COLUMNS: dict[Sort, list[sa.Column[Any]]] = {
    "time": [],
    "score": [_s.score],
    "novelty": [_s.novelty],
}
# As text: most runs share the values of most columns, so each is parsed once.
_JSON_COLUMNS = [column.name for column in _s if isinstance(column.type, sa.JSON)]
_summary_columns = [
    sa.cast(column, sa.Text()).label(column.name) if column.name in _JSON_COLUMNS else column
    for column in _s
    if column.name not in ("novelty", "search_text")
]
_KEY_COLUMNS = {
    "session": _r.session, "thread": _r.thread, "user": _r.user_hash,
    "namespace": _r.namespace, "name": _r.run_name,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on runs, as `RunFilters` explains them.

    Attributes:
        keys: For each run key (such as `session`), the forms that match; see `run_keys.forms_of`.
    """

    domain: str | None = None
    decision: str | None = None
    min_score: float | None = None
    since: datetime | None = None
    until: datetime | None = None
    search: str | None = None
    rule: str | None = None
    tool: str | None = None
    recovered_errors: bool | None = None
    near_duplicates: bool | None = None
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_conditions(self) -> bool:
        """Whether it leaves out any run."""
        return any(True for _ in self.conditions())

    def matches_unscored(
        self, domain: str, began_at: datetime, keys: Mapping[str, str | Sequence[str] | None]
    ) -> bool:
        """Return whether a run that has no score yet matches, by what is known of it.

        Args:
            domain: Its domain.
            began_at: When it began.
            keys: Its keys, as `RunKeys.to_dict` returns them.
        """
        known = replace(self, domain=None, since=None, until=None, keys={})
        if known.has_conditions:
            return False
        if self.domain not in (None, domain):
            return False
        if self.since is not None and began_at < self.since.astimezone():
            return False
        if self.until is not None and began_at >= self.until.astimezone():
            return False
        values = {key: keys.get(key) for key in _KEY_COLUMNS}
        texts = {key: [value] for key, value in values.items()} | {"tag": keys.get("tags") or ()}
        return all(
            any(text == form for text in texts[key] for form in forms)
            for key, forms in self.keys.items()
        )

    def apply(
        self, select: sa.Select[Any], sort: Sort = "time", *, newest_first: bool = True
    ) -> sa.Select[Any]:
        """Return `select`, which reads `run_summaries`, with these conditions, and in order."""
        # Perhaps few runs match. SQLite would go through all of them in the order of an index,
        # which takes four times as long as through the table.
        is_rare = bool(self.search or self.rule or self.tool)
        columns = order(sort, newest_first=newest_first, by_index=not is_rare)
        return select.where(*self.conditions()).order_by(*columns)

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        """Yield the conditions on `run_summaries`."""
        if self.domain is not None:
            yield _s.domain == clean_name(self.domain)
        if self.decision is not None:
            yield _s.decision == clean_text(self.decision)
        if self.min_score is not None:
            yield _s.score >= self.min_score
        if self.since is not None:
            yield _s.created_at >= self.since
        if self.until is not None:
            yield _s.created_at < self.until
        if self.recovered_errors:
            yield _s.recovered_errors > 0
        if self.near_duplicates:
            yield _s.is_near_duplicate
        if self.rule is not None:
            yield _contains(_s.rules, f"{_json_text(self.rule)}:")
        if self.tool is not None:
            yield _contains(_s.tools, _json_text(clean_name(self.tool)))
        for word in folded(self.search or "")[:SEARCHED_CHARS].split():
            yield _s.search_text.contains(word, autoescape=True)
        for key, forms in self.keys.items():
            yield _s.trace_id.in_(_with_key(key, [clean_name(form) for form in forms]))


def _contains(column: sa.Column[Any], part: str) -> sa.ColumnElement[bool]:
    # LIKE ignores the case of letters on SQLite, and only there.
    text = sa.cast(column, sa.Text())
    return sa.func.replace(text, part, "") != text


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _with_key(key: str, forms: list[str]) -> sa.Select[tuple[str]]:
    if key == "tag":
        return sa.select(_t.trace_id).where(_t.tag.in_(forms))
    return sa.select(_r.trace_id).where(_KEY_COLUMNS[key].in_(forms))


def order(
    sort: Sort = "time", *, newest_first: bool = True, by_index: bool = True
) -> list[sa.ColumnElement[Any]]:
    """Return what to order by: a figure, then the time at which runs began, then their ids.

    Args:
        sort: The figure; `time` for none.
        newest_first: If False, the order is reversed.
        by_index: Whether the database may read the rows in the order of an index.
    """
    columns: list[sa.ColumnElement[Any]] = [*_SORT_COLUMNS[sort], _s.created_at, _s.trace_id]
    if not by_index:  # no index has an expression
        columns = [sa.func.coalesce(column, column) for column in columns]
    return [column.desc() for column in columns] if newest_first else columns


def count(connection: sa.Connection, run_filter: Filter) -> int:
    """Return the number of matching runs."""
    select = sa.select(sa.func.count()).select_from(run_summaries)
    return connection.scalar(select.where(*run_filter.conditions())) or 0


def page_of_summaries(
    connection: sa.Connection, run_filter: Filter, *, after: tuple[datetime, str] | None
) -> list[dict[str, Any]]:
    """Return the next summaries, the oldest first, without their labels.

    Args:
        connection: A connection to read with.
        run_filter: Only those of matching runs.
        after: `created_at` and `trace_id` of the last one before this page; None for the first.
    """
    select = sa.select(*_summary_columns).where(*run_filter.conditions())
    if after is not None:
        last = sa.literal(after[0], _s.created_at.type), sa.literal(after[1], _s.trace_id.type)
        select = select.where(sa.tuple_(_s.created_at, _s.trace_id) > sa.tuple_(*last))
    rows = connection.execute(select.order_by(*order(newest_first=False)).limit(_PAGE_SIZE))
    names = list(rows.keys())
    parsed = [(at, name) for at, name in enumerate(names) if name in _JSON_COLUMNS]
    page = []
    for row in rows:
        values = dict(zip(names, row, strict=True))
        for at, name in parsed:
            values[name] = _parsed(row[at])
        page.append(values)
    return page


def labels(connection: sa.Connection) -> dict[str, bool]:
    """Return what the verdict that counts says, of those that state success, by trace id."""
    select = (
        sa.select(verdicts.c.trace_id, verdicts.c.success)
        .where(verdicts.c.success.is_not(None))
        .order_by(verdicts.c.by_model.desc(), verdicts.c.at, verdicts.c.number)
    )
    return {row[0]: row[1] for row in connection.execute(select)}  # the last one counts


@lru_cache(maxsize=10_000)
def _parsed(text: str | None) -> Any:
    """Return the value of a JSON column; an empty one for what another program changed."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return {}


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert summaries; each replaces an earlier one of its trace."""
    by_id = {row["trace_id"]: row for row in rows}
    in_order = [by_id[trace_id] for trace_id in sorted(by_id)]
    connection.execute(insert_or_replace(run_summaries, connection.dialect.name), in_order)


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one summary."""
    connection.execute(sa.update(run_summaries).where(_s.trace_id == trace_id).values(**changes))


def runs_without(connection: sa.Connection, limit: int) -> list[dict[str, Any]]:
    """Return whole rows of runs that have no summary, because an earlier version wrote them."""
    has_summary = sa.exists(sa.select(_s.trace_id).where(_s.trace_id == _r.trace_id))
    rows = connection.execute(sa.select(runs).where(~has_summary).limit(limit))
    return [dict(row) for row in rows.mappings()]
