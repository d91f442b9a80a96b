"""Queries on the tables `verdicts` and `models`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.store.rows import clean_name, clean_text, json_text
from kp_langchain.store.tables import models, runs, verdicts

if TYPE_CHECKING:
    from kp_langchain.verdict import Verdict

_oldest_first = (verdicts.c.at, verdicts.c.number)


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
        }
        for trace_id, verdict in by_trace
    ]
    if rows:
        connection.execute(sa.insert(verdicts), rows)


def newest(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the newest verdict on a trace."""
    rows = of_trace(connection, trace_id)
    return rows[-1] if rows else None


def of_trace(connection: sa.Connection, trace_id: str) -> list[dict[str, Any]]:
    """Return the verdicts on a trace, the oldest first."""
    select = sa.select(
        verdicts.c.success,
        verdicts.c.confidence,
        verdicts.c.note,
        verdicts.c.source,
        verdicts.c.at,
    )
    rows = connection.execute(
        select.where(verdicts.c.trace_id == trace_id).order_by(*_oldest_first)
    )
    return [dict(row) for row in rows.mappings()]


def labelled_runs(connection: sa.Connection, domain: str) -> list[dict[str, Any]]:
    """Return what calibration needs of the runs of a domain that have a label, oldest first.

    A run's label is the `success` of the newest verdict on it that states one.
    """
    labels = _labels()
    select = (
        sa.select(
            runs.c.trace_id,
            runs.c.objective,
            runs.c.task,
            runs.c.features,
            runs.c.breakdown,
            runs.c.created_at,
            labels.c.success,
        )
        .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
        .where(runs.c.domain == clean_name(domain), runs.c.features.is_not(None))
        .order_by(runs.c.created_at, runs.c.trace_id)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def label_counts(connection: sa.Connection) -> dict[str, tuple[int, int]]:
    """Return, by domain, the numbers of runs labelled as successes and as failures."""
    labels = _labels()
    select = (
        sa.select(runs.c.domain, labels.c.success, sa.func.count())
        .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
        .where(runs.c.features.is_not(None))
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
    """Return the verdicts that state success, each with its rank on its trace; 1 is the newest."""
    rank = sa.func.row_number().over(
        partition_by=verdicts.c.trace_id, order_by=[column.desc() for column in _oldest_first]
    )
    select = sa.select(verdicts.c.trace_id, verdicts.c.success, rank.label("rank"))
    return select.where(verdicts.c.success.is_not(None)).subquery()


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
    """Return models, ordered by domain and version."""
    select = sa.select(models).order_by(models.c.domain, models.c.version)
    if domain is not None:
        select = select.where(models.c.domain == clean_name(domain))
    if only_active:
        select = select.where(models.c.active)
    return [dict(row) for row in connection.execute(select).mappings()]
