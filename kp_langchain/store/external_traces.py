"""`ExternalTraces`: where other tracers recorded the runs of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kp_langchain.store import sql

if TYPE_CHECKING:
    from kp_langchain.gate.external_trace import ExternalTrace
    from kp_langchain.store.database import Database

_PAGE = 1000


class ExternalTraces:
    """Where other tracers recorded the runs of a store, as their handlers learned it.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_tool(self, tool: str) -> Iterator[tuple[str, ExternalTrace]]:
        """Yield trace id and external trace of each run that a tool recorded, in order of ids.

        They are read a page at a time, and no transaction stays open between two of them.

        Args:
            tool: The name of the tool.

        Raises:
            StoreError: The store cannot be read.
        """
        after = ""
        while True:
            with self._database.reading() as connection:
                page = sql.external_queries.page(connection, tool, after=after, limit=_PAGE)
            if not page:
                return
            after = page[-1][0]
            yield from page

    def of_run(self, trace_id: str) -> dict[str, ExternalTrace]:
        """Return where tools recorded a run, by their names.

        Args:
            trace_id: The id of its trace, as `StoredRun` has it.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._database.reading() as connection:
            return sql.external_queries.of_trace(connection, trace_id)

    def in_trace(self, tool: str, external_id: str) -> list[tuple[str, ExternalTrace]]:
        """Return trace id and external trace of each run that a tool recorded in one trace.

        Args:
            tool: The name of the tool.
            external_id: The tool's id of the trace.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._database.reading() as connection:
            return sql.external_queries.in_trace(connection, tool, external_id)

    def has(self, tool: str, external: ExternalTrace) -> bool:
        """Return whether there is a run that a tool recorded as this trace and span.

        Args:
            tool: The name of the tool.
            external: The trace and the root span of the run there.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._database.reading() as connection:
            return sql.external_queries.has(connection, tool, external)

    def run_ids(self) -> Iterator[tuple[str, str]]:
        """Yield trace id and run id of each run, in order of trace ids; paged as `of_tool` is.

        Raises:
            StoreError: The store cannot be read.
        """
        after = ""
        while True:
            with self._database.reading() as connection:
                page = sql.external_queries.page_of_run_ids(connection, after=after, limit=_PAGE)
            if not page:
                return
            after = page[-1][0]
            yield from page
