"""`TraceStore`: scored runs, written and found again."""

from __future__ import annotations

import copyreg
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, StoreError, UnknownRunError
from kp_langchain.gate import Rescored, leaves
from kp_langchain.run_keys import forms_of
from kp_langchain.score_log import log_rescored
from kp_langchain.store.confidence_models import ConfidenceModels
from kp_langchain.store.location import Location, locate
from kp_langchain.store.notes import redact_note, redactor_of
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.paused_runs import PausedRuns
from kp_langchain.store.rows import contribution_of, row_of, trace_key
from kp_langchain.store.stored_run import StoredRun, trace_of
from kp_langchain.store.unscored import Unscored
from kp_langchain.store.verdicts import unknown_run, write_verdict
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.run_keys import Kind
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store.database import Database
    from kp_langchain.store.sole_sender import LockFile

log = logging.getLogger("kp_langchain")

# How often a process that writes looks for bodies whose time is over.
_DROP_EXPIRED_EVERY_S = 600.0
# Stores that stay open although no handler uses them just now.
_KEPT_OPEN = 16


class TraceStore:
    """Scored runs in SQLite or PostgreSQL. Safe to use from several threads, and after a fork.

    Nothing is opened before it is first used; then the database is created, or migrated to this
    version's schema.

    Args:
        url: Path of a SQLite file, `sqlite:///path`, or `postgresql://user:password@host/database`;
            None for `Settings.database_url`, or else a file in the user's data folder.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: PostgreSQL is wanted and its driver is not installed.

    Every method that reads or writes raises `StoreError` when the database cannot be opened, read
    or written; a write is then undone as a whole. A file that is deleted, moved or replaced while
    in use, and tables that are dropped, are noticed by the next use, which logs a warning and goes
    on with what is there now, or creates it.
    """

    def __init__(self, url: str | Path | None = None) -> None:
        self._location = locate(url)
        self._begin()

    def _begin(self) -> None:
        self._lock = ForkSafeLock()
        self._database: Database | None = None
        self._was_open = False
        self._at_end: weakref.finalize[..., Any] | None = None
        self._sender_locks: dict[int, LockFile] = {}
        self._expired_dropped_at = float("-inf")
        _stores.add(self)

    @property
    def location(self) -> str:
        """Path or URL of the database, without the password."""
        return str(self._location)

    def __repr__(self) -> str:
        return f"TraceStore({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # To another process the store travels as its address, password included; connections stay
        # behind. What arrives there several times is one store.
        if type(self) is TraceStore:
            return (default_store, (self._location.url or self._location.path,))
        return (copyreg.__newobj__, (type(self),), self.__getstate__())  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _STAYS_BEHIND}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def load_drivers(self) -> None:
        """Import what the first use needs, which takes 0.2 s once a process; open nothing."""
        from kp_langchain.store import database, paused_queries, unscored_queries  # noqa: F401

        if self._location.path is None:
            with suppress(ImportError):  # opening it says what to install
                from kp_langchain.store import postgres  # noqa: F401

    def add(self, scored: ScoredTrace, *, registry: str | None = None) -> None:
        """Write one scored run, in place of an earlier one with the same trace id.

        What was said of the earlier one stays listed; the new one counts as it was scored.

        Args:
            scored: The run.
            registry: URL of the registry to contribute to. A trace that passed and is not
                `private` enters the outbox in the same transaction.
        """
        self.add_many([scored], registry=registry)

    def add_many(self, scored: Iterable[ScoredTrace], *, registry: str | None = None) -> None:
        """Write scored runs in one transaction: all of them or none.

        Args:
            scored: The runs.
            registry: As for `add`.
        """
        runs = list(scored)
        rows = [row_of(one) for one in runs]
        if not rows:
            return
        now = datetime.now(UTC)
        leaving = [
            contribution_of(row, registry, now)
            for one, row in zip(runs, rows, strict=True)
            if registry is not None and leaves(one) and row["body"] is not None
        ]
        verdicts = [
            (row["trace_id"], redact_note(one.verdict, level=row["privacy_level"]))
            for one, row in zip(runs, rows, strict=True)
            if one.verdict is not None
        ]
        from kp_langchain.store import (
            outbox_queries,
            run_queries,
            unscored_queries,
            verdict_queries,
        )

        with self._writing() as connection:
            run_queries.write(connection, rows)
            unscored_queries.remove(connection, [row["trace_id"] for row in rows])
            verdict_queries.add(connection, verdicts)
            if leaving:
                outbox_queries.enter(connection, leaving)

    @property
    def outbox(self) -> Outbox:
        """The contributions of this store."""
        return Outbox(self)

    @property
    def unscored(self) -> Unscored:
        """The finished runs of this store that wait for their score."""
        return Unscored(self)

    @property
    def paused(self) -> PausedRuns:
        """What the runs that wait for a human have recorded."""
        return PausedRuns(self)

    @property
    def models(self) -> ConfidenceModels:
        """What was learned from the verdicts in this store."""
        return ConfidenceModels(self)

    def get(self, id: str) -> StoredRun | None:  # noqa: A002  (the word of the command line too)
        """Return the run that `id` means, or None.

        Args:
            id: A trace id, a run id, or the first characters of either.

        Raises:
            UnknownRunError: More than one run is meant; the message lists them.
        """
        from kp_langchain.store import run_queries

        with self._reading() as connection:
            found = run_queries.find(connection, str(id))
        if len(found) > 1:
            raise _ambiguous(str(id), found)
        return self._stored(found[0]) if found else None

    def report_outcome(
        self,
        id: str,  # noqa: A002
        *,
        success: bool | None = None,
        confidence: float | None = None,
        note: str | None = None,
        source: str = "reported",
        at: datetime | None = None,
        registry: str | None = None,
    ) -> list[Rescored]:
        """Say how a run really ended, at any time after it was stored.

        The run is scored again: outcome and rules anew, novelty and weights as they were when it
        happened. A trace that passes now is contributed, if it is still kept; one that does not is
        withdrawn, from the registry too, which the next process that sends does. Each run of which
        that changes anything gives a log record `kp.trace_rescored`.

        Args:
            id: A trace id, a run id, or the first characters of either. The id of a run that
                several handlers recorded means all its traces.
            success: Whether it reached its goal.
            confidence: How sure one can be of its result, 0 to 1; by default 1.0 for a success
                and 0.0 for a failure.
            note: Why, in words; redacted before it is written.
            source: Who says so.
            at: When it was said; by default now. A verdict that is older than another one on the
                same run is written down, and changes nothing.
            registry: As for `add`.

        Returns:
            What changed, for each trace that was meant.

        Raises:
            ConfigError: Nothing is said, or a value cannot be used.
            UnknownRunError: There is no such run, or more than one; the message lists them.
        """
        verdict = Verdict(success, confidence, note, source, at)
        verdict = redact_note(verdict, redactor=redactor_of(self.location))
        runs = self.rejudge(id, verdict, registry=registry)
        changes = [Rescored.of(run) for run in runs]
        for change in changes:
            log_rescored(change, verdict.source, has_registry=registry is not None)
        return changes

    def rejudge(
        self,
        id: str,  # noqa: A002
        verdict: Verdict,
        *,
        registry: str | None = None,
    ) -> list[ScoredTrace]:
        """Write a verdict, and what the gate makes of the run. Redact and log nothing.

        Args:
            id: As for `report_outcome`.
            verdict: The verdict; its note is redacted already.
            registry: As for `add`.

        Returns:
            For each trace that was meant, the run as it is now; `previous` is the run as it was, or
            None if a newer verdict counts.

        Raises:
            UnknownRunError: There is no such run, or more than one; the message lists them.
        """
        from kp_langchain.store import run_queries

        with self._writing() as connection:
            rows = run_queries.find_to_judge(connection, str(id))
            if not rows:
                raise unknown_run(str(id), self.location)
            if len({row["run_id"] for row in rows}) > 1:
                raise _ambiguous(str(id), rows)
            return [write_verdict(connection, row, verdict, registry) for row in rows]

    def verdicts(self, trace_id: str) -> list[Verdict]:
        """Return what was said of a run, the oldest first; `trace_id` is its trace's whole id."""
        from kp_langchain.store import run_queries, verdict_queries

        with self._reading() as connection:
            of_each = (
                verdict_queries.of_trace(connection, trace_key(one))
                for one in run_queries.possible_ids(trace_id)
            )
            found: list[dict[str, Any]] = next(filter(None, of_each), [])
        return [Verdict(**row) for row in found]

    def runs(
        self,
        *,
        domain: str | None = None,
        decision: str | None = None,
        min_score: float | None = None,
        session: str | None = None,
        thread: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        name: str | None = None,
        limit: int | None = 50,
        offset: int = 0,
        newest_first: bool = True,
    ) -> list[StoredRun]:
        """Return runs by the time they began.

        Args:
            domain: Only this domain (exact name).
            decision: Only `contributed` or only `below_threshold`.
            min_score: Only runs with at least this score, 0 to 1.
            session: Only runs of this session; as it was given to the run, or as the store has it.
            thread: Only runs in this LangGraph thread; the same.
            user: Only runs for this user; the same. The question is hashed as the user was.
            tag: Only runs with this tag; the same.
            name: Only runs of this name; the same.
            limit: At most so many; None for all.
            offset: Leave out so many at the beginning.
            newest_first: Or the oldest first.

        Raises:
            ConfigError: `limit` or `offset` is negative.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise ConfigError(f"limit={limit} and offset={offset} must not be negative")
        from kp_langchain.store import run_queries

        keys = _forms(session=session, thread=thread, user=user, tag=tag, name=name)
        which = run_queries.Filter(domain, decision, min_score, keys)
        with self._reading() as connection:
            found = run_queries.select_runs(
                connection, which, limit=limit, offset=offset, newest_first=newest_first
            )
        return [self._stored(run) for run in found]

    def count(
        self,
        *,
        domain: str | None = None,
        decision: str | None = None,
        min_score: float | None = None,
        session: str | None = None,
        thread: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        name: str | None = None,
    ) -> int:
        """Return how many runs there are; the filters are those of `runs`."""
        from kp_langchain.store import run_queries

        keys = _forms(session=session, thread=thread, user=user, tag=tag, name=name)
        with self._reading() as connection:
            return run_queries.count(
                connection, run_queries.Filter(domain, decision, min_score, keys)
            )

    def traces(
        self,
        *,
        domain: str | None = None,
        decision: str | None = None,
        min_score: float | None = None,
        session: str | None = None,
        thread: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        name: str | None = None,
        newest_first: bool = True,
    ) -> Iterator[ReasoningTrace]:
        """Yield the traces kept for good, a few at a time; the filters are those of `runs`.

        Those that are kept for some days only, for the sake of a verdict, are not among them.

        No transaction stays open between two traces, so a slow reader holds nobody up; a run that
        is added meanwhile appears if its place in the order is still to come.
        """
        from kp_langchain.store import run_queries

        keys = _forms(session=session, thread=thread, user=user, tag=tag, name=name)
        which = run_queries.Filter(domain, decision, min_score, keys)
        after: tuple[datetime, str] | None = None
        while True:
            with self._reading() as connection:
                page = run_queries.page_of_bodies(
                    connection, which, after=after, newest_first=newest_first
                )
            if not page:
                return
            for created_at, trace_id, body in page:
                after = (created_at, trace_id)
                yield trace_of(body, trace_id)

    def close(self) -> None:
        """Release the connections. Using the store again opens it again."""
        with self._lock:
            self._release()
            self._was_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stored(self, columns: dict[str, Any]) -> StoredRun:
        columns["tags"] = columns["tags"] or []
        return StoredRun(**columns, read_body=self._read_body)

    def _read_body(self, trace_id: str) -> dict[str, Any] | None:
        from kp_langchain.store import run_queries

        with self._reading() as connection:
            return run_queries.body(connection, trace_id)

    def _open(self) -> sa.Engine:
        return self._opened().engine

    def _opened(self) -> Database:
        from kp_langchain.store import database, driver_errors

        with self._lock, driver_errors.as_store_errors(self._location, "open"):
            if self._database is not None:
                self._let_go_if_gone(self._database)
            if self._database is None:
                self._database = database.open_database(self._location)
                self._at_end = weakref.finalize(self, self._database.engine.dispose)
                if self._database.is_new and self._was_open:
                    self._warn("lost its tables; what they held is gone, and new ones are created")
                self._was_open = True
            return self._database

    def _is_gone(self) -> bool:
        database = self._database
        return database is not None and database.what_is_gone() is not None

    def _let_go_if_gone(self, database: Database) -> None:
        what = database.what_is_gone()
        if what is None:
            return
        self._warn(f"{what}; it is opened or created anew, without what went with that")
        if not database.abandon():
            self._warn(f"{what}; what was written last is lost, because another process reads it")
        self._release()
        self._was_open = False

    def _warn(self, what: str) -> None:
        with suppress(Exception):  # a handler or filter of the host's
            log.warning("the trace store at %s was in use when it %s", self._location, what)

    def _release(self) -> None:
        if self._at_end is not None:
            self._at_end()
        self._database = self._at_end = None

    @contextmanager
    def _using(self, doing: str) -> Iterator[Database]:
        from kp_langchain.store import driver_errors

        database = self._opened()
        with driver_errors.as_store_errors(self._location, doing):
            try:
                yield database
            except Exception as error:
                if driver_errors.is_missing_table(error):
                    with self._lock:
                        if self._database is database:
                            self._release()  # opening it again creates them, if all are gone
                raise

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._using("read") as database, database.engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        from kp_langchain.store import run_queries
        from kp_langchain.store.database import writing

        with self._using("write") as database:
            self._check_sender_lock()
            with writing(database.engine) as connection:
                now = time.monotonic()
                if now >= self._expired_dropped_at + _DROP_EXPIRED_EVERY_S:
                    self._expired_dropped_at = now
                    if run_queries.drop_expired_bodies(connection):
                        self._expired_dropped_at = float("-inf")
                yield connection
            gone = database.what_is_gone()
            if gone is not None:
                raise StoreError(
                    f"cannot write the trace store at {self._location}: while it was written to, it"
                    f" {gone}; write it again"
                )

    @contextmanager
    def _sending(self, timeout_s: float) -> Iterator[bool]:
        from kp_langchain.store import driver_errors, sole_sender

        engine = self._open()
        path = self._location.path
        with ExitStack() as stack:
            with driver_errors.as_store_errors(self._location, "write"):
                if path is None:
                    on_server = sole_sender.sole_sender_of_server(engine, timeout_s)
                    held = stack.enter_context(on_server)
                else:
                    lock = stack.enter_context(sole_sender.sole_sender_of_file(path, timeout_s))
                    held = lock is not None
                    if lock is not None:
                        thread = threading.get_ident()
                        self._sender_locks[thread] = lock
                        stack.callback(self._sender_locks.pop, thread, None)
            yield held

    def _check_sender_lock(self) -> None:
        lock = self._sender_locks.get(threading.get_ident())
        if lock is not None and lock.is_gone():
            raise StoreError(
                f"cannot go on sending from {self._location}: {lock.path} was deleted, which kept "
                "other processes from sending at the same time; try again"
            )

    def _forget_connections(self) -> None:
        """In a forked child: leave the parent's connections alone and begin with none."""
        if self._at_end is not None:
            self._at_end.detach()
        if self._database is not None:
            _inherited.append(self._database.engine)
        self._database = self._at_end = None
        self._sender_locks = {}


