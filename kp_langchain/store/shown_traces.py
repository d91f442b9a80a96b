"""`ShownTraces`: which kept traces runs were shown as examples, and how those runs ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kp_langchain.store import sql
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.gate.shown_trace import ShownTrace
    from kp_langchain.store.database import Database
    from kp_langchain.store.shown_queries import OutcomeCount, ShownTo


class ShownTraces:
    """The recall log of one store. Got from `TraceStore.shown`.

    Every method raises `StoreError` when the store cannot be read.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_run(self, trace_id: str) -> list[ShownTrace]:
        """Return what a run was shown or held out from, the best first.

        Args:
            trace_id: The id of its trace.
        """
        with self._database.reading() as connection:
            key = trace_key(trace_id)
            return sql.shown_queries.of_runs(connection, [key]).get(key, [])

    def of_runs(self, trace_ids: Collection[str]) -> dict[str, list[ShownTrace]]:
        """Return by trace id what runs were shown or held out from, the best of each first.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run that was shown nothing is left out.
        """
        with self._database.reading() as connection:
            return sql.shown_queries.of_runs(connection, trace_ids)

    def shown_to(self, trace_id: str, *, limit: int = 100) -> list[ShownTo]:
        """Return the runs that a trace was shown to or held out from, the newest first.

        Args:
            trace_id: The id of the kept trace.
            limit: At most so many.
        """
        with self._database.reading() as connection:
            return sql.shown_queries.shown_to(connection, trace_key(trace_id), limit)

    def outcome_counts(self, domain: str) -> list[OutcomeCount]:
        """Return how the runs of a domain ended that were shown each trace, or held out from it.

        Args:
            domain: The domain's exact name.
        """
        with self._database.reading() as connection:
            return sql.shown_queries.outcome_counts(connection, domain)

    def outcome_counts_by_domain(self) -> dict[str, list[OutcomeCount]]:
        """Return what `outcome_counts` returns, of every domain with runs shown something."""
        with self._database.reading() as connection:
            return sql.shown_queries.outcome_counts_by_domain(connection)
