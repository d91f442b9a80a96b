"""Queries on the table `recall_entries`, and on the kept runs that it belongs to.

Loads SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.entry_queries import is_after
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.run_queries import body_texts, is_kept
from kp_langchain.store.statements import batches, untyped
from kp_langchain.store.tables import pulled_units, recall_entries, run_entries, runs
from kp_langchain.store.watermark import Watermark

_r, _e, _p = runs.c, recall_entries.c, pulled_units.c


class RecallRow(NamedTuple):
    """A kept run with the entry of its task, as the driver gives it."""

    trace_id: str
    is_kept: bool
    namespace: str | None
    privacy_level: str
    objective: str
    success: Any
    confidence: Any
    is_stated: Any
    worth: Any
    has_entry: bool
    vector: Any
    planted: Any
    plan: Any


class Eligibility(NamedTuple):
    """Whether recall may show a trace, as the store has it now.

    Attributes:
        domain: Its domain.
        objective: Its task in words.
        is_open: Whether it is a success that is kept and not withheld; or, of a registry, admitted.
        planted: What looks like planted instructions in it, if recall has looked and found some.
    """

    domain: str
    objective: str
    is_open: bool
    planted: str | None


def rows_of(
    connection: sa.Connection,
    domain: str,
    embedder: tuple[str, str],
    scan_version: int,
    *,
    since: Watermark | None,
    limit: int,
) -> list[RecallRow]:
    """Return the newest kept runs of a domain; or those that changed since a change.

    Of each namespace come as many; what one does not need is left to the others.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        embedder: Model and revision of the embedder whose vectors to read.
        scan_version: Entries of other versions of the scan count as missing.
        since: The watermark at which to begin; runs that are no longer kept are then returned, too.
            None for all kept runs.
        limit: At most so many.
    """
    entry = sa.and_(
        _e.trace_id == _r.trace_id,
        _e.model == embedder[0],
        _e.revision == embedder[1],
        _e.scan_version == scan_version,
    )
    may_be_shown = sa.and_(_r.decision == "kept", _r.withheld.is_(None), is_kept())
    select = (
        sa.select(
            _r.trace_id,
            may_be_shown,
            _r.namespace,
            _r.privacy_level,
            _r.objective,
            untyped(_r.success),
            untyped(sa.func.coalesce(run_entries.c.confidence, _r.confidence)),
            untyped(run_entries.c.is_stated),
            untyped(sa.func.coalesce(_r.worth, _r.score)),
            _e.trace_id.is_not(None),
            untyped(_e.vector),
            untyped(_e.planted),
            sa.cast(_e.plan, sa.Text()),
        )
        .select_from(
            runs.outerjoin(recall_entries, entry).outerjoin(
                run_entries, run_entries.c.trace_id == _r.trace_id
            )
        )
        .where(_r.domain == clean_name(domain))
    )
    if since is None:
        newest_first = (_r.created_at.desc(), _r.trace_id.desc())
        place = sa.func.row_number().over(partition_by=_r.namespace, order_by=newest_first)
        of_domain = sa.select(_r.trace_id).where(_r.domain == clean_name(domain), may_be_shown)
        newest = of_domain.order_by(place, *newest_first).limit(limit).subquery()
        select = select.where(_r.trace_id.in_(sa.select(newest.c.trace_id)))
        select = select.order_by(*newest_first)
    else:
        select = select.where(is_after(connection, since)).order_by(_r.change).limit(limit)
    return [RecallRow(*row) for row in connection.execute(select)]


def entries_of(
    connection: sa.Connection,
    trace_ids: Collection[str],
    embedder: tuple[str, str],
    scan_version: int,
) -> dict[str, tuple[Any, Any, Any]]:
    """Return vector, findings and plan of those of the traces that have an entry."""
    plan = sa.cast(_e.plan, sa.Text())
    select = sa.select(_e.trace_id, untyped(_e.vector), untyped(_e.planted), plan).where(
        _e.trace_id.in_(trace_ids),
        _e.model == embedder[0],
        _e.revision == embedder[1],
        _e.scan_version == scan_version,
    )
    return {row[0]: (row[1], row[2], row[3]) for row in connection.execute(select)}


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert entries of traces that the store has; each replaces an earlier one of its embedder.

    Args:
        connection: A write transaction.
        rows: The entries by column.
    """
    ids = _locked(connection, [row["trace_id"] for row in rows])
    in_order = sorted((row for row in rows if row["trace_id"] in ids), key=_trace_id)
    if in_order:
        connection.execute(insert_or_replace(recall_entries, connection.dialect.name), in_order)


def _trace_id(row: dict[str, Any]) -> str:
    return str(row["trace_id"])


def _locked(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those of the traces that are runs or units, and have none deleted meanwhile."""
    found: set[str] = set()
    for column in (_r.trace_id, _p.trace_id):
        select = sa.select(column).order_by(column).with_for_update(read=True, key_share=True)
        for batch in batches(trace_ids):
            found |= set(connection.scalars(select.where(column.in_(batch))))
    return found


def eligibility(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, Eligibility]:
    """Return by id whether recall may show traces: kept runs, and units of a registry.

    Args:
        connection: A connection to read with.
        trace_ids: Their ids; one that the store does not have is left out.
    """
    is_open = sa.and_(_r.decision == "kept", _r.withheld.is_(None), is_kept())
    own = sa.select(_r.trace_id, _r.domain, _r.objective, is_open, untyped(_r.success))
    is_admitted = _p.state == "admitted"
    pulled = sa.select(_p.trace_id, _p.domain, _p.objective, is_admitted, untyped(_p.success))
    planted_in = planted(connection, trace_ids)
    found: dict[str, Eligibility] = {}
    for batch in batches(trace_ids):
        # A run of this store counts, and not a unit with its id.
        for select, column in ((pulled, _p.trace_id), (own, _r.trace_id)):
            for row in connection.execute(select.where(column.in_(batch))):
                may_be_shown = bool(row[3]) and bool(row[4])
                found[row[0]] = Eligibility(
                    str(row[1]), str(row[2]), may_be_shown, planted_in.get(row[0])
                )
    return found


def planted(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return by id what looks like planted instructions, of those of the traces with any.

    Args:
        connection: A connection to read with.
        trace_ids: Ids of traces.
    """
    newest: dict[str, Any] = {}
    for batch in batches(trace_ids):
        select = sa.select(_e.trace_id, untyped(_e.planted)).where(_e.trace_id.in_(batch))
        # Of several embedders, the entry that the newest rules made; it comes last.
        newest |= {row[0]: row[1] for row in connection.execute(select.order_by(_e.scan_version))}
    return {id_: str(kinds) for id_, kinds in newest.items() if kinds is not None}


def bodies_to_show(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return the traces of those of the runs that are still kept, as the text of their JSON."""
    return body_texts(connection, trace_ids, _r.decision == "kept", _r.withheld.is_(None))
