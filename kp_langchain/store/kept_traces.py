"""`KeptTraces`: the kept runs of a store, as the gate compares others with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import warn_once
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity
from kp_langchain.gate.decision import may_leave
from kp_langchain.gate.twins import OFF, KeptTrace, hold_against_twins
from kp_langchain.scoring.novelty_memory import MemoryEntry
from kp_langchain.scoring.repeats import fingerprint
from kp_langchain.scoring.trace_text import embedded_text
from kp_langchain.store import sql
from kp_langchain.store.database import Database
from kp_langchain.store.remembered import content_of, embedder_of
from kp_langchain.store.rows import expiry_after, trace_key
from kp_langchain.store.watermark import Watermark

if TYPE_CHECKING:
    import numpy as np
    import sqlalchemy as sa
    from numpy.typing import NDArray

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.entry_queries import EntryRow

MOST_COMPARED = 1000
"""A run is compared with at most so many kept ones of its domain, the newest."""


@dataclass(frozen=True, slots=True)
class KeptPage:
    """What one read of the store returned.

    Attributes:
        state: The state of the store that it is based on.
        traces: The kept runs of the domain, the oldest first; or those that are new or changed.
        left: Ids of those that are no longer kept.
        written: Which of the traces that were asked for are in the store, kept or not.
        is_whole: Whether it has all kept runs, not just what changed.
    """

    state: Watermark
    traces: list[KeptTrace]
    left: set[str]
    written: set[str]
    is_whole: bool


class KeptTraces:
    """The kept runs of one store. Got from `TraceStore.kept`.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"KeptTraces({str(self._database.location)!r})"

    def read(
        self, domain: str, *, since: Watermark | None = None, awaited: Collection[str] = ()
    ) -> KeptPage | None:
        """Return the newest kept runs of a domain, or what changed; damaged ones are left out.

        Args:
            domain: The domain's exact name.
            since: Return only what changed since this state, and None if nothing did. After a
                deletion all are returned.
            awaited: Ids of traces that were handed to the store.

        Raises:
            StoreError: The database cannot be opened or read.
        """
        with self._database.reading() as connection:
            state = sql.entry_queries.watermark(connection)
            if state == since:
                return None
            rows = None
            if since is not None and since.deletions == state.deletions:
                rows = sql.entry_queries.changed(connection, domain, since, MOST_COMPARED)
            if rows is None or len(rows) == MOST_COMPARED:
                traces, left, is_whole = find_kept(connection, domain), set[str](), True
            else:
                traces = _kept_traces([row for row in rows if row.is_kept and row.entry_of])
                kept = {trace.entry.trace_id for trace in traces}
                left, is_whole = {row.trace_id for row in rows} - kept, False
            written = sql.run_queries.existing(connection, awaited)
        return KeptPage(state, traces, left, written, is_whole)


def find_kept(connection: sa.Connection, domain: str) -> list[KeptTrace]:
    """Return the newest kept runs of a domain, the oldest first; damaged ones are left out."""
    return _kept_traces(sql.entry_queries.kept(connection, domain, MOST_COMPARED)[::-1])


def _kept_traces(rows: Sequence[EntryRow]) -> list[KeptTrace]:
    traces = [trace for row in rows if (trace := _kept_trace(row)) is not None]
    if len(traces) < len(rows):
        warn_once(
            "damaged entries",
            "%d kept runs cannot be compared with others, because their rows in run_entries are "
            "damaged",
            len(rows) - len(traces),
        )
    return traces


def candidate_of(connection: sa.Connection, trace_id: str, run: ScoredTrace) -> KeptTrace:
    """Return a stored run that was judged again as others are compared with it.

    Args:
        connection: A connection to read with.
        trace_id: Its id in the table `runs`.
        run: The run, with its body and the verdict.
    """
    stored = sql.entry_queries.of_trace(connection, trace_id)
    known = None if stored is None else _kept_trace(stored)
    if known is None:  # of an earlier version, or added by hand
        text_hash = fingerprint(embedded_text(run.trace))
        return KeptTrace.of(run, MemoryEntry(trace_id, text_hash))
    candidate = KeptTrace.of(run, known.entry)
    return replace(candidate, is_stated=candidate.is_stated or known.is_stated)


