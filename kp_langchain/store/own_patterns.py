"""`OwnPatterns`: the patterns of this store's runs that a person decided on.

An admitted pattern has the words and values of its members. If one of them is deleted, so is the
text of the pattern; no run is shown it before it is admitted again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store.database import StorePart
from kp_langchain.store.registry_units import OWN, ExaminedUnit, PulledUnit
from kp_langchain.store.rows import clean_name
from kp_langchain.store.run_queries import lock_names
from kp_langchain.store.tables import batches, insert_or_replace, pulled_units, runs
from kp_langchain.store.unit_rows import (
    IS_OWN,
    NEWEST_FIRST,
    WITHOUT_TEXT,
    note_change,
    row_of,
    stored_unit,
)

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import KnowledgeUnit

_c = pulled_units.c
_select = sa.select(_c.trace_id, _c.members).where(IS_OWN).order_by(_c.trace_id).with_for_update()


class OwnPatterns(StorePart):
    """The decided patterns of one store's runs. Got from `TraceStore.own_patterns`."""

    def decided(self) -> dict[str, PulledUnit]:
        """Return by id the patterns that a person decided on, those decided on last first.

        `quarantined` are those that were admitted and of which a run was deleted since.
        """
        with self._database.reading() as connection:
            rows = connection.execute(NEWEST_FIRST.where(IS_OWN)).mappings()
            return {row["trace_id"]: PulledUnit(**row) for row in rows}

    def unit(self, pattern_id: str) -> KnowledgeUnit | None:
        """Return an admitted pattern as runs are shown it; None if there is none.

        Args:
            pattern_id: Its whole id.

        Raises:
            StoreError: Its body holds no pattern.
        """
        with self._database.reading() as connection:
            remedy = f"admit it again: kp-langchain patterns admit {pattern_id}"
            return stored_unit(connection, sa.and_(IS_OWN, _c.trace_id == pattern_id), remedy)

    def decide(
        self, patterns: Sequence[ExaminedUnit], state: Literal["admitted", "rejected"], *, by: str
    ) -> None:
        """Let patterns be shown as they are now, or never.

        Each takes the place of what has its id, also of a unit of a registry: whoever sent that
        could have guessed the id. No unit of a registry takes its place.

        Args:
            patterns: The patterns.
            state: What they become. Of a rejected one, the text is not stored.
            by: Who decides.

        Raises:
            StoreError: A run of one to admit was deleted meanwhile. None is admitted then.
        """
        now = datetime.now(UTC)
        decision = {"state": state, "decided_at": now, "decided_by": clean_name(by)}
        rows = [
            row_of(one, OWN, one.unit.metadata.task_domain, now)
            | decision
            | (WITHOUT_TEXT if state == "rejected" else {})
            for one in patterns
        ]
        with self._database.writing() as connection:
            if state == "admitted":
                _check_members(connection, patterns)
            lock_names(connection, ["pulled units"])
            for row in rows:
                connection.execute(insert_or_replace(pulled_units, connection.dialect.name), row)
            note_change(connection, rows)

    def reject(self, *pattern_ids: str, by: str) -> None:
        """Never show decided patterns, also ones that are not among the runs any more.

        Args:
            pattern_ids: Their whole ids.
            by: Who decides.
        """
        decision = {"state": "rejected", "decided_at": datetime.now(UTC)}
        decision["decided_by"] = clean_name(by)
        with self._database.writing() as connection:
            _update(connection, pattern_ids, decision | WITHOUT_TEXT)


# ------------------------------------------------------------------ within a transaction


def withdraw_patterns_of(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Delete the text of admitted patterns of which a run is deleted; they wait for a decision.

    Args:
        connection: The write transaction that deletes the runs.
        trace_ids: Ids of the traces of these runs.
    """
    admitted = connection.execute(_select.where(_c.state == "admitted"))
    ids = [row.trace_id for row in admitted if not set(trace_ids).isdisjoint(row.members)]
    # The figures and the hash are of the deleted run as well.
    figures = {"quality_score": 0.0, "confidence": 0.0, "digest": ""}
    _update(connection, ids, {"state": "quarantined"} | figures | WITHOUT_TEXT)


def drop_patterns_without_runs(connection: sa.Connection) -> None:
    """Delete the patterns of which no run of the domain and namespace is left.

    Args:
        connection: A write transaction.
    """
    is_its_own = sa.or_(_c.namespace.is_(None), runs.c.namespace == _c.namespace)
    has_runs = sa.exists().where(runs.c.domain == _c.domain, is_its_own)
    rows = [dict(row) for row in connection.execute(_select.where(~has_runs)).mappings()]
    for batch in batches([row["trace_id"] for row in rows]):
        connection.execute(sa.delete(pulled_units).where(_c.trace_id.in_(batch)))
    note_change(connection, rows)


def _update(connection: sa.Connection, pattern_ids: Sequence[str], values: dict[str, Any]) -> None:
    for batch in batches(pattern_ids):
        update = sa.update(pulled_units).where(IS_OWN, _c.trace_id.in_(batch))
        connection.execute(update.values(**values))
    note_change(connection, [{"trace_id": id_} for id_ in pattern_ids])


def _check_members(connection: sa.Connection, patterns: Sequence[ExaminedUnit]) -> None:
    """Check that the members of patterns are still here, and lock them for this transaction.

    Raises:
        StoreError: One was deleted.
    """
    members = sorted({id_ for one in patterns for id_ in one.members})
    select = sa.select(runs.c.trace_id).order_by(runs.c.trace_id)
    select = select.with_for_update(read=True, key_share=True)
    present: set[str] = set()
    for batch in batches(members):
        present |= set(connection.scalars(select.where(runs.c.trace_id.in_(batch))))
    for one in patterns:
        if not present.issuperset(one.members):
            raise StoreError(
                f"a run of {one.unit.id} was deleted meanwhile; read what the others make of it: "
                f"kp-langchain patterns {one.unit.id}"
            )
