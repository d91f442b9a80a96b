"""Statements on runs, their traces and their verdicts that several parts of a store execute."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from kp_langchain.calibration.agreement import task_key
from kp_langchain.calibration.failure_signs import SignedRun, parse_signs
from kp_langchain.gate.check import WINDOW, JudgedRun
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.store.rows import clean_name, with_outcome_of
from kp_langchain.store.run_columns import (
    COLUMNS,
    STORED_FIELDS,
    RunState,
)
from kp_langchain.store.selection import RunFilters, conditions_of, find_by_id, is_twin
from kp_langchain.store.tables import (
    batches,
    bodies,
    runs,
    scores,
    tool_sets,
    verdicts,
)
from kp_langchain.store.vectors import forget, remove
from kp_langchain.usage import ModelCall
from kp_langchain.values import clean_text
from kp_langchain.verdict import Verdict

_POSTGRES_LOCKS = 0x6B706B70  # any number, the same in every version of this package
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_c = runs.c
signs_text = sa.cast(_c.signs, sa.Text()).label("signs")  # read as JSON, a damaged one would raise
newest_first = (_c.created_at.desc(), _c.trace_id.desc())
oldest_first = (_c.created_at, _c.trace_id)
_v = verdicts.c
# What the verdict that counts says, of those that state success; see `Verdict.weight`.
label = (
    sa.select(_v.success)
    .where(_v.trace_id == _c.trace_id, _v.success.is_not(None))
    .order_by(_v.by_model, _v.at.desc(), _v.number.desc())
    .limit(1)
    .correlate(runs)
    .scalar_subquery()
)
_of_outcome = (_c.success, _c.confidence, _c.score, _c.validated_by)
# More would delay the run that is written in the same transaction.
MOST_EXPIRED_AT_ONCE = 1000
_DELETE_BODY = sa.delete(bodies).where(bodies.c.trace_id == sa.bindparam("body_of"))
_of_verdict = tuple(verdicts.c[one.name] for one in fields(Verdict))
_oldest_first = (verdicts.c.at, verdicts.c.number)
_stored_run_columns = [_c[name] for name in COLUMNS if name in STORED_FIELDS]


def select_stored_runs() -> sa.Select[Any]:
    """Return the statement that selects what `StoredRun` is made of, of judged runs."""
    is_kept_now = is_kept()
    kept_until = sa.case((is_kept_now, _c.body_expires_at)).label("kept_until")
    columns = (*_stored_run_columns, scores.c.breakdown, is_kept_now.label("has_trace"), kept_until)
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


def update(connection: sa.Connection, trace_id: str, changes: Mapping[str, Any]) -> None:
    """Write new values into some columns of one run."""
    connection.execute(sa.update(runs).where(_c.trace_id == trace_id).values(**changes))


def delete_bodies(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Delete the traces of runs, of which the figures stay, and what recall has of their texts."""
    if trace_ids:
        remove(connection, "task", trace_ids)
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


def model_calls(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, tuple[ModelCall, ...]]:
    """Return the answers of models by trace id; see `TraceStore.model_calls`."""
    select = (
        sa.select(_c.trace_id, bodies.c.model_calls)
        .join(bodies, bodies.c.trace_id == _c.trace_id)
        .where(_c.trace_id.in_(trace_ids), is_kept())
    )
    return {row[0]: _model_calls(row[1]) for row in connection.execute(select)}


def _model_calls(values: Any) -> tuple[ModelCall, ...]:
    try:
        return tuple(map(ModelCall.from_list, values or ()))
    except (ValueError, TypeError):  # another program changed them
        return ()


def tool_definitions(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the tools of models by trace id; see `TraceStore.tool_definitions`."""
    select = (
        sa.select(_c.trace_id, tool_sets.c.definitions)
        .join(tool_sets, tool_sets.c.digest == _c.tool_set)
        .where(_c.trace_id.in_(trace_ids))
    )
    return {row[0]: _functions(row[1]) for row in connection.execute(select)}


def _functions(values: Any) -> list[dict[str, Any]]:
    """Return the functions that stored definitions are; another program may have changed them."""
    functions = values if isinstance(values, list) else []
    return [one for one in functions if isinstance(one, dict) and isinstance(one.get("name"), str)]


def select_bodies(*, with_expiring: bool) -> sa.Select[Any]:
    """Return the statement for traces, each with the outcome that its row has.

    Args:
        with_expiring: Whether traces that expire count, and not just those kept for good.
    """
    columns = (
        *(_c.created_at, _c.trace_id, bodies.c.trace, _c.namespace, _c.usage),
        *_of_outcome,
    )
    select = sa.select(*columns).join(bodies, bodies.c.trace_id == _c.trace_id)
    return select.where(is_kept() if with_expiring else is_kept(_LAST_MOMENT))


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
        forget(connection, trace_ids)
    return len(trace_ids)


# ------------------------------------------------------------------ by id


def lock_names(connection: sa.Connection, names: Collection[str]) -> None:
    """Lock names until this transaction ends."""
    if connection.dialect.name != "postgresql":
        return  # a SQLite file has one writer at a time anyway
    # Two names may share a key: then they only wait for each other, too.
    for key in sorted({crc32(clean_name(name).encode()) - 2**31 for name in names}):
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


def judged_ids(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return which of some runs are judged."""
    select = sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids), _c.state == "judged")
    return set(connection.scalars(select))


