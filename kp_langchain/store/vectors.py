"""What is compared of runs: a follower of the table `vectors`, and the kept runs in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kp_langchain._logging import warn_once
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity
from kp_langchain.gate.scored_trace import may_leave
from kp_langchain.gate.twins import OFF, KeptTrace, hold_against_twins
from kp_langchain.scoring.novelty_memory import MemoryEntry
from kp_langchain.scoring.repeats import fingerprint
from kp_langchain.scoring.trace_text import embedded_text
from kp_langchain.store import sql
from kp_langchain.store.rows import expiry_after, short_key, trace_key

if TYPE_CHECKING:
    import numpy as np
    import sqlalchemy as sa
    from numpy.typing import NDArray

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.database import Database
    from kp_langchain.store.vector_queries import Mark

MOST_COMPARED = 1000
"""A run is compared with at most so many kept ones of its domain, the newest."""

Row = TypeVar("Row")


# ------------------------------------------------------------------ following


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some of the rows that a follower reads.

    Attributes:
        rows: The rows.
        is_first_of_all: Whether all rows come, from this page on, and not only what changed.
        is_after_deletion: Whether that is because runs were deleted.
    """

    rows: Sequence[Row]
    is_first_of_all: bool
    is_after_deletion: bool


class Follower(Generic[Row]):
    """Reads rows of the table `vectors`, and later what changed of them.

    After a deletion of runs, all rows are read again. It is not safe to use from several threads.

    Args:
        database: The database.
        read: Returns the rows on a connection, a page at a time; or those that may have changed
            since the change with a number.
        with_pulled: Whether all rows are also read again when units of registries changed.
        deletions: How many deletions are known to whoever has rows before the first read; None if
            nobody has.
    """

    def __init__(
        self,
        database: Database,
        read: Callable[[sa.Connection, int | None], Iterable[Sequence[Row]]],
        *,
        with_pulled: bool = False,
        deletions: int | None = None,
    ) -> None:
        self._database = database
        self._read = read
        self._with_pulled = with_pulled
        self._deletions = deletions
        self._mark: Mark | None = None

    def read(self, take: Callable[[Page[Row]], None]) -> None:
        """Read what is new, and hand it over. A row may come more than once.

        Args:
            take: Called with each page, and not at all if nothing is new.

        Raises:
            StoreError: The database cannot be opened or read. The next call reads the same again.
        """
        with self._database.reading() as connection:
            mark, before = sql.vector_queries.mark(connection), self._mark
            if mark == before:
                return
            is_deleted = self._deletions is not None and mark.deletions != self._deletions
            is_all = (
                before is None
                or is_deleted
                or mark.change < before.change  # another database took its place
                or (self._with_pulled and mark.pulled != before.pulled)
            )
            since = None if before is None or is_all else before.change
            for rows in self._read(connection, since):
                take(Page(rows, is_all, is_deleted))
                is_all = is_deleted = False
            self._mark, self._deletions = mark, mark.deletions

    def restart(self) -> None:
        """Have the next read begin anew."""
        self._mark = None


# ------------------------------------------------------------------ columns


def embedder_columns(identity: EmbedderIdentity) -> dict[str, Any] | None:
    """Return the columns of an identity; None if an embedder made it of other values."""
    values: tuple[object, object, object] = (identity.model, identity.revision, identity.baseline)
    model, revision, baseline = values
    if not (isinstance(model, str) and isinstance(revision, str) and is_finite(baseline)):
        return None
    return {
        "model": short_key(model),
        "revision": short_key(revision),
        "baseline": float(baseline),  # type: ignore[arg-type]
    }


def content_of(vector: NDArray[np.float32] | None) -> bytes | None:
    """Return what a column holds of a vector: float32, little-endian."""
    import numpy as np

    return None if vector is None else np.asarray(vector, dtype="<f4").tobytes()


def vector_of(content: object) -> NDArray[np.float32] | None:
    """Return the vector that a column holds; None if it holds none."""
    if not isinstance(content, bytes) or not content or len(content) % 4:
        return None
    import numpy as np

    vector = np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)
    return vector if np.isfinite(vector).all() else None


def is_finite(value: object) -> bool:
    """Return whether a column holds a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


# ------------------------------------------------------------------ kept runs


def follow_kept(database: Database, domain: str) -> Follower[sa.Row[Any]]:
    """Return a follower of the kept runs of a domain; see `kept_trace`.

    Args:
        database: The database.
        domain: The domain's exact name.
    """

    def read(connection: sa.Connection, since: int | None) -> list[Sequence[sa.Row[Any]]]:
        return [sql.vector_queries.kept(connection, domain, since, MOST_COMPARED)]

    return Follower(database, read)


def kept_trace(row: sa.Row[Any]) -> KeptTrace | None:
    """Return a kept run as others are compared with it; None, and warn, if its row is damaged."""
    model, revision, baseline = row.model, row.revision, row.baseline
    is_sound = (
        isinstance(model, str)
        and isinstance(revision, str)
        and is_finite(baseline)
        and baseline < 1
        and is_finite(row.confidence)
        and isinstance(row.fingerprint, bytes | None)
    )
    if not is_sound:
        warn_once(
            "damaged vectors",
            "the kept run %s cannot be compared with others, because its row in vectors is damaged",
            row.trace_id,
        )
        return None
    identity = EmbedderIdentity(model, revision, float(baseline))
    return KeptTrace(
        MemoryEntry(row.trace_id, row.fingerprint, vector_of(row.vector), identity),
        row.run_id,
        float(row.confidence),
        bool(row.is_stated),
        may_leave(row.visibility, row.privacy_level),
        row.namespace,
    )


def run_row(run: ScoredTrace, candidate: KeptTrace | None = None) -> dict[str, Any]:
    """Return the row of a run whose body is kept.

    Args:
        run: The run.
        candidate: The run as others are compared with it, if it is known.
    """
    candidate = candidate or KeptTrace.of(run, run.entry or MemoryEntry(run.trace.id, None))
    entry = candidate.entry
    embedder = embedder_columns(entry.identity)
    return {
        "kind": "run",
        "trace_id": trace_key(entry.trace_id),
        "scope": sql.vector_queries.scope_of(run.trace.metadata.task_domain),
        "fingerprint": entry.fingerprint,
        "vector": None if embedder is None else content_of(entry.vector),
        "confidence": candidate.confidence,
        "is_stated": candidate.is_stated,
        **(embedder or embedder_columns(NO_IDENTITY) or {}),
    }


def candidate_of(connection: sa.Connection, trace_id: str, run: ScoredTrace) -> KeptTrace:
    """Return a stored run that was judged again as others are compared with it.

    Args:
        connection: A connection to read with.
        trace_id: Its id in the table `runs`.
        run: The run, with its body and the verdict.
    """
    stored = sql.vector_queries.of_run(connection, trace_id)
    known = None if stored is None else kept_trace(stored)
    if known is None or known.entry.fingerprint is None:  # damaged, or added by hand
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
    domain = run.trace.metadata.task_domain
    rows = sql.vector_queries.kept(connection, domain, None, MOST_COMPARED)
    kept = [trace for row in rows if (trace := kept_trace(row)) is not None]
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
    rows = sql.run_queries.lock_kept(connection, trace_ids)
    # Also of one that stays: who took it for replaced is to read that it is not.
    sql.vector_queries.note_change(connection, [row["trace_id"] for row in rows])
    for row in rows:
        trace_id, keep_days = row["trace_id"], row["keep_days"]
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
            sql.vector_queries.forget(connection, [trace_id])
        sql.run_queries.update(connection, trace_id, changes)
        sql.outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))
