"""`Unscored`: finished runs that wait on disk for their score, and whose they are.

Whoever wrote one scores it. When its process is gone, the next one that records into the
store does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain.store.rows import clean_name, clean_text, json_text, trace_key

if TYPE_CHECKING:
    from kp_langchain.store.trace_store import TraceStore

# Whether a process of another machine lives cannot be told; its runs are scored long before that.
_GIVEN_UP_AFTER = timedelta(minutes=15)
MOST_CLAIMED = 200
"""So many are taken over at once."""


class Unscored:
    """The runs of one store that are not scored yet. Got from `TraceStore.unscored`.

    Every method raises `StoreError` when the database cannot be opened, read or written.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"Unscored({self._store.location!r})"

    def count(self) -> int:
        """Return how many there are."""
        from kp_langchain.store import unscored_queries

        with self._store._reading() as connection:  # noqa: SLF001 - one room
            return unscored_queries.count(connection)

    def add(self, drafts: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Write drafts of this process's runs, in one transaction.

        Args:
            drafts: For each its trace id, its run id, and itself as JSON-like values.
        """
        from kp_langchain.store import unscored_queries

        now, owner = datetime.now(UTC), this_process()
        rows = [
            {
                "trace_id": trace_key(trace_id),
                "run_id": clean_name(run_id),
                "queued_at": now,
                "owner": owner,
                "body": json_text(body),
            }
            for trace_id, run_id, body in drafts
        ]
        if rows:
            with self._store._writing() as connection:  # noqa: SLF001
                unscored_queries.add(connection, rows)

    def claim(self) -> list[tuple[str, dict[str, Any]]]:
        """Take over what processes that are gone have left.

        Returns:
            Trace ids and drafts, the oldest first; at most `MOST_CLAIMED`.
        """
        from kp_langchain.store import unscored_queries

        if not self.count():
            return []
        now = datetime.now(UTC)
        with self._store._writing() as connection:  # noqa: SLF001
            owners = unscored_queries.owners(connection)
            gone = [owner for owner in owners if is_alive(owner) is False]
            return unscored_queries.claim(
                connection, gone, now - _GIVEN_UP_AFTER, this_process(), now, MOST_CLAIMED
            )

    def remove(self, trace_id: str) -> None:
        """Take one out that can never be scored."""
        from kp_langchain.store import unscored_queries

        with self._store._writing() as connection:  # noqa: SLF001
            unscored_queries.remove(connection, [trace_id])


def this_process() -> str:
    """Return what names this process, also among those that had its number before."""
    return _named(os.getpid())


@cache
def _named(pid: int) -> str:
    # A forked child asks with a number of its own.
    return f"{_host()}|{pid}|{_started(pid)}"


@cache
def _host() -> str:
    import socket

    return clean_text(socket.gethostname()).replace("|", "_")


def is_alive(process: str) -> bool | None:
    """Tell whether the process lives that `this_process` named; None where that is unknown."""
    if process == this_process():
        return True
    host, _, rest = process.partition("|")
    pid, _, started = rest.partition("|")
    if host != _host() or os.name != "posix" or not pid.isdecimal():
        return None
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it lives, and belongs to another user
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process began, in the system's own units; "" where that cannot be read."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Behind the name, which may hold anything, begins the third field; this is the 22nd.
    fields = content.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