_STAYS_BEHIND = frozenset(
    ("_lock", "_database", "_was_open", "_at_end", "_sender_locks", "_expired_dropped_at")
)


def _forms(**values: str | None) -> dict[str, list[str]]:
    """Return, by key, the forms in which the value to look for may stand in a row."""
    asked = {kind: value for kind, value in values.items() if value is not None}
    if not asked:
        return {}
    rules = Settings.current().redaction  # whose `pseudonym_key` may be that of the hashes
    return {kind: forms_of(cast("Kind", kind), value, rules) for kind, value in asked.items()}


def _ambiguous(wanted: str, found: Sequence[dict[str, Any]]) -> UnknownRunError:
    lines = "".join(
        f"\n  {run['trace_id']}  {run['created_at']:%Y-%m-%d %H:%M} UTC  {run['domain']}"
        for run in found
    )
    return UnknownRunError(f"{wanted!r} may mean several runs; give more of one's id:{lines}")


def default_store(url: str | Path | None = None) -> TraceStore:
    """Return the store at `url` that this process shares, so that handlers share its connections.

    The 16 used last stay open, until their file is gone; `close` releases their connections.

    Args:
        url: As for `TraceStore`, which also says what is raised.
    """
    location = locate(url)
    with _shared_lock:
        store = _shared.get(location)
        if store is None:
            store = _shared[location] = TraceStore(location.url or location.path)
        # Also those of temporary folders that are gone; who still uses one is told so by it.
        gone = [place for place, other in _recent.items() if other._is_gone()]  # noqa: SLF001
        dropped = [_recent.pop(place) for place in gone]
        _recent[location] = store
        _recent.move_to_end(location)
        if len(_recent) > _KEPT_OPEN:
            dropped.append(_recent.popitem(last=False)[1])
    dropped.clear()  # which closes them, unless they are in use: outside of the lock
    return store


_shared: weakref.WeakValueDictionary[Location, TraceStore] = weakref.WeakValueDictionary()
_recent: OrderedDict[Location, TraceStore] = OrderedDict()
_shared_lock = ForkSafeLock()
_stores: weakref.WeakSet[TraceStore] = weakref.WeakSet()
# Engines of the parent process. SQLite forbids even closing a connection on the other side of a
# fork, so they are held here for good instead of being disposed of.
_inherited: list[sa.Engine] = []


def _after_fork() -> None:
    for store in list(_stores):
        store._forget_connections()  # noqa: SLF001  (this module's own class)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
