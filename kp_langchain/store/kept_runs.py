"""The kept runs of a store, as others that may repeat them are compared with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.gate.run import may_leave
from kp_langchain.gate.twins import OFF, KeptTrace, drop_repeats
from kp_langchain.scoring.novelty_memory import MemoryEntry, Window
from kp_langchain.scoring.repeats import embedded_text, fingerprint
from kp_langchain.store import run_queries
from kp_langchain.store.outbox import ask_withdrawal
from kp_langchain.store.rows import clean_name, expiry_after, trace_key
from kp_langchain.store.run_days import note_days_of
from kp_langchain.store.tables import runs, vectors
from kp_langchain.store.vectors import (
    Follower,
    Mark,
    content_of,
    embedder_columns,
    forget,
    note_change,
    vector_of,
)

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.database import Database

MOST_COMPARED = 1000
"""A run is compared with at most so many kept ones of its domain, the newest."""

_r, _v = runs.c, vectors.c
_RUNS_WITH_VECTORS: sa.Select[Any] = sa.select(
    *(_r[name] for name in ("trace_id", "run_id", "visibility", "privacy_level")),
    *(_r[name] for name in ("namespace", "task")),
    (_r.decision == "kept").label("is_kept"),
    *(_v[name] for name in ("fingerprint", "vector", "model", "revision", "baseline")),
    *(_v[name] for name in ("confidence", "is_stated")),
).join_from(vectors, runs, _r.trace_id == _v.trace_id).where(_v.kind == "run")  # fmt: skip


def follow_kept(database: Database, domain: str) -> Follower[sa.Row[Any]]:
    """Return a follower of the kept runs of a domain; of what changed, some may not be kept.

    Args:
        database: The database.
        domain: The domain's exact name.
    """

    def read(connection: sa.Connection, since: Mark | None) -> list[Sequence[sa.Row[Any]]] | None:
        if since is None:
            return [_newest_kept(connection, domain)]
        select = _RUNS_WITH_VECTORS.where(_r.domain == clean_name(domain), since.unseen(_v.change))
        select = select.order_by(_v.change, _v.number).limit(MOST_COMPARED + 1)
        rows = connection.execute(select).all()
        return [rows] if len(rows) <= MOST_COMPARED else None

    return Follower(database, read)


def kept_with_text(
    connection: sa.Connection, domain: str, text_hash: bytes | None
) -> Sequence[sa.Row[Any]]:
    """Return the kept runs of a domain with the same text; none for None."""
    if text_hash is None:
        return []
    select = _RUNS_WITH_VECTORS.where(_v.fingerprint == text_hash)
    is_kept = sa.and_(_r.domain == clean_name(domain), _r.decision == "kept")
    return connection.execute(select.where(is_kept).limit(MOST_COMPARED)).all()


def _newest_kept(connection: sa.Connection, domain: str) -> Sequence[sa.Row[Any]]:
    """Return the newest kept runs of a domain, the oldest of them first."""
    has_something = sa.or_(_v.fingerprint.is_not(None), _v.vector.is_not(None))
    is_kept = sa.and_(_r.domain == clean_name(domain), _r.decision == "kept", has_something)
    select = _RUNS_WITH_VECTORS.where(is_kept).order_by(*run_queries.newest_first)
    return connection.execute(select.limit(MOST_COMPARED)).all()[::-1]


def kept_trace(row: sa.Row[Any]) -> KeptTrace:
    """Return a kept run as others are compared with it."""
    identity = EmbedderIdentity(row.model, row.revision, row.baseline)
    return KeptTrace(
        MemoryEntry(row.trace_id, row.fingerprint, vector_of(row.vector), identity),
        row.run_id,
        row.confidence,
        row.is_stated,
        may_leave(row.visibility, row.privacy_level),
        row.namespace,
        row.task,
    )


def run_row(run: ScoredTrace, candidate: KeptTrace | None = None) -> dict[str, Any]:
    """Return the row of the table `vectors` of a run whose body is kept.

    Args:
        run: The run.
        candidate: The run as others are compared with it, if it is known.
    """
    candidate = candidate or KeptTrace.of(run, run.entry or MemoryEntry(run.trace.id, None))
    entry = candidate.entry
    return {
        "kind": "run",
        "trace_id": trace_key(entry.trace_id),
        "fingerprint": entry.fingerprint,
        "vector": content_of(entry.vector),
        "confidence": candidate.confidence,
        "is_stated": candidate.is_stated,
        **embedder_columns(entry.identity),
    }


def candidate_of(connection: sa.Connection, trace_id: str, run: ScoredTrace) -> KeptTrace:
    """Return a stored run that was judged again as others are compared with it.

    Args:
        connection: A connection to read with.
        trace_id: Its id in the table `runs`.
        run: The run, with its body and the verdict.
    """
    row = connection.execute(_RUNS_WITH_VECTORS.where(_v.trace_id == trace_id)).first()
    stored_trace = None if row is None else kept_trace(row)
    if stored_trace is None or stored_trace.entry.fingerprint is None:  # added by hand
        text_hash = fingerprint(embedded_text(run.trace))
        return KeptTrace.of(run, MemoryEntry(trace_id, text_hash))
    candidate = KeptTrace.of(run, stored_trace.entry)
    return replace(candidate, is_stated=candidate.is_stated or stored_trace.is_stated)


def drop_stored_repeats(
    connection: sa.Connection, run: ScoredTrace, candidate: KeptTrace
) -> ScoredTrace:
    """Apply the twin rule to a stored run that passes now, and return it.

    Args:
        connection: A connection to read with.
        run: The run.
        candidate: The same run as others would be compared with it.
    """
    if run.decision != "kept" or run.twin_similarity >= OFF:
        return run
    domain = run.trace.metadata.task_domain
    rows = [
        *_newest_kept(connection, domain),
        *kept_with_text(connection, domain, candidate.entry.fingerprint),
    ]
    window = Window[KeptTrace](MOST_COMPARED)
    window.put((trace.entry, trace) for trace in map(kept_trace, rows))
    return drop_repeats(run, candidate, window)


def lock_kept(connection: sa.Connection, trace_ids: Collection[str]) -> list[sa.Row[Any]]:
    """Return those of the runs that are kept, locked for this transaction.

    Each row has `trace_id`, `keep_days`, and `is_stated`: whether a verdict states its success.
    """
    if not trace_ids:
        return []
    is_stated = (
        sa.select(_v.is_stated)
        .where(_v.kind == "run", _v.trace_id == _r.trace_id)
        .scalar_subquery()
    )
    select = (
        sa.select(_r.trace_id, _r.keep_days, is_stated.label("is_stated"))
        .where(_r.trace_id.in_(trace_ids), _r.decision == "kept")
        .order_by(_r.trace_id)
        .with_for_update(of=runs)
    )
    return list(connection.execute(select))


def replace_kept(
    connection: sa.Connection, trace_ids: Sequence[str], by: str, *, is_stated: bool
) -> None:
    """Stop contributing kept runs whose place another one takes, and withdraw them.

    Args:
        connection: A write transaction.
        trace_ids: Ids of the kept traces. One that is no longer kept stays as it is. So does one
            whose success a verdict states, unless a verdict states that of the other, too.
        by: Id of the other trace.
        is_stated: Whether a verdict states the success of the other one.
    """
    rows = lock_kept(connection, trace_ids)
    # Also runs that stay: a process may have assumed that they are replaced.
    note_change(connection, [row.trace_id for row in rows])
    for row in rows:
        if row.is_stated and not is_stated:
            continue
        changes: dict[str, Any] = {
            "decision": "twin",
            "replaced_by": by,
            "body_expires_at": expiry_after(row.keep_days),
        }
        if row.keep_days == 0:
            changes |= {"has_body": False, "body_expires_at": None}
            run_queries.delete_bodies(connection, [row.trace_id])
            forget(connection, [row.trace_id])
        run_queries.update(connection, row.trace_id, changes)
        note_days_of(connection, [row.trace_id])
        ask_withdrawal(connection, row.trace_id)
