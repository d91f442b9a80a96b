"""What is asked of the table `runs`. Loads SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.rows import clean_name, clean_text, trace_key
from kp_langchain.store.tables import run_tags, runs

_MATCHES_SHOWN = 10
_LAST_CHARACTER = "\U0010ffff"
_FIRST_SURROGATE, _BEHIND_SURROGATES = 0xD800, 0xE000  # no text of a database holds them
_c, _t = runs.c, run_tags.c
_TAG = sa.insert(run_tags)
_UNTAG = sa.delete(run_tags).where(_t.trace_id == sa.bindparam("untagged"))
# What only verdicts and what learns from them need is not listed.
_unlisted = {"body", "body_expires_at", "keep_days", "task", "features"}
_listed = [column for column in runs.columns if column.name not in _unlisted]
# A page is read whole, so that no transaction stays open between two traces.
_PAGE = 20
# More would keep the run waiting that is written in the same transaction.
_EXPIRED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs are meant; a part that is None lets all pass.

    Args:
        domain: Exact name.
        decision: `contributed` or `below_threshold`.
        min_score: Lowest score, 0 to 1.
        keys: By the name of a key, the forms of which a run has one; see `run_keys.forms_of`.
    """

    domain: str | None = None
    decision: str | None = None
    min_score: float | None = None
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def applied(self, select: sa.Select[Any]) -> sa.Select[Any]:
        """Return `select` with this filter's conditions."""
        if self.domain is not None:
            select = select.where(_c.domain == clean_name(self.domain))
        if self.decision is not None:
            select = select.where(_c.decision == clean_text(self.decision))
        if self.min_score is not None:
            select = select.where(_c.score >= self.min_score)
        for key, forms in self.keys.items():
            select = select.where(_has_key(key, [clean_name(form) for form in forms]))
        return select


_KEY_COLUMNS = {
    "session": _c.session, "thread": _c.thread, "user": _c.user_hash, "name": _c.run_name,
}  # fmt: skip


def _has_key(key: str, forms: list[str]) -> sa.ColumnElement[bool]:
    if key == "tag":
        return _c.trace_id.in_(sa.select(_t.trace_id).where(_t.tag.in_(forms)))
    return _KEY_COLUMNS[key].in_(forms)


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert `rows`; a row whose trace id is there already is replaced."""
    # One order in every process, so that two writers of the same ids cannot wait for each other.
    by_id = {row["trace_id"]: row for row in rows}
    ordered = [by_id[trace_id] for trace_id in sorted(by_id)]
    connection.execute(_insert(connection.dialect.name), ordered)
    connection.execute(_UNTAG, [{"untagged": row["trace_id"]} for row in ordered])
    tags = [
        {"tag": tag, "trace_id": row["trace_id"]}
        for row in ordered
        if row["tags"]
        for tag in json.loads(row["tags"])
    ]
    if tags:
        connection.execute(_TAG, tags)


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one run."""
    connection.execute(sa.update(runs).where(_c.trace_id == trace_id).values(**changes))


@cache
def _insert(dialect: str) -> Any:
    """The statement of `write`, which takes longer to build than to execute."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(runs)
    return insert.on_conflict_do_update(
        index_elements=[_c.trace_id],
        set_={c.name: insert.excluded[c.name] for c in runs.columns if c is not _c.trace_id},
    )


def select_runs(
    connection: sa.Connection,
    which: Filter,
    *,
    limit: int | None,
    offset: int,
    newest_first: bool,
) -> list[dict[str, Any]]:
    """Return the columns of the runs without their bodies, and `kept`."""
    select = which.applied(_select_listed()).order_by(*_order(newest_first))
    rows = connection.execute(select.limit(limit).offset(offset))
    return [dict(row._mapping) for row in rows]  # noqa: SLF001  (SQLAlchemy's documented name)


def count(connection: sa.Connection, which: Filter) -> int:
    """Return how many runs the filter lets pass."""
    return connection.scalar(which.applied(sa.select(sa.func.count()).select_from(runs))) or 0


def _select_listed() -> sa.Select[Any]:
    kept = _is_kept()
    until = sa.case((kept, _c.body_expires_at)).label("kept_until")
    return sa.select(*_listed, kept.label("kept"), until)


def _is_kept() -> sa.ColumnElement[bool]:
    """Whether the body is there; one that has expired counts as gone before it is removed."""
    for_good = _c.body_expires_at.is_(None)
    return sa.and_(_c.body.is_not(None), sa.or_(for_good, _c.body_expires_at > datetime.now(UTC)))


def body(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the kept body of one run."""
    value: dict[str, Any] | None = connection.scalar(
        sa.select(_c.body).where(_c.trace_id == trace_id, _is_kept())
    )
    return value


