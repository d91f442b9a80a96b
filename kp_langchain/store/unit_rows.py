"""Rows of the table `pulled_units`: units of registries, and patterns of this store's own runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import ValidationError

from kp_langchain.errors import StoreError
from kp_langchain.pattern_schema import read_unit
from kp_langchain.store.registry_units import OWN, ExaminedUnit
from kp_langchain.store.rows import body_of, clean_name, json_text
from kp_langchain.store.tables import pulled_units
from kp_langchain.store.vectors import RESETS, count_up, remove
from kp_langchain.values import clean_text

if TYPE_CHECKING:
    from datetime import datetime

    from kp_langchain.pattern_schema import KnowledgeUnit

_OBJECTIVE_CHARS = 10_000
_c = pulled_units.c

IS_OWN = _c.registry == OWN
"""The condition on patterns of this store's own runs."""

WITHOUT_TEXT = {
    "objective": "",
    "findings": json_text([]),
    "body": None,
    "members": json_text([]),
}
"""What a row has of whose text nothing is to stay."""

NEWEST_FIRST = sa.select(*(column for column in _c if column is not _c.body)).order_by(
    _c.pulled_at.desc(), _c.trace_id.desc()
)
"""Selects what a `PulledUnit` has."""


def row_of(unit: ExaminedUnit, registry: str, domain: str, now: datetime) -> dict[str, Any]:
    """Return the row of a unit that nobody decided on yet.

    Args:
        unit: The unit.
        registry: URL of the registry that it comes from, or `OWN`.
        domain: The domain that it is for.
        now: When it is written, in UTC.
    """
    trace = unit.trace
    return {
        "trace_id": trace.id,
        "registry": clean_text(registry),
        "domain": clean_name(domain),
        "objective": clean_text(trace.task.objective[:_OBJECTIVE_CHARS]),
        "quality_score": trace.metadata.quality_score,
        "success": trace.metadata.success,
        "confidence": trace.outcome.confidence,
        "state": "quarantined",
        "findings": json_text([dict(finding) for finding in unit.findings]),
        "body": body_of(unit.unit),
        "digest": clean_name(unit.digest),
        "pulled_at": now,
        "changed_at": None,
        "decided_at": None,
        "decided_by": None,
        "namespace": unit.namespace and clean_name(unit.namespace),
        "members": json_text(list(unit.members)),
    }


def stored_unit(
    connection: sa.Connection, condition: sa.ColumnElement[bool], remedy: str
) -> KnowledgeUnit | None:
    """Return the unit that the body of a row holds; None without a row or a body.

    Args:
        connection: A connection to read with.
        condition: Which row.
        remedy: What to do if the body cannot be read, as an end of a sentence.

    Raises:
        StoreError: The body holds neither a trace nor a pattern.
    """
    row = connection.execute(sa.select(_c.trace_id, _c.body).where(condition)).first()
    try:
        return None if row is None or row.body is None else read_unit(row.body)
    except ValidationError as error:
        raise StoreError(
            f"the body of {row and row.trace_id} cannot be read back ({error.error_count()} "
            f"faults); it was changed outside kp-langchain: restore it from a backup, or {remedy}"
        ) from error


def note_change(connection: sa.Connection, former: Collection[Mapping[str, Any]]) -> None:
    """Have other processes read units that changed anew.

    Args:
        connection: A write transaction.
        former: The units, as they were.
    """
    if former:
        remove(connection, "task", [row["trace_id"] for row in former])
        count_up(connection, RESETS)
