"""`TraceStore`: stores scored runs and finds them again."""

from __future__ import annotations

import copyreg
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import ConfigError
from kp_langchain.gate import Rescored
from kp_langchain.gate.check import WINDOW, JudgedRun
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.novelty_memory import check_count
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS
from kp_langchain.store import deletion, run_queries
from kp_langchain.store.confidence_models import ConfidenceModels
from kp_langchain.store.database import Database
from kp_langchain.store.journal import Journal
from kp_langchain.store.location import Location, locate
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.pulled_queries import PulledUnits
from kp_langchain.store.recall_tasks import RecallTasks
from kp_langchain.store.rows import ambiguous_id, check_page, trace_key
from kp_langchain.store.run_columns import (
    Deletion,
    Pruning,
    StoredRun,
    log_rescored,
    trace_of,
)
from kp_langchain.store.side_tables import ExternalTraces, PausedRuns, ShownTraces
from kp_langchain.store.verdicts import (
    judge_stored,
    redact_note,
    stored_as_scored,
)
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import Gate
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store.run_columns import RunFilters, Sort


class TraceStore:
    """Scored runs in SQLite or PostgreSQL. Safe to use from several threads, and after a fork.

    Nothing is opened before the first use. That creates the database.
    One of another schema version is refused.

    Every method that reads or writes raises `StoreError` when the database cannot be opened, read
    or written; a write is then undone as a whole.

    The file may be deleted, moved or replaced while it is in use. The next use notices that and
    logs a warning. It continues with what is there now, or creates what is missing. A SQLite file
    that is moved while in use, with a link in its place, is not noticed: other processes do not see
    what is in the old `-wal`.

    Args:
        url: Path of a SQLite file, `sqlite:///path`, or `postgresql://user:password@host/database`;
            None for `Settings.database_url`, or else a file in the user's data folder.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and its driver is not installed.
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

    # ------------------------------------------------------------------ parts

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
        return ExternalTraces(self._database)

    @property
    def recall_tasks(self) -> RecallTasks:
        """The tasks of this store's kept runs, as recall compares them with a new one."""
        return RecallTasks(self._database)

    @property
    def shown(self) -> ShownTraces:
        """Which kept traces the runs of this store were shown as examples."""
        return ShownTraces(self._database)

    @property
    def pulled(self) -> PulledUnits:
        """The units of registries in this store, and which of them runs may be shown."""
        return PulledUnits(self._database)

    @property
    def models(self) -> ConfidenceModels:
        """The confidence models of this store."""
        return ConfidenceModels(self._database)

    @property
    def remembered(self) -> StoredMemory:
        """The traces of this store that novelty is measured against."""
        return StoredMemory(self._database)

    def compact(self) -> bool:
        """Give back the room of what was deleted, so that no file has its text any more.

        SQLite writes the file anew, which takes as much room again meanwhile; others may read and
        write before and after. PostgreSQL runs `VACUUM`, which makes the room free for new rows.

        Returns:
            Whether that is complete. If not, other processes kept reading an earlier state of the
            file; compact it again when they have ended.

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

    # ------------------------------------------------------------------ runs

    def add(self, scored: ScoredTrace, *, registry: str | None = None) -> None:
        """Write one scored run, in place of an earlier one with the same trace id.

        Verdicts on the earlier one stay listed, and do not change the new one's score.

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
        runs = [replace(one, verdict=one.verdict and redact_note(one.verdict)) for one in scored]
        self.journal.add([replace(one, registry=registry, is_remembered=False) for one in runs])

    def novelty_memory(self, *, max_remembered: int | None = None) -> StoredMemory:
        """Return a novelty memory in this store, for `Scorer(cache=...)`.

        It keeps the embedding of a trace, a hash of its text, ids, domain and time. A handler
        without a `scorer` has one already. All memories of a store share what they remember, so
        give them the same size: what is beyond it is deleted.

        Args:
            max_remembered: How many traces it remembers; 1,000 by default.

        Raises:
            ConfigError: `max_remembered` is unusable.
        """
        check_count("max_remembered", max_remembered)
        return StoredMemory(self._database, max_remembered or DEFAULT_MAX_ELEMENTS)

    def get(self, id: str) -> StoredRun | None:  # noqa: A002  (the word of the command line too)
        """Return the run that `id` identifies, or None.

        Args:
            id: A trace id, a run id, or the first characters of either.

        Raises:
            UnknownRunError: It fits more than one run; the message lists them.
        """
        with self._database.reading() as connection:
            matches = run_queries.find(connection, str(id))
            if len(matches) > 1:
                raise ambiguous_id(str(id), matches)
            return self._stored_run(matches[0]) if matches else None

    def report_outcome(
        self,
        id: str,  # noqa: A002
        *,
        success: bool | None = None,
        confidence: float | None = None,
        note: str | None = None,
        source: str = "reported",
        at: datetime | None = None,
        by_model: bool = False,
        registry: str | None = None,
        tools: Collection[str] = (),
    ) -> list[Rescored]:
        """Record how a run really ended, at any time after it was stored.

        The run is scored again, with the new outcome and the rules that follow from it; novelty and
        weights stay as they were. A trace that passes now is contributed, if it is still kept. One
        that no longer passes is withdrawn; the next process that sends also withdraws it from the
        registry. Each run that changes is logged as `kp.trace_rescored`.

        Args:
            id: A trace id, a run id, or the first characters of either. The id of a run that
                several handlers recorded identifies all its traces.
            success: Whether the run reached its goal.
            confidence: The confidence in its result, 0 to 1; by default 1.0 for a success and 0.0
                for a failure.
            note: The reason, in words; redacted before it is written.
            source: Who gives the verdict.
            at: When the verdict was given; by default now. One that is older than another verdict
                on the same run is stored, and changes nothing.
            by_model: Whether a language model gave it. Where there is a verdict that none gave, it
                is stored, and changes nothing.
            registry: As for `add`.
            tools: The names of the tools that the next process that sends scores there is to send
                the new one to.

        Returns:
            What changed, for each trace that `id` identifies.

        Raises:
            ConfigError: Neither success nor confidence is given, or a value cannot be used.
            UnknownRunError: `id` fits no run, or several; the message lists them.
        """
        verdict = Verdict(success, confidence, note, source, at, by_model)
        verdict = redact_note(verdict)
        runs = judge_stored(
            self._database,
            str(id),
            verdict,
            jobs=self.journal.jobs,
            registry=registry,
            tools=tools,
        )
        changes = [Rescored.of(run) for run in runs]
        for change in changes:
            with suppress(Exception):  # the host's logging; the verdict is stored
                log_rescored(change, verdict.source)
        return changes

    def scored(self, trace_id: str) -> ScoredTrace | None:
        """Return a run as a score receiver gets it, with where other tracers recorded it.

        Args:
            trace_id: The whole id of its trace.

        Returns:
            None if there is no such run. Without a body, its trace has no steps.
        """
        return stored_as_scored(self._database, trace_id)

    def verdicts(self, trace_id: str) -> list[Verdict]:
        """Return the verdicts on a run, the oldest first.

        Args:
            trace_id: The whole id of its trace.
        """
        key = trace_key(trace_id)
        return self.verdicts_by_trace([key]).get(key, [])

    def verdicts_by_trace(self, trace_ids: Collection[str]) -> dict[str, list[Verdict]]:
        """Return the verdicts on several runs by trace id, those on each the oldest first.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run without a verdict is left out.
        """
        with self._database.reading() as connection:
            return run_queries.verdicts_on(connection, trace_ids)

    def body_texts(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of several runs by trace id, as the text of their JSON.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run whose trace is not kept is left out.
        """
        with self._database.reading() as connection:
            return run_queries.body_texts(connection, trace_ids)

    def runs(
        self,
        *,
        sort: Sort = "time",
        limit: int | None = 50,
        offset: int = 0,
        newest_first: bool = True,
        **filters: Unpack[RunFilters],
    ) -> list[StoredRun]:
        """Return runs in their order.

        Args:
            sort: By what they are ordered: the newest, the highest score, or the highest novelty
                comes first.
            limit: At most so many; None for all.
            offset: Skip so many at the beginning.
            newest_first: If False, the order is reversed.
            filters: As `RunFilters` explains them.

        Raises:
            ConfigError: `limit` or `offset` is negative.
        """
        check_page(limit, offset)
        conditions = run_queries.conditions_of(filters)
        with self._database.reading() as connection:
            rows = run_queries.select_runs(
                connection,
                conditions,
                sort=sort,
                limit=limit,
                offset=offset,
                newest_first=newest_first,
            )
            return [self._stored_run(row) for row in rows]

    def count(self, **filters: Unpack[RunFilters]) -> int:
        """Return the number of runs.

        Args:
            filters: As `RunFilters` explains them.
        """
        conditions = run_queries.conditions_of(filters)
        with self._database.reading() as connection:
            return run_queries.count(connection, conditions)

    def figures(self, **filters: Unpack[RunFilters]) -> dict[str, list[Any]]:
        """Return the figures of runs as columns of equal length, for counting over many.

        Args:
            filters: As `RunFilters` explains them.

        Returns:
            The columns by name, such as a DataFrame takes them, the oldest run first: `trace_id`,
            `domain`, `decision`, `gate`, `score`, `worth`, `threshold`, `recovered_errors` and
            `novelty_source` as `StoredRun` has them; `is_near_duplicate` and `is_withheld`; each
            dimension of the score and, with `_weight` appended, its weight (0 to 1, None if
            unknown); `rules`, `redactions` and `dropped` as JSON text; and `label`, whether the run
            succeeded by the newest verdict that states it, None without one.

        Raises:
            StoreError: The store cannot be read.
        """
        conditions = run_queries.conditions_of(filters)
        with self._database.reading() as connection:
            return run_queries.figures(connection, conditions)

    def recent_values(
        self, domain: str, gate: Gate = "score", *, since: datetime | None = None
    ) -> list[JudgedRun]:
        """Return what the gate saw of a domain's last 300 runs when it judged them.

        Later verdicts change neither value nor fate here. Runs that another gate judged are left
        out.

        Args:
            domain: The domain (exact name).
            gate: By score or by worth.
            since: Only runs that began at this time or later.

        Returns:
            Score or worth (0 to 1), whether the run passed, and the pass rate of that time, the
            oldest run first.
        """
        with self._database.reading() as connection:
            return run_queries.recent_values(
                connection, domain, gate=gate, since=since, limit=WINDOW
            )

    def traces(
        self,
        *,
        newest_first: bool = True,
        with_expiring: bool = False,
        **filters: Unpack[RunFilters],
    ) -> Iterator[ReasoningTrace]:
        """Yield the traces that are kept for good, read a page at a time.

        No transaction stays open between two traces, so a slow reader blocks no writer; a run that
        is added meanwhile appears if its place in the order is still to come.

        Args:
            newest_first: Whether the runs that began last come first.
            with_expiring: Whether to yield also traces that are kept only for some days, to await a
                verdict.
            filters: As `RunFilters` explains them.

        Raises:
            StoreError: The database cannot be read, or a body holds no trace.
        """
        for trace, _ in self.traces_with_namespace(
            newest_first=newest_first, with_expiring=with_expiring, **filters
        ):
            yield trace

    def traces_with_namespace(
        self,
        *,
        newest_first: bool = True,
        with_expiring: bool = False,
        **filters: Unpack[RunFilters],
    ) -> Iterator[tuple[ReasoningTrace, str | None]]:
        """Yield what `traces` does, each with the namespace of its run as the store has it."""
        conditions = run_queries.conditions_of(filters)
        select = run_queries.select_bodies(conditions, with_expiring=with_expiring)
        for row in self._paged(select, newest_first=newest_first, page_size=20):
            yield trace_of(row["trace"], row["trace_id"]), row["namespace"]

    def plan_deletion(self, *ids: str, keep: int = 0, **filters: Unpack[RunFilters]) -> Deletion:
        """Return what `delete` would delete, for `carry_out`. Delete nothing.

        Args:
            ids: As for `delete`.
            keep: The newest so many of the matching runs stay.
            filters: As for `delete`.

        Raises:
            ConfigError: There are neither ids nor conditions, or both.
            UnknownRunError: An id fits no run, or several.
        """
        if keep < 0:
            raise ConfigError(f"keep={keep} must not be negative")
        has_conditions = keep or run_queries.selecting(filters)
        if bool(ids) == bool(has_conditions):
            raise ConfigError(
                "a deletion needs either ids or conditions; "
                "to delete every run: until=datetime.now(UTC)"
            )
        with self._database.reading() as connection:
            if ids:
                return deletion.plan_by_ids(connection, map(str, ids), self.location)
            return deletion.plan(connection, filters, keep=keep)

    def carry_out(self, plan: Deletion) -> None:
        """Delete the runs that `plan_deletion` returned; see `delete`."""
        deletion.carry_out(self._database, plan)

    def delete(self, *ids: str, **filters: Unpack[RunFilters]) -> Deletion:
        """Delete runs for good: traces, scores, verdicts, tags, and what novelty remembers of them.

        Each transaction deletes some hundreds, so that other writers need not wait for long. Other
        processes that use the store forget the runs within a minute. What a registry has of them is
        withdrawn by the next process that sends. `compact` removes their text from the file, too.

        Args:
            ids: Trace ids, run ids, or the first characters of either. The id of a run that several
                handlers recorded identifies all its traces.
            filters: Without ids: delete the runs that match, as `RunFilters` explains it. Runs that
                are not scored yet, or wait for a human, match by domain, time and keys alone.

        Returns:
            What was deleted.

        Raises:
            ConfigError: There are neither ids nor conditions, or both.
            UnknownRunError: An id fits no run, or several. Nothing was deleted then.
        """
        plan = self.plan_deletion(*ids, **filters)
        self.carry_out(plan)
        return plan

    def prune(self, *, max_remembered: int | None = None) -> Pruning:
        """Remove what the store no longer needs: expired traces and pauses, and what is left over.

        Args:
            max_remembered: How many traces novelty is measured against; 1,000 by default. Those
                beyond that are forgotten.

        Raises:
            ConfigError: `max_remembered` is unusable.
        """
        memory = self.novelty_memory(max_remembered=max_remembered)
        return Pruning(
            deletion.drop_expired_traces(self._database),
            self.paused.drop_expired(),
            deletion.drop_finished_contributions(self._database),
            memory.prune_all(),
        )

    def _stored_run(self, row: dict[str, Any]) -> StoredRun:
        breakdown = ScoreBreakdown.from_dict(row.pop("breakdown"))
        return StoredRun(**row, breakdown=breakdown, read_trace=self._read_trace)

    def _read_trace(self, trace_id: str) -> ReasoningTrace | None:
        with self._database.reading() as connection:
            rows = run_queries.whole_rows(connection, [trace_id])
        body = rows[0]["trace"] if rows else None
        return None if body is None else trace_of(body, trace_id)

    def _paged(
        self, select: sa.Select[Any], *, newest_first: bool, page_size: int
    ) -> Iterator[dict[str, Any]]:
        """Yield rows a page at a time; no transaction stays open between two of them."""
        after: tuple[datetime, str] | None = None
        while True:
            with self._database.reading() as connection:
                page = run_queries.page_of(
                    connection, select, after=after, newest_first=newest_first, limit=page_size
                )
            if not page:
                return
            after = page[-1]["created_at"], page[-1]["trace_id"]
            yield from page


# ------------------------------------------------------------------ shared stores

# Shared stores that stay open although no handler uses them at present.
_MOST_KEPT_OPEN = 16


def default_store(url: str | Path | None = None) -> TraceStore:
    """Return the store at `url` that this process shares, so that handlers share its connections.

    The 16 that were used last stay open; `close` releases a store's connections.

    Args:
        url: As for `TraceStore`.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and its driver is not installed.
    """
    location = locate(url)
    with _lock:
        store = _stores.get(location)
        if store is None:
            store = _stores[location] = TraceStore(location.url or location.path)
        if store in _recent:
            _recent.remove(store)
        _recent.append(store)
    return store


_stores: weakref.WeakValueDictionary[Location, TraceStore] = weakref.WeakValueDictionary()
_recent: deque[TraceStore] = deque(maxlen=_MOST_KEPT_OPEN)
_lock = ForkSafeLock()


def _reduce(store: TraceStore) -> tuple[object, ...]:
    """Pickle a store as its address, password included.

    All its copies that reach a process are one store there.
    """
    location = store.database.location
    return default_store, (location.url or location.path,)


# A subclass is pickled with its state, as any object is.
copyreg.pickle(TraceStore, _reduce)  # type: ignore[arg-type]