def drop_expired_bodies(connection: sa.Connection) -> bool:
    """Remove the bodies of up to a thousand runs whose time is over; tell if there may be more."""
    expired = sa.select(_c.trace_id).where(_c.body_expires_at <= datetime.now(UTC))
    some = sa.update(runs).where(_c.trace_id.in_(expired.limit(_EXPIRED_AT_ONCE)))
    result = connection.execute(some.values(body=None, body_expires_at=None))
    return result.rowcount >= _EXPIRED_AT_ONCE


def find_to_judge(connection: sa.Connection, wanted: str) -> list[dict[str, Any]]:
    """Return the whole rows that `wanted` may mean, held until the transaction ends.

    They are those of the trace or of the run with that id, else up to ten that begin so.
    """
    meant = [run["trace_id"] for run in find(connection, wanted)]
    rows = connection.execute(
        sa.select(runs).where(_c.trace_id.in_(meant)).order_by(_c.trace_id).with_for_update()
    )
    now = datetime.now(UTC)
    found = []
    for row in rows:
        run = dict(row._mapping)  # noqa: SLF001
        if run["body_expires_at"] is not None and run["body_expires_at"] <= now:
            run |= {"body": None, "body_expires_at": None}
        found.append(run)
    return found


def find(connection: sa.Connection, wanted: str) -> list[dict[str, Any]]:
    """Return up to ten runs that `wanted` may mean: exact ids first, else ids that begin so."""
    select = _select_listed().order_by(*_order(newest_first=True)).limit(_MATCHES_SHOWN)
    ids = possible_ids(wanted)
    run_id = clean_name(ids[-1].removeprefix(TRACE_ID_PREFIX)) if ids else ""
    of_run = (_c.run_id == run_id, begins(_c.run_id, run_id)) if run_id else (sa.false(),) * 2
    exactly = [sa.or_(_c.trace_id == trace_key(one), of_run[0]) for one in ids]
    beginning = [sa.or_(begins(_c.trace_id, clean_text(one)), of_run[1]) for one in ids]
    for condition in (*exactly, *beginning):
        found = connection.execute(select.where(condition)).all()
        if found:
            return [dict(row._mapping) for row in found]  # noqa: SLF001
    return []


def page_of_bodies(
    connection: sa.Connection,
    which: Filter,
    *,
    after: tuple[datetime, str] | None,
    newest_first: bool,
) -> list[tuple[datetime, str, dict[str, Any]]]:
    """Return the next kept bodies behind the key `after`, with their own keys."""
    key = sa.tuple_(_c.created_at, _c.trace_id)
    select = sa.select(_c.created_at, _c.trace_id, _c.body).where(
        _c.body.is_not(None), _c.body_expires_at.is_(None)
    )
    if after is not None:
        last = sa.tuple_(
            sa.literal(after[0], _c.created_at.type), sa.literal(after[1], _c.trace_id.type)
        )
        select = select.where(key < last if newest_first else key > last)
    select = which.applied(select).order_by(*_order(newest_first)).limit(_PAGE)
    return [(row[0], row[1], row[2]) for row in connection.execute(select)]


def _order(newest_first: bool) -> list[sa.ColumnElement[Any]]:
    columns: list[sa.ColumnElement[Any]] = [_c.created_at, _c.trace_id]
    return [column.desc() for column in columns] if newest_first else columns


def possible_ids(wanted: str) -> list[str]:
    """Return the trace ids that `wanted` may be, or begin, the likeliest first.

    They are `wanted` as it stands, without blanks around it, and in small letters, as UUIDs are.
    """
    stripped = wanted.strip()
    texts = dict.fromkeys((wanted, stripped, stripped.lower()))
    ids = [
        text if text.startswith(TRACE_ID_PREFIX) else f"{TRACE_ID_PREFIX}{text}" for text in texts
    ]
    return [one for one in ids if one != TRACE_ID_PREFIX]


def begins(column: sa.Column[str], prefix: str) -> sa.ColumnElement[bool]:
    """Return the condition that `column` begins with `prefix`."""
    # As a range, which an index answers; LIKE would read the whole table.
    at_least = column >= prefix
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return at_least
    last = ord(stem[-1]) + 1
    after = chr(_BEHIND_SURROGATES if last == _FIRST_SURROGATE else last)
    return sa.and_(at_least, column < stem[:-1] + after)