def hold_stored_against_twins(
    connection: sa.Connection, run: ScoredTrace, candidate: KeptTrace
) -> ScoredTrace:
    """Return a run that passes since a verdict as it is decided on beside those that it repeats.

    Args:
        connection: A connection to read with.
        run: The run.
        candidate: The same run as others would be compared with it.
    """
    if run.decision != "kept" or run.twin_similarity >= OFF:
        return run
    kept = find_kept(connection, run.trace.metadata.task_domain)
    return hold_against_twins(run, candidate, kept)


def replace_kept(
    connection: sa.Connection, trace_ids: Sequence[str], by: str, *, is_stated: bool
) -> None:
    """Stop contributing kept runs whose place another one takes, and withdraw them.

    Args:
        connection: A write transaction.
        trace_ids: Ids of the kept traces. One that is no longer kept stays as it is, and so does
            one whose success a verdict has stated meanwhile, if none states that of the other.
        by: Id of the other trace.
        is_stated: Whether a verdict states the success of the other one.
    """
    for row in sql.run_queries.lock_kept(connection, trace_ids):
        trace_id, keep_days = row["trace_id"], row["keep_days"]
        # Also of one that stays: who took it for replaced is to read that it is not.
        sql.entry_queries.note_change(connection, [trace_id])
        if row["is_stated"] and not is_stated:
            continue
        changes: dict[str, Any] = {
            "decision": "twin",
            "replaced_by": by,
            "body_expires_at": expiry_after(keep_days),
        }
        if keep_days == 0:
            changes |= {"has_body": False, "body_expires_at": None}
            sql.run_queries.delete_bodies(connection, [trace_id])
            sql.entry_queries.remove(connection, [trace_id])
        sql.run_queries.update(connection, trace_id, changes)
        sql.outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))


def entry_row(candidate: KeptTrace) -> dict[str, Any]:
    """Return the row of the table `run_entries` for a run."""
    entry, vector = candidate.entry, None
    embedder = embedder_of(entry.identity)
    identity = NO_IDENTITY if embedder is None else EmbedderIdentity(*embedder)
    if entry.vector is not None and embedder is not None:
        vector = content_of(entry.vector)
    return {
        "trace_id": trace_key(entry.trace_id),
        "fingerprint": entry.fingerprint,
        "vector": vector,
        "model": identity.model,
        "revision": identity.revision,
        "baseline": identity.baseline,
        "confidence": candidate.confidence,
        "is_stated": candidate.is_stated,
    }


def _kept_trace(row: EntryRow) -> KeptTrace | None:
    """Return the run that a row holds; None if its entry is damaged."""
    model, revision, baseline = row.model, row.revision, row.baseline
    confidence, text_hash = row.confidence, row.fingerprint
    is_text = isinstance(model, str) and isinstance(revision, str)
    are_numbers = all(
        isinstance(value, int | float) and math.isfinite(value) for value in (baseline, confidence)
    )
    if not (is_text and are_numbers and baseline < 1 and isinstance(text_hash, bytes | None)):
        return None
    identity = EmbedderIdentity(model, revision, float(baseline))
    return KeptTrace(
        MemoryEntry(row.trace_id, text_hash, _vector(row.vector), identity),
        row.run_id,
        float(confidence),
        bool(row.is_stated),
        may_leave(row.visibility, row.privacy_level),
        row.namespace,
    )


def _vector(content: object) -> NDArray[np.float32] | None:
    """Return the vector that a column holds; None if it holds none."""
    if not isinstance(content, bytes) or not content or len(content) % 4:
        return None
    import numpy as np

    vector = np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)
    return vector if np.isfinite(vector).all() else None
