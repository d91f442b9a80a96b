"""Queries on the tables `verdicts` and `models`. Loads SQLAlchemy."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.rows import clean_name, clean_text, json_text
from kp_langchain.store.run_queries import is_kept
from kp_langchain.store.statements import batches
from kp_langchain.store.tables import bodies, models, runs, scores, verdicts
from kp_langchain.verdict import Verdict

_oldest_first = (verdicts.c.at, verdicts.c.number)
# The verdict that counts comes first: see `Verdict.weight`.
_weightiest_first = (verdicts.c.by_model, *(column.desc() for column in _oldest_first))
_fields = tuple(verdicts.c[field.name] for field in dataclasses.fields(Verdict))
_newest_runs_first = (runs.c.created_at.desc(), runs.c.trace_id.desc())
# Of a longer objective, both ends tell it from others; foreign traces may have megabytes of it.
_OBJECTIVE_CHARS = 10_000


def add(connection: sa.Connection, by_trace: Iterable[tuple[str, Verdict]]) -> None:
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


def counting(connection: sa.Connection, trace_id: str) -> Verdict | None:
    """Return the verdict on a trace that counts."""
    select = sa.select(*_fields).where(verdicts.c.trace_id == trace_id)
    row = connection.execute(select.order_by(*_weightiest_first).limit(1)).mappings().first()
    return None if row is None else Verdict(**row)


def of_trace(connection: sa.Connection, trace_id: str) -> list[dict[str, Any]]:
    """Return the verdicts on a trace, the oldest first."""
    select = sa.select(*_fields).where(verdicts.c.trace_id == trace_id)
    rows = connection.execute(select.order_by(*_oldest_first))
    return [dict(row) for row in rows.mappings()]


def of_traces(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the verdicts on several traces by trace id, those on each the oldest first."""
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for batch in batches(trace_ids):
        select = (
            sa.select(verdicts.c.trace_id, *_fields)
            .where(verdicts.c.trace_id.in_(batch))
            .order_by(*_oldest_first)
        )
        for row in connection.execute(select).mappings():
            fields = dict(row)
            by_trace.setdefault(fields.pop("trace_id"), []).append(fields)
    return by_trace


