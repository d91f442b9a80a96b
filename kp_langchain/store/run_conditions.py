"""The conditions of `RunFilters` on runs, and the orders of runs. Loads SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from kp_langchain.config import Settings
from kp_langchain.run_keys import KINDS, Kind, forms_of
from kp_langchain.store.rows import SEARCHED_CHARS, clean_name, clean_text, folded
from kp_langchain.store.run_filters import RunFilters, Sort
from kp_langchain.store.tables import runs

Conditions = Sequence[sa.ColumnElement[bool]]
_c = runs.c
_SORT_COLUMNS: dict[Sort, list[sa.Column[Any]]] = {
    "time": [], "score": [_c.score], "novelty": [_c.novelty],
}  # fmt: skip
_KEY_COLUMNS: Mapping[Kind, str] = {
    "session": "session", "thread": "thread", "user": "user_hash", "namespace": "namespace",
    "name": "run_name",
}  # fmt: skip


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
    condition: sa.ColumnElement[bool] = columns[_KEY_COLUMNS[kind]].in_(forms)
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