def lock(connection: sa.Connection, trace_ids: Collection[str]) -> list[str]:
    """Lock runs of whatever state until the transaction ends; return those that there are."""
    select = sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids)).order_by(_c.trace_id)
    return list(connection.scalars(select.with_for_update()))


def find_names(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return ids, domain, beginning and state of the runs that a text identifies."""
    select = sa.select(_c.trace_id, _c.run_id, _c.domain, _c.created_at, _c.state)
    return find_by_id(
        connection,
        select.order_by(*newest_first),
        id_prefix,
        trace_id=_c.trace_id,
        other_id=_c.run_id,
    )


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


# ------------------------------------------------------------------ lists and counts

FIGURES: list[Any] = [
    *(_c[name] for name in ("trace_id", "domain", "decision", "gate", "score", "worth")),
    *(_c[name] for name in ("threshold", "recovered_errors", "novelty_source", "veto", "success")),
    _c.total_tokens,
    _c.duration_ms,
    is_twin.label("is_twin"),
    _c.withheld.is_not(None).label("is_withheld"),
    _c.agreement.is_not(None).label("is_compared"),
    *(
        _c.dimensions[name, at].as_float().label(name + ending)
        for name in DIMENSION_NAMES
        for at, ending in enumerate(("", "_weight"))
    ),
    *(
        sa.cast(_c[name], sa.Text()).label(name)
        for name in ("rules", "redactions", "dropped", "usage")
    ),
    label.label("label"),
]


def labels(connection: sa.Connection) -> dict[str, bool]:
    """Return what the verdict that counts says, of those that state success, by trace id."""
    return {row[0]: row[1] for row in connection.execute(select_labels())}  # the last one counts


def select_labels() -> sa.Select[Any]:
    """Return the statement for trace id and success of verdicts; of each run, the last counts."""
    return (
        sa.select(verdicts.c.trace_id, verdicts.c.success)
        .where(verdicts.c.success.is_not(None))
        .order_by(verdicts.c.by_model.desc(), *_oldest_first)  # as `Verdict.weight` has it
    )


def signed_runs(connection: sa.Connection, filters: RunFilters) -> list[SignedRun]:
    """Return runs as failures are grouped, without those that are withheld, the oldest first."""
    c = _c
    columns = (
        *(c.trace_id, c.domain, c.task, c.created_at, c.success),
        # Objectives are long, and needed only where they stand for a task.
        sa.case((c.task.is_(None), c.objective), else_="").label("objective"),
        *(signs_text, sa.cast(c.tools, sa.Text()).label("tools")),
        is_kept().label("is_kept"),
    )
    select = sa.select(*columns).where(*conditions_of(filters), c.withheld.is_(None))
    rows = connection.execute(select.order_by(c.created_at, c.trace_id)).all()
    success_of = labels(connection)
    return [
        SignedRun(
            trace_id=row.trace_id,
            domain=row.domain,
            task=task_key(row.task, row.objective),
            at=row.created_at,
            signs=signs_in(row.signs),
            ended_well=row.success,
            success=success_of.get(row.trace_id),
            can_be_judged=row.is_kept,
            tools=_names_in(row.tools),
        )
        for row in rows
    ]


@lru_cache(maxsize=1000)  # few of the texts differ
def signs_in(text: str | None) -> dict[str, str]:
    """Return the signs in the text of a column `signs`, which another program may have changed."""
    return parse_signs(_parse(text))


@lru_cache(maxsize=1000)
def _names_in(text: str | None) -> frozenset[str]:
    names = _parse(text)
    names = names if isinstance(names, list) else []
    return frozenset(one for one in names if isinstance(one, str))


def _parse(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):  # another program changed it
        return None


def recent_worths(connection: sa.Connection, domain: str) -> list[tuple[float | None, float]]:
    """Return agreement and novelty of a domain's last runs without a veto, the oldest first."""
    select = (
        sa.select(_c.agreement, _c.novelty)
        .where(_c.domain == clean_name(domain), _c.state == "judged", _c.veto.is_(None))
        .order_by(*newest_first)
        .limit(WINDOW)
    )
    return [(row[0], row[1]) for row in reversed(connection.execute(select).all())]


def recent_values(
    connection: sa.Connection, domain: str, gate: str, since: datetime | None
) -> list[JudgedRun]:
    """Return what the gate saw of a domain's last runs; see `TraceStore.recent_values`."""
    select = (
        sa.select(_c.gated_value, _c.passed, _c.pass_rate)
        .where(_c.domain == clean_name(domain), _c.gate == gate, _c.gated_value.is_not(None))
        .order_by(*newest_first)
        .limit(WINDOW)
    )
    if since is not None:
        select = select.where(_c.created_at >= since)
    rows = connection.execute(select).all()
    return [JudgedRun(row[0], bool(row[1]), row[2]) for row in reversed(rows)]
