"""What is asked of the tables `verdicts` and `models`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.store.rows import clean_name, clean_text, json_text
from kp_langchain.store.tables import models, runs, verdicts

if TYPE_CHECKING:
    from kp_langchain.verdict import Verdict

_order = (verdicts.c.at, verdicts.c.number)


def add(connection: sa.Connection, given: Iterable[tuple[str, Verdict]]) -> None:
    """Insert verdicts, each with the id of its trace."""
    rows = [
        {
            "trace_id": trace_id,
            "at": verdict.at,
            "success": verdict.success,
            "confidence": verdict.confidence,
            "note": verdict.note and clean_text(verdict.note),
            "source": clean_text(verdict.source),
        }
        for trace_id, verdict in given
    ]
    if rows:
        connection.execute(sa.insert(verdicts), rows)


def newest(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the newest verdict on a trace."""
    found = of_trace(connection, trace_id)
    return found[-1] if found else None


def of_trace(connection: sa.Connection, trace_id: str) -> list[dict[str, Any]]:
    """Return the verdicts on a trace, the oldest first."""
    select = sa.select(
        verdicts.c.success,
        verdicts.c.confidence,
        verdicts.c.note,
        verdicts.c.source,
        verdicts.c.at,
    )
    rows = connection.execute(select.where(verdicts.c.trace_id == trace_id).order_by(*_order))
    return [dict(row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's documented name


def _newest_successes() -> sa.Subquery:
    """The number of the newest verdict of each trace that tells its success."""
    rank = sa.func.row_number().over(
        partition_by=verdicts.c.trace_id, order_by=[column.desc() for column in _order]
    )
    said = sa.select(verdicts.c.trace_id, verdicts.c.success, rank.label("rank")).where(
        verdicts.c.success.is_not(None)
    )
    return said.subquery()


def labelled(connection: sa.Connection, domain: str) -> list[dict[str, Any]]:
    """Return what is known of the runs of a domain whose success somebody told, oldest first."""
    said = _newest_successes()
    select = (
        sa.select(
            runs.c.trace_id,
            runs.c.objective,
            runs.c.task,
            runs.c.features,
            runs.c.breakdown,
            runs.c.created_at,
            said.c.success,
        )
        .join(said, sa.and_(said.c.trace_id == runs.c.trace_id, said.c.rank == 1))
        .where(runs.c.domain == clean_name(domain), runs.c.features.is_not(None))
        .order_by(runs.c.created_at, runs.c.trace_id)
    )
    return [dict(row._mapping) for row in connection.execute(select)]  # noqa: SLF001


def counts(connection: sa.Connection) -> dict[str, tuple[int, int]]:
    """Return, by domain, how many runs somebody said succeeded, and how many failed."""
    said = _newest_successes()
    select = (
        sa.select(runs.c.domain, said.c.success, sa.func.count())
        .join(said, sa.and_(said.c.trace_id == runs.c.trace_id, said.c.rank == 1))
        .where(runs.c.features.is_not(None))
        .group_by(runs.c.domain, said.c.success)
        .order_by(runs.c.domain)
    )
    found: dict[str, tuple[int, int]] = {}
    for domain, success, number in connection.execute(select):
        good, bad = found.get(domain, (0, 0))
        found[domain] = (good + number, bad) if success else (good, bad + number)
    return found


def install_model(
    connection: sa.Connection, domain: str, body: dict[str, Any], now: datetime
) -> int:
    """Insert a model as the one in force, and return its version."""
    domain = clean_name(domain)
    last = connection.scalar(
        sa.select(sa.func.max(models.c.version)).where(models.c.domain == domain)
    )
    version: int = (last or 0) + 1
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
    """Take the model of a domain out of force; tell whether there was one."""
    update = sa.update(models).where(models.c.domain == clean_name(domain), models.c.active)
    return connection.execute(update.values(active=False)).rowcount > 0


def select_models(
    connection: sa.Connection, domain: str | None, *, only_active: bool
) -> list[dict[str, Any]]:
    """Return models, by domain and version."""
    select = sa.select(models).order_by(models.c.domain, models.c.version)
    if domain is not None:
        select = select.where(models.c.domain == clean_name(domain))
    if only_active:
        select = select.where(models.c.active)
    return [dict(row._mapping) for row in connection.execute(select)]  # noqa: SLF001
