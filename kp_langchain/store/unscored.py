"""`Unscored`: finished runs that wait on disk for their score, each owned by a process.

The process that wrote a run scores it. When that process has ended, the next one that records into
the store takes it over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from kp_langchain.store import sql
from kp_langchain.store.database import Database
from kp_langchain.store.rows import clean_name, clean_text, json_text, trace_key

# For processes that may or may not be alive, such as those on other machines.
# A live one usually scores its runs much sooner.
_ABANDONED_AFTER = timedelta(minutes=15)
MOST_CLAIMED = 200
"""The number of runs taken over at once."""


class Unscored:
    """The runs of one store that are not scored yet. Got from `TraceStore.unscored`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"Unscored({str(self._database.location)!r})"

    def count(self) -> int:
        """Return the number of unscored runs."""
        with self._database.reading() as connection:
            return sql.unscored_queries.count(connection)

    def add(self, drafts: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Write drafts of this process's runs in one transaction.

        Args:
            drafts: For each run its trace id, its run id, and the draft as JSON-like values.
        """
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
            with self._database.writing() as connection:
                sql.unscored_queries.add(connection, rows)

    def claim(self) -> list[tuple[str, dict[str, Any]]]:
        """Take over the runs of processes that have ended.

        Whether a process on another machine has ended is not known: its runs are taken over after
        15 minutes.

        Returns:
            Trace ids and drafts, the oldest first; at most `MOST_CLAIMED`.
        """
        if not self.count():
            return []
        now = datetime.now(UTC)
        with self._database.writing() as connection:
            states = {owner: is_alive(owner) for owner in sql.unscored_queries.owners(connection)}
            return sql.unscored_queries.claim(
                connection,
                dead_owners=[owner for owner, state in states.items() if state is False],
                unknown_owners=[owner for owner, state in states.items() if state is None],
                older_than=now - _ABANDONED_AFTER,
                owner=this_process(),
                now=now,
                max_rows=MOST_CLAIMED,
            )

    def deleted(self, trace_ids: Sequence[str]) -> set[str]:
        """Return those runs, of some whose drafts were written, that were deleted since.

        Args:
            trace_ids: Ids of their traces.
        """
        if not trace_ids:
            return set()
        keys = {trace_key(trace_id): trace_id for trace_id in trace_ids}
        with self._database.reading() as connection:
            # In this order: a run is written as its draft is deleted.
            present = sql.unscored_queries.existing(connection, list(keys))
            present |= sql.run_queries.existing(connection, list(keys))
        return {trace_id for key, trace_id in keys.items() if key not in present}

    def remove(self, trace_id: str) -> None:
        """Delete a run that can never be scored."""
        with self._database.writing() as connection:
            sql.unscored_queries.remove(connection, [trace_id])


def this_process() -> str:
    """Return an identifier of this process; a later process with its number has another one."""
    return _process_name(os.getpid())


@cache
def _process_name(pid: int) -> str:
    # Cached by number, because a forked child has another one.
    return f"{_host()}|{pid}|{_start_time(pid)}"


@cache
def _host() -> str:
    import socket

    return clean_text(socket.gethostname()).replace("|", "_")


def is_alive(process: str) -> bool | None:
    """Return whether the process that `this_process` identified is alive; None if unknown."""
    if process == this_process():
        return True
    host, _, rest = process.partition("|")
    pid, _, start_time = rest.partition("|")
    if host != _host() or os.name != "posix" or not pid.isdecimal():
        return None
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it is alive, and belongs to another user
    present_start_time = _start_time(int(pid))
    if not (present_start_time and start_time):
        return None  # it may be a later process with the same number
    return present_start_time == start_time


def _start_time(pid: int) -> str:
    """Return when a process began, in the system's own unit; "" where that cannot be read."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The third field follows the name, which may contain anything; the start time is the 22nd.
    fields = content.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
