"""`Jobs`: what is still to be done, and who does it; `JobLoop`: a thread; `Backoff`: its pauses.

A job is a row of the table `jobs`. The process that does it holds a lease. If it dies, its
leases expire, and another process does its jobs. The kinds are

- `judge`: judge a run. Its key is the id of the trace.
- `score NAME`: send the score of a run to the tool of that name. Its key is the id of the trace.
- `send`: send what the outbox has. There is one for each store, so one process at a time sends:
  a registry limits the requests of a key, not of a process.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa

from kp_langchain._forksafe import fork_gate, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import StoreError
from kp_langchain.store.database import Database, StorePart
from kp_langchain.store.rows import trace_key
from kp_langchain.store.tables import (
    execute_rows,
    insert_or_ignore,
    insert_or_replace,
    jobs,
)

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

JUDGE = "judge"
SCORE = "score {}"
SEND = "send"

LEASE_S = 30.0
"""For how long a process has a job, unless it renews the lease."""

_MOST_TAKEN = 200  # at once
_c = jobs.c
_SHORTEST_REST_S = 0.05
# A try at a dead server takes 10 s and delays everything queued behind it.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row: twice as long each time.

    Half of it is random, so that processes that failed together do not try again together.
    Source: exponential backoff with equal jitter, M. Brooker 2015,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    Args:
        failures: The number of failures in a row.
        first_s: The longest wait after the first one, in seconds.
        longest_s: The longest wait after any, in seconds.
    """
    longest = min(longest_s, first_s * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


class Backoff:
    """When to try again: after a second at most, then after pauses that grow up to a minute.

    Attributes:
        failures: The number of failures in a row.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._due_at = float("-inf")  # by the monotonic clock

    @property
    def is_pausing(self) -> bool:
        """Whether it is too early to try again."""
        return self.failures > 0 and time.monotonic() < self._due_at

    @property
    def pause_left_s(self) -> float:
        """The seconds until it is time to try again."""
        return max(0.0, self._due_at - time.monotonic())

    def check(self) -> None:
        """Raise a `StoreError` while it is too early to try again."""
        if self.is_pausing:
            raise StoreError("the store failed a moment ago")

    def note_failure(self) -> None:
        """Begin a pause."""
        self.failures += 1
        pause = pause_s(self.failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._due_at = time.monotonic() + pause

    def note_success(self) -> None:
        """Forget the failures."""
        self.failures = 0

    def end_pause(self) -> None:
        """Allow the next try now, however little time has passed since the last failure."""
        self._due_at = float("-inf")


class Jobs(StorePart):
    """The jobs of one store, as one process does them.

    Args:
        database: The database of the store.
        lease_s: For how long it has a job, in seconds, unless it renews the lease.
    """

    def __init__(self, database: Database, lease_s: float = LEASE_S) -> None:
        super().__init__(database)
        self._id = uuid4().hex
        self._lease_s = lease_s

    @property
    def owner(self) -> str:
        """Who has the jobs of this process; a forked child is another process."""
        return f"{self._id}-{os.getpid()}"

    def leased_row(self, kind: str, key: str, body: Any = None) -> dict[str, Any]:
        """Return the row of a job that this process is to do."""
        return {
            "kind": kind,
            "key": key,
            "attempts": 0,
            "lease_until": self._lease_end(),
            "owner": self.owner,
            "body": body,
        }

    def score_rows(
        self, runs: Iterable[ScoredTrace], tools: Collection[str]
    ) -> list[dict[str, Any]]:
        """Return the rows of the jobs that send scores to the tools that have traces of the runs.

        Args:
            runs: The runs.
            tools: The names of the tools.
        """
        return [
            self.leased_row(SCORE.format(tool), run.stored_id or trace_key(run.trace.id))
            for run in runs
            for tool in tools
            if tool in run.external_traces
        ]

    def take(self, kind: str) -> list[dict[str, Any]]:
        """Lease the jobs of processes that have ended, at most 200; return their rows."""
        with self._database.writing() as connection:
            return self._take(connection, kind)

    def take_first(self, kind: str) -> dict[str, Any] | None:
        """Keep this process's jobs of a kind, and return one of them or of an ended process's.

        Returns:
            The row of the job, this attempt counted; None if there is no job that is not another
            process's. Those with fewer attempts come first.
        """
        is_free = sa.or_(_c.lease_until < time.time(), _c.owner == self.owner)
        first = sa.select(_c.key).where(_c.kind == kind, is_free)
        first = first.order_by(_c.attempts, _c.lease_until, _c.key).limit(1)
        key = first.with_for_update(skip_locked=True).scalar_subquery()
        update = sa.update(jobs).where(_c.kind == kind, _c.key == key)
        with self._database.writing() as connection:
            self._extend(connection, kind, self._lease_end())
            row = (
                connection.execute(update.values(self._next_attempt()).returning(jobs))
                .mappings()
                .first()
            )
        return None if row is None else dict(row)

    def count(self, kind: str) -> int:
        """Return the number of jobs of a kind."""
        with self._database.reading() as connection:
            return connection.scalar(sa.select(sa.func.count()).where(_c.kind == kind)) or 0

    def end(self, job: dict[str, Any]) -> None:
        """Delete a job that is done, unless it was written anew, or another process has it.

        Args:
            job: The row that `take_first` returned.
        """
        same = (_c[name] == job[name] for name in ("kind", "key", "owner", "attempts"))
        with self._database.writing() as connection:
            connection.execute(sa.delete(jobs).where(*same))

    def renew(self, kind: str) -> None:
        """Have this process keep its jobs of a kind as long again."""
        with self._database.writing() as connection:
            self._extend(connection, kind, self._lease_end())

    def renew_within(self, connection: sa.Connection, kind: str) -> None:
        """Keep the job of a kind; within a write transaction, so that nothing is written without.

        Raises:
            StoreError: Its lease expired, and another process has the job.
        """
        if not self._extend(connection, kind, self._lease_end()):
            raise StoreError(
                f"the lease of the job {kind!r} expired, and another process has the job now"
            )

    def release(self, kind: str) -> None:
        """Let other processes have the jobs of this one of a kind."""
        with self._database.writing() as connection:
            self._extend(connection, kind, 0.0)

    def take_only(self, kind: str) -> bool:
        """Lease the only job of a kind, which never ends; False if another process has it."""
        row = self.leased_row(kind, "") | {"lease_until": 0.0}
        with self._database.writing() as connection:
            connection.execute(insert_or_ignore(jobs, connection.dialect.name), [row])
            return bool(self._take(connection, kind))

    def _lease_end(self) -> float:
        return time.time() + self._lease_s

    def _next_attempt(self) -> dict[str, Any]:
        """Return the columns of a job that this process begins to do."""
        return {
            "owner": self.owner,
            "lease_until": self._lease_end(),
            "attempts": _c.attempts + 1,
        }

    def _take(self, connection: sa.Connection, kind: str) -> list[dict[str, Any]]:
        """Lease jobs of a kind that no process holds, those whose lease expired first, first."""
        select = sa.select(jobs).where(_c.kind == kind, _c.lease_until < time.time())
        select = select.order_by(_c.lease_until, _c.key).limit(_MOST_TAKEN)
        select = select.with_for_update(skip_locked=True)
        rows = [dict(row) for row in connection.execute(select).mappings()]
        if rows:
            keys = [row["key"] for row in rows]
            update = sa.update(jobs).where(_c.kind == kind, _c.key.in_(keys))
            connection.execute(update.values(self._next_attempt()))
        return rows

    def _extend(self, connection: sa.Connection, kind: str, until: float) -> bool:
        """Keep the jobs of a kind until a time; return whether this process has any.

        Args:
            connection: A write transaction.
            kind: The kind.
            until: The end of the lease, in seconds since 1970; 0 gives them back.
        """
        update = sa.update(jobs).where(_c.kind == kind, _c.owner == self.owner)
        return connection.execute(update.values(lease_until=until)).rowcount > 0


# ------------------------------------------------------------------ within a transaction


def replace_jobs(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert jobs, each in place of an earlier one of its kind and key."""
    execute_rows(connection, insert_or_replace(jobs, connection.dialect.name), rows)


def end_jobs(connection: sa.Connection, kind: str, keys: Collection[str], owner: str) -> list[str]:
    """Delete the jobs of a kind that a process has; return the keys of those that it had."""
    parameters = {"the_kind": kind, "the_keys": list(keys), "the_owner": owner}
    return list(connection.scalars(_END_JOBS, parameters))


# Built once, because building it takes longer than executing it.
_END_JOBS = (
    sa.delete(jobs)
    .where(
        _c.kind == sa.bindparam("the_kind"),
        _c.key.in_(sa.bindparam("the_keys", expanding=True)),
        _c.owner == sa.bindparam("the_owner"),
    )
    .returning(_c.key)
)


def forget_jobs(connection: sa.Connection, kind: str, keys: Collection[str]) -> None:
    """Delete the jobs of a kind, whoever has them."""
    connection.execute(sa.delete(jobs).where(_c.kind == kind, _c.key.in_(keys)))


# ------------------------------------------------------------------ a thread that does them


class JobLoop:
    """The thread that does the jobs of one kind; it ends when there are none.

    Args:
        name: The name of the thread.
        do_due: Does what is due, until a time of the monotonic clock. It returns the seconds until
            more is due, and None if nothing is left. What it raises is warned of once; it is called
            again after a pause.
        failure: What cannot be done if it raises, for the warning.
    """

    def __init__(self, name: str, do_due: Callable[[float], float | None], failure: str) -> None:
        self._name = name
        self._do_due = do_due
        self._failure = failure
        self.leave_to_parent()
        leave_in_child(self)
        _loops.add(self)

    def leave_to_parent(self) -> None:
        """Start anew in a forked child: the thread and what it does are the parent's."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._requested_pass = self._completed_pass = 0
        self._wait_s: float | None = None
        self._backoff = Backoff()

    @property
    def is_idle(self) -> bool:
        """Whether no work was left at the last check."""
        return self._completed_pass == self._requested_pass and self._wait_s is None

    def wake(self, *, ends_pause: bool = False) -> None:
        """Have what is due done soon; never blocks for long.

        Args:
            ends_pause: Do it also while a failure is too recent.
        """
        with self._condition:
            if ends_pause:
                self._backoff.end_pause()
            self._requested_pass += 1
            self._condition.notify_all()
            if self._thread is None:
                with suppress(RuntimeError):  # the interpreter is shutting down: see `drain`
                    thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is left to be done.

        Args:
            timeout_s: Seconds to wait at most. It returns at once if what is left is due later.

        Returns:
            Whether nothing is left.
        """
        until = time.monotonic() + timeout_s
        while (wait_s := self._run_pass(until)) is not None:
            if wait_s >= until - time.monotonic():
                return False
            time.sleep(max(wait_s, _SHORTEST_REST_S))
        return True

    def do_due(self, until: float = float("inf")) -> float | None:
        """Do what is due; return the seconds until more is due, None if nothing is left."""
        try:
            with fork_gate:
                wait_s = self._do_due(until)
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            self._backoff.note_failure()
            warn_once(
                f"{self._failure}:{type(error).__name__}",
                "%s (%s); it is tried again",
                self._failure,
                describe_error(error),
            )
            return self._backoff.pause_left_s
        self._backoff.note_success()
        return wait_s

    def _run_pass(self, until: float) -> float | None:
        """Wait until the thread has looked for jobs once; return its wait until the next time."""
        self.wake(ends_pause=True)
        if self._thread is None:
            return self.do_due(until)
        with self._condition:
            number = self._requested_pass
            is_complete = self._condition.wait_for(
                lambda: self._completed_pass >= number, max(0.0, until - time.monotonic())
            )
            return self._wait_s if is_complete else float("inf")

    def _work(self) -> None:
        while True:
            with self._condition:
                number = self._requested_pass
            wait_s = self.do_due()
            with self._condition:
                self._completed_pass, self._wait_s = number, wait_s
                self._condition.notify_all()
                if wait_s is None and self._requested_pass == number:
                    self._thread = None
                    return
                self._condition.wait_for(self._is_requested, wait_s)

    def _is_requested(self) -> bool:
        return self._requested_pass > self._completed_pass and not self._backoff.is_pausing


def drain(loops: Collection[JobLoop], timeout_s: float) -> bool:
    """Wait until loops have nothing left to be done.

    Args:
        loops: The loops.
        timeout_s: Seconds to wait at most, in all.

    Returns:
        Whether nothing is left.
    """
    until = time.monotonic() + timeout_s
    for loop in loops:
        loop.wake(ends_pause=True)  # first, because one may have to wait for what hangs
    are_done = [loop.drain(max(0.0, until - time.monotonic())) for loop in loops]
    return all(are_done)


def drain_all(timeout_s: float) -> None:
    """Do what is left of the jobs of this process, for so many seconds at most."""
    drain([loop for loop in list(_loops) if not loop.is_idle], timeout_s)


_loops: weakref.WeakSet[JobLoop] = weakref.WeakSet()
