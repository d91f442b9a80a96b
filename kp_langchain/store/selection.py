"""Which runs are meant: by an id or the beginning of one, or by `RunFilters`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar

import sqlalchemy as sa

from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, StoreError, UnknownRunError
from kp_langchain.run_keys import KINDS, Kind, forms_of
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.scoring.evidence import VETO_FLAGS
from kp_langchain.store.rows import clean_name, fold_text, trace_key
from kp_langchain.store.run_columns import KEY_COLUMNS, SEARCHED_CHARS
from kp_langchain.store.tables import runs, scores
from kp_langchain.values import clean_text

MATCHES_SHOWN = 10
"""So many of those that an id may mean are listed."""

MOST_COUNTED = 10_000
"""What is listed is counted no further: that would take longer than the list."""

Sort = Literal["time", "score", "novelty"]
"""What runs are listed by: the newest, the highest score, or the highest novelty first."""

State = TypeVar("State", bound=str)
Conditions = Sequence[sa.ColumnElement[bool]]

_ID_CHARS_SHOWN = 100
_SHORTEST_PREFIX = 4  # a slip of a key should not give a verdict, nor delete a run
_LAST_CHARACTER = "\U0010ffff"
_COLUMN_OF_KEY = {key: name for name, key in KEY_COLUMNS.items()}
_c = runs.c
is_twin = sa.or_(_c.twin_of.is_not(None), _c.replaced_by.is_not(None))


# ------------------------------------------------------------------ by an id


def find_by_id(
    connection: sa.Connection,
    select: sa.Select[Any],
    id_prefix: str,
    *,
    trace_id: sa.Column[str] | None = None,
    other_id: sa.Column[str] | None = None,
    prefixes: Sequence[str] = (TRACE_ID_PREFIX,),
) -> list[dict[str, Any]]:
    """Return the rows that a text identifies: an id, or its first 4 characters or more.

    The text is tried as it is, without surrounding blanks, and in lower case, as UUIDs are. A whole
    trace id counts as one only with its `kp:trace:`: others choose the ids of units, so one id may
    be the beginning of another.

    Args:
        connection: A connection to read with.
        select: Selects the rows, in their order.
        id_prefix: The text.
        trace_id: The column with the ids of traces, if there is one.
        other_id: The column with ids of another kind, if there is one.
        prefixes: What the ids of traces, or of units, begin with.
    """
    trimmed = id_prefix.strip()
    exact, by_prefix = [], []
    for text in dict.fromkeys((id_prefix, trimmed, trimmed.lower())):
        own = next((one for one in prefixes if text.startswith(one)), "")
        name = text.removeprefix(own)
        if not name:
            continue
        is_long = len(name) >= _SHORTEST_PREFIX
        if trace_id is not None:
            if is_long:
                beginnings = [own] if own else prefixes
                by_prefix.append(
                    sa.or_(*(_begins(trace_id, clean_text(one + name)) for one in beginnings))
                )
            if own:
                exact.append(trace_id == trace_key(text))
        if other_id is not None:
            exact.append(other_id.in_([clean_name(text), clean_name(name)]))
            if is_long:
                by_prefix.append(_begins(other_id, clean_name(name)))
    for condition in (*exact, *by_prefix):
        rows = connection.execute(select.where(condition)).mappings().all()
        if rows:
            return [dict(row) for row in rows]
    return []


def _begins(column: sa.Column[str], prefix: str) -> sa.ColumnElement[bool]:
    """Return the condition that `column` begins with `prefix`."""
    # As a range, because an index can answer that; LIKE would read the whole table.
    return sa.and_(column >= prefix, column <= prefix + _LAST_CHARACTER)


def only_match(rows: Sequence[dict[str, Any]], id_: str) -> dict[str, Any] | None:
    """Return the contribution or unit that an id means; None if there is none.

    Raises:
        StoreError: It fits more than one; the message lists them.
    """
    if len(rows) > 1:
        lines = "".join(f"\n  {row['trace_id']}  {row['state']}" for row in rows)
        raise StoreError(f"{id_!r} may mean several; give more characters of the id:{lines}")
    return rows[0] if rows else None


def unknown_run(id_: str, location: object) -> UnknownRunError:
    """Return the error for an id that no run of the database at a location has."""
    return UnknownRunError(
        f"no run {id_[:_ID_CHARS_SHOWN]!r} in {location}; "
        "list them: kp-langchain review, or flush the handler first"
    )


def ambiguous_id(id_: str, matches: Sequence[dict[str, Any]]) -> UnknownRunError:
    """Return the error for an id that several runs have, or that begins the ids of several."""
    lines = "".join(
        f"\n  {run['trace_id']}  {run['created_at']:%Y-%m-%d %H:%M} UTC  {run['domain']}"
        for run in matches[:MATCHES_SHOWN]
    )
    return UnknownRunError(f"{id_!r} may mean several runs; give more of a trace id:{lines}")


# ------------------------------------------------------------------ by conditions


class RunFilters(TypedDict, total=False):
    """Conditions on runs; one that is left out or None matches every run.

    Attributes:
        domain: Only this domain (exact name).
        decision: Only `kept`, only `below_threshold` or only `twin`.
        min_score: Only runs with at least this score, 0 to 1.
        since: Only runs that began at this time or later. A time without a zone is local.
        until: Only runs that began before this time.
        search: Only runs whose objective contains each of these words, in any case. The first 1,000
            characters of an objective are searched.
        rule: Only runs that this rule applied to: `single_thought`, `recovered_errors` or
            `single_tool`; or with this flag, such as `answer_unable`, also if it is no veto.
        tool: Only runs that used this tool (exact name).
        recovered_errors: If True, only runs that recovered from an error.
        session: Only runs of this session, in plain text or as the store has it.
        thread: Only runs in this LangGraph thread, in either form.
        user: Only runs for this user, in either form.
        namespace: Only runs in this namespace, in either form.
        tag: Only runs with this tag, in either form.
        name: Only runs of this name, in either form.
    """

    domain: str | None
    decision: str | None
    min_score: float | None
    since: datetime | None
    until: datetime | None
    search: str | None
    rule: str | None
    tool: str | None
    recovered_errors: bool | None
    session: str | None
    thread: str | None
    user: str | None
    namespace: str | None
    tag: str | None
    name: str | None


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


def _has_words(columns: Any, text: str) -> sa.ColumnElement[bool]:
    words = fold_text(text)[:SEARCHED_CHARS].split()
    searched = columns.search_text
    return sa.and_(sa.true(), *(searched.contains(one, autoescape=True) for one in words))


def _has_rule_or_flag(columns: Any, name: str) -> sa.ColumnElement[bool]:
    if name not in VETO_FLAGS:
        return _contains(columns.rules, f"{_json_text(name)}:")
    flags = scores.c.breakdown["flags"].as_string()
    with_flag = sa.select(scores.c.trace_id).where(_contains(flags, _json_text(name)))
    condition: sa.ColumnElement[bool] = columns.trace_id.in_(with_flag)
    return condition


# These a run has before it is judged, and a paused one as well.
_EARLY_CONDITIONS: Mapping[str, Callable[[Any, Any], sa.ColumnElement[bool]]] = {
    "domain": lambda columns, value: columns.domain == clean_name(value),
    "since": lambda columns, value: columns.created_at >= value,
    "until": lambda columns, value: columns.created_at < value,
    **{kind: partial(_has_key, kind) for kind in KINDS},
}
_CONDITIONS: Mapping[str, Callable[[Any, Any], sa.ColumnElement[bool]]] = {
    **_EARLY_CONDITIONS,
    "decision": lambda columns, value: columns.decision == clean_text(value),
    "min_score": lambda columns, value: columns.score >= value,
    "search": _has_words,
    "rule": _has_rule_or_flag,
    "tool": lambda columns, value: _contains(columns.tools, _json_text(clean_name(value))),
    "recovered_errors": lambda columns, _: columns.recovered_errors > 0,
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
    values = selecting(filters)
    return [_c.state == "judged", *(_CONDITIONS[name](_c, one) for name, one in values.items())]


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


def order_by(sort: Sort = "time", *, newest_first: bool = True) -> list[sa.ColumnElement[Any]]:
    """Return what to order by: a figure, then the time at which runs began, then their ids.

    Args:
        sort: The figure; `time` for none.
        newest_first: If False, the order is reversed.
    """
    figures: list[Any] = [] if sort == "time" else [_c[sort]]
    columns = [*figures, _c.created_at, _c.trace_id]
    return [column.desc() for column in columns] if newest_first else columns


def beyond(
    created_at: datetime, trace_id: str, *, newest_first: bool = True
) -> sa.ColumnElement[bool]:
    """Return the condition that a run comes after another one in the order of time.

    Args:
        created_at: When the other one began, the last of a page.
        trace_id: Its id.
        newest_first: Whether the newest comes first.
    """
    last = sa.tuple_(sa.literal(created_at, _c.created_at.type), sa.literal(trace_id))
    at = sa.tuple_(_c.created_at, _c.trace_id)
    return at < last if newest_first else at > last


def count_by_state(
    connection: sa.Connection,
    table: sa.Table,
    states: Sequence[State],
    *conditions: sa.ColumnElement[bool],
) -> dict[State, int]:
    """Return the number of those rows of a table that match in each state."""
    select = sa.select(table.c.state, sa.func.count()).where(*conditions).group_by(table.c.state)
    counts = {row[0]: row[1] for row in connection.execute(select)}
    return {state: counts.get(state, 0) for state in states}


def check_page(limit: int | None, offset: int = 0) -> None:
    """Raise `ConfigError` if the bounds of a list are negative."""
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit={limit} and offset={offset} must not be negative")
