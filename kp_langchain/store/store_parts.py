"""`StoreParts`: an open database, and the parts of a store that keep tables in it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kp_langchain.store import sql
from kp_langchain.store.database import Compaction, Database
from kp_langchain.store.journal import Journal
from kp_langchain.store.location import locate
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.paused_runs import PausedRuns
from kp_langchain.store.recall_entries import RecallEntries
from kp_langchain.store.stored_memory import StoredMemory

if TYPE_CHECKING:
    from kp_langchain.store.confidence_models import ConfidenceModels
    from kp_langchain.store.pulled_queries import PulledUnits
    from kp_langchain.store.run_links import ExternalTraces, ShownTraces


class StoreParts:
    """The parts of a store; `TraceStore` adds what is done with its runs.

    Args:
        url: As for `TraceStore`.
    """

    def __init__(self, url: str | Path | None = None) -> None:
        self._database = Database(locate(url))
        self._journal = Journal(self._database)

    @property
    def location(self) -> str:
        """Path or URL of the database, without the password."""
        return str(self._database.location)

    @property
    def database(self) -> Database:
        """The database of this store, for the parts of this package that keep tables in it."""
        return self._database

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def __getstate__(self) -> dict[str, Any]:
        # For subclasses: see `shared_stores`, which pickles this class itself.
        database = copy.copy(self._database)
        return vars(self) | {"_database": database, "_journal": Journal(database)}

    def load_drivers(self) -> None:
        """Import what the first use needs, which takes 0.2 s once a process; open nothing."""
        self._database.load_drivers()

    @property
    def journal(self) -> Journal:
        """The writes of finished runs, and the runs that wait for being judged."""
        return self._journal

    @property
    def outbox(self) -> Outbox:
        """The contributions of this store."""
        return Outbox(self._database)

    @property
    def paused(self) -> PausedRuns:
        """The runs of this store that wait for a human."""
        return PausedRuns(self._database)

    @property
    def external_traces(self) -> ExternalTraces:
        """Where other tracers recorded the runs of this store."""
        return sql.run_links.ExternalTraces(self._database)

    @property
    def recall_entries(self) -> RecallEntries:
        """The tasks of this store's kept runs, as recall compares them with a new one."""
        return RecallEntries(self._database)

    @property
    def shown(self) -> ShownTraces:
        """Which kept traces the runs of this store were shown as examples."""
        return sql.run_links.ShownTraces(self._database)

    @property
    def pulled(self) -> PulledUnits:
        """The units of registries in this store, and which of them runs may be shown."""
        return sql.pulled_queries.PulledUnits(self._database)

    @property
    def models(self) -> ConfidenceModels:
        """The confidence models of this store."""
        return sql.confidence_models.ConfidenceModels(self._database)

    @property
    def remembered(self) -> StoredMemory:
        """The traces of this store that novelty is measured against."""
        return StoredMemory(self._database)

    def compact(self) -> Compaction:
        """Give back the room of what was deleted, so that no file has its text any more.

        SQLite writes the file anew, which takes as much room again meanwhile; others may read and
        write before and after. PostgreSQL runs `VACUUM`, which makes the room free for new rows.

        Raises:
            StoreError: There is no room for it, or another process kept writing for 10 s.
        """
        return self._database.compact()

    def close(self) -> None:
        """Release the connections. The next use opens them again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