def labelled_runs(connection: sa.Connection, domain: str) -> list[dict[str, Any]]:
    """Return what calibration needs of the runs of a domain that have a label, oldest first.

    A run's label is the `success` of the verdict that counts among those that state one.
    """
    labels = _labels()
    select = (
        sa.select(
            runs.c.trace_id,
            runs.c.objective,
            runs.c.task,
            scores.c.features,
            scores.c.breakdown,
            runs.c.created_at,
            labels.c.success,
        )
        .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .where(runs.c.domain == clean_name(domain), scores.c.features.is_not(None))
        .order_by(runs.c.created_at, runs.c.trace_id)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def label_counts(connection: sa.Connection) -> dict[str, tuple[int, int]]:
    """Return, by domain, the numbers of runs labelled as successes and as failures."""
    labels = _labels()
    select = (
        sa.select(runs.c.domain, labels.c.success, sa.func.count())
        .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .where(scores.c.features.is_not(None))
        .group_by(runs.c.domain, labels.c.success)
        .order_by(runs.c.domain)
    )
    counts: dict[str, tuple[int, int]] = {}
    for domain, success, number in connection.execute(select):
        successes, failures = counts.get(domain, (0, 0))
        counts[domain] = (
            (successes + number, failures) if success else (successes, failures + number)
        )
    return counts


def _labels() -> sa.Subquery:
    """Return the verdicts that state success, each with its rank on its trace; 1 counts."""
    rank = sa.func.row_number().over(partition_by=verdicts.c.trace_id, order_by=_weightiest_first)
    select = sa.select(verdicts.c.trace_id, verdicts.c.success, rank.label("rank"))
    return select.where(verdicts.c.success.is_not(None)).subquery()


def unlabelled_runs(
    connection: sa.Connection,
    domain: str | None,
    *,
    searched: int,
    limit: int,
    with_features: bool,
) -> list[dict[str, Any]]:
    """Return the newest runs that a person can be asked about, the newest first.

    Those have a body, features, and no verdict that states success, and are not withheld.

    Args:
        connection: A connection to read with.
        domain: Only runs of this domain; None for all.
        searched: How many of the newest runs without a verdict to look at. Bodies lie in between,
            so that looking at all would read most of the file.
        limit: Return at most this many.
        with_features: Whether to read the features and the traces too, as the text of their JSON.
    """
    newest = sa.select(runs.c.trace_id).where(runs.c.state == "judged", ~_has_label())
    if domain is not None:
        newest = newest.where(runs.c.domain == clean_name(domain))
    found = newest.order_by(*_newest_runs_first).limit(searched).subquery()
    features = sa.cast(scores.c.features, sa.Text) if with_features else sa.null()
    trace = sa.cast(bodies.c.trace, sa.Text) if with_features else sa.null()
    select = (
        sa.select(
            runs.c.trace_id,
            runs.c.domain,
            runs.c.task,
            _ends_of_objective().label("objective"),
            features.label("features"),
            trace.label("trace"),
        )
        .join(found, found.c.trace_id == runs.c.trace_id)
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .join(bodies, bodies.c.trace_id == runs.c.trace_id)
        .where(is_kept(), runs.c.withheld.is_(None), scores.c.features.is_not(None))
        .order_by(*_newest_runs_first)
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def newest_labels(
    connection: sa.Connection, domain: str | None, *, limit: int
) -> list[dict[str, Any]]:
    """Return domain, task, objective and label of the newest runs that have one, newest first.

    Args:
        connection: A connection to read with.
        domain: Only runs of this domain; None for all.
        limit: Return at most this many.
    """
    label = (
        sa.select(verdicts.c.success)
        .where(verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None))
        .order_by(*_weightiest_first)
        .limit(1)
        .scalar_subquery()
    )
    # Not a condition on the features: it would read every row before its verdicts are looked up.
    has_features = scores.c.features.is_not(None).label("has_features")
    objective = _ends_of_objective().label("objective")
    select = sa.select(runs.c.domain, runs.c.task, objective, label.label("success"), has_features)
    select = select.join(scores, scores.c.trace_id == runs.c.trace_id).where(_has_label())
    if domain is not None:
        select = select.where(runs.c.domain == clean_name(domain))
    rows = connection.execute(select.order_by(*_newest_runs_first).limit(limit)).mappings()
    return [dict(row) for row in rows if row["has_features"]]


def _has_label() -> sa.ColumnElement[bool]:
    """Return the condition that a verdict states the success of a run."""
    states_success = sa.and_(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
    return sa.exists(sa.select(verdicts.c.number).where(states_success).correlate(runs))


def _ends_of_objective() -> sa.ColumnElement[str]:
    objective, half = runs.c.objective, _OBJECTIVE_CHARS // 2
    length = sa.func.length(objective)
    first = sa.func.substr(objective, 1, half, type_=sa.String())
    last = sa.func.substr(objective, length - half + 1, type_=sa.String())
    return sa.case((length <= _OBJECTIVE_CHARS, objective), else_=first.concat(last))


def install_model(
    connection: sa.Connection, domain: str, body: dict[str, Any], now: datetime
) -> int:
    """Insert a model, put it in force for its domain, and return its version."""
    domain = clean_name(domain)
    newest = connection.scalar(
        sa.select(sa.func.max(models.c.version)).where(models.c.domain == domain)
    )
    version: int = (newest or 0) + 1
    remove_model(connection, domain)
    row = {
        "domain": domain,
        "version": version,
        "active": True,
        "installed_at": now,
        "body": json_text(body),
    }
    connection.execute(sa.insert(models), [row])
    return version


def remove_model(connection: sa.Connection, domain: str) -> bool:
    """Take the model of a domain out of force; return whether there was one."""
    update = sa.update(models).where(models.c.domain == clean_name(domain), models.c.active)
    return connection.execute(update.values(active=False)).rowcount > 0


def select_models(
    connection: sa.Connection, domain: str | None, *, only_active: bool
) -> list[dict[str, Any]]:
    """Return models, ordered by domain and version; their bodies as text, which may be damaged."""
    columns = [column for column in models.c if column is not models.c.body]
    body = sa.cast(models.c.body, sa.Text()).label("body")
    select = sa.select(*columns, body).order_by(models.c.domain, models.c.version)
    if domain is not None:
        select = select.where(models.c.domain == clean_name(domain))
    if only_active:
        select = select.where(models.c.active)
    return [dict(row) for row in connection.execute(select).mappings()]
