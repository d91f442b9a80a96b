"""`TraceStore`: stores scored runs and finds them again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from kp_langchain.errors import ConfigError
from kp_langchain.gate import Rescored
from kp_langchain.gate.check import WINDOW, JudgedRun
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS
from kp_langchain.scoring.scorer_options import check_bounds
from kp_langchain.store import deletion, sql
from kp_langchain.store.deletion import Deletion, Pruning
from kp_langchain.store.rows import check_page, trace_key
from kp_langchain.store.run_columns import StoredRun, trace_of
from kp_langchain.store.run_filters import RunSummary
from kp_langchain.store.score_log import log_rescored
from kp_langchain.store.store_parts import StoreParts
from kp_langchain.store.stored_memory import StoredMemory
from kp_langchain.store.verdicts import (
    ambiguous_id,
    judge_stored,
    redact_note,
    redactor_of,
    stored_as_scored,
)
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.domain_policy import Gate
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store.run_filters import RunFilters, Sort


class TraceStore(StoreParts):
    """Scored runs in SQLite or PostgreSQL. Safe to use from several threads, and after a fork.

    Nothing is opened before the first use. That creates the database.
    One of another schema version is refused.

    Every method that reads or writes raises `StoreError` when the database cannot be opened, read
    or written; a write is then undone as a whole.

    The file may be deleted, moved or replaced while it is in use, and tables may be dropped. The
    next use notices that and logs a warning. It continues with what is there now, or creates what
    is missing.

    Args:
        url: Path of a SQLite file, `sqlite:///path`, or `postgresql://user:password@host/database`;
            None for `Settings.database_url`, or else a file in the user's data folder.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and its driver is not installed.
    """

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
        self.journal.add([replace(one, registry=registry) for one in scored])

    def novelty_memory(
        self,
        *,
        max_remembered: int | None = None,
        ttl_ms: float | None = None,
        domain: str | None = None,
    ) -> StoredMemory:
        """Return a novelty memory in this store, for `Scorer(cache=...)`.

        It keeps the embedding of a trace, a hash of its text, ids, domain and time. A handler
        without a `scorer` has one already. All memories of a store share what they remember, so
        give them the same bounds: what is beyond them is deleted.

        Args:
            max_remembered: How many traces it remembers; 1,000 by default.
            ttl_ms: Milliseconds after which a trace is forgotten; None for when newer ones need the
                room.
            domain: Remember apart from all others, for this domain; None for the memory of all.

        Raises:
            ConfigError: A bound is unusable.
        """
        check_bounds(max_remembered, ttl_ms)
        size = max_remembered or DEFAULT_MAX_ELEMENTS
        return StoredMemory(self._database, domain or "", size, ttl_ms)

    def get(self, id: str) -> StoredRun | None:  # noqa: A002  (the word of the command line too)
        """Return the run that `id` identifies, or None.

        Args:
            id: A trace id, a run id, or the first characters of either.

        Raises:
            UnknownRunError: It fits more than one run; the message lists them.
        """
        with self._database.reading() as connection:
            matches = sql.run_queries.find(connection, str(id))
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

        Returns:
            What changed, for each trace that `id` identifies.

        Raises:
            ConfigError: Neither success nor confidence is given, or a value cannot be used.
            UnknownRunError: `id` fits no run, or several; the message lists them.
        """
        verdict = Verdict(success, confidence, note, source, at, by_model)
        if verdict.note is not None:
            verdict = redact_note(verdict, redactor=redactor_of(self.location))
        runs = judge_stored(self._database, str(id), verdict, registry=registry)
        changes = [Rescored.of(run) for run in runs]
        for change in changes:
            with suppress(Exception):  # the host's logging; the verdict is stored
                log_rescored(change, verdict.source)
        return changes

    def scored(self, trace_id: str) -> ScoredTrace | None:
        """Return a run as sinks receive it, with where other tracers recorded it.

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
        ids = [trace_key(id_) for id_ in sql.run_queries.possible_ids(trace_id)]
        by_trace = self.verdicts_by_trace(ids)
        return next((by_trace[id_] for id_ in ids if id_ in by_trace), [])

    def verdicts_by_trace(self, trace_ids: Collection[str]) -> dict[str, list[Verdict]]:
        """Return the verdicts on several runs by trace id, those on each the oldest first.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run without a verdict is left out.
        """
        with self._database.reading() as connection:
            by_trace = sql.run_queries.verdicts_on(connection, trace_ids)
        return {trace_id: [Verdict(**row) for row in rows] for trace_id, rows in by_trace.items()}

    def body_texts(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of several runs by trace id, as the text of their JSON.

        The text is as the database has it: reading it as JSON fails if it is damaged.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run whose trace is not kept is left out.
        """
        with self._database.reading() as connection:
            return sql.run_queries.body_texts(connection, trace_ids)

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
        conditions = sql.run_lists.conditions_of(filters)
        with self._database.reading() as connection:
            rows = sql.run_lists.select_runs(
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
        conditions = sql.run_lists.conditions_of(filters)
        with self._database.reading() as connection:
            return sql.run_lists.count(connection, conditions)

    def summaries(self, **filters: Unpack[RunFilters]) -> Iterator[RunSummary]:
        """Yield the figures of runs, for counting over many; the oldest first.

        They are read a page at a time, and no transaction stays open between two of them. Runs are
        left out whose figures another program has damaged.

        Args:
            filters: As `RunFilters` explains them.
        """
        conditions = sql.run_lists.conditions_of(filters)
        with self._database.reading() as connection:
            labels = sql.run_lists.labels(connection)
        after: tuple[datetime, str] | None = None
        while True:
            with self._database.reading() as connection:
                page = sql.run_lists.page_of_summaries(connection, conditions, after=after)
            if not page:
                return
            after = page[-1]["created_at"], page[-1]["trace_id"]
            summaries = (RunSummary(**row, label=labels.get(row["trace_id"])) for row in page)
            yield from (one for one in summaries if one.is_sound)

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
            return sql.run_lists.recent_values(
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
        conditions = sql.run_lists.conditions_of(filters)
        after: tuple[datetime, str] | None = None
        while True:
            with self._database.reading() as connection:
                page = sql.run_lists.page_of_bodies(
                    connection,
                    conditions,
                    after=after,
                    newest_first=newest_first,
                    with_expiring=with_expiring,
                )
            if not page:
                return
            for created_at, trace_id, body, namespace in page:
                after = (created_at, trace_id)
                yield trace_of(body, trace_id), namespace

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
        if not ids:
            return deletion.plan(self._database, filters, keep=keep)
        if keep or sql.run_lists.selecting(filters):
            raise ConfigError("a deletion takes ids or conditions, not both")
        return deletion.plan_by_ids(self._database, [str(one) for one in ids])

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

    def prune(self, *, max_remembered: int | None = None, ttl_ms: float | None = None) -> Pruning:
        """Remove what the store no longer needs: expired traces and pauses, and what is left over.

        Args:
            max_remembered: How many traces of each embedder novelty is measured against; 1,000 by
                default. Those beyond that are forgotten.
            ttl_ms: Milliseconds after which such a trace is forgotten; None for never.

        Raises:
            ConfigError: A bound is unusable.
        """
        check_bounds(max_remembered, ttl_ms)
        size = max_remembered or DEFAULT_MAX_ELEMENTS
        return deletion.prune(self._database, StoredMemory(self._database, "", size, ttl_ms))

    def _stored_run(self, row: dict[str, Any]) -> StoredRun:
        breakdown = row.pop("breakdown")
        return StoredRun(**row, breakdown_json=breakdown, read_body=self._read_body)

    def _read_body(self, trace_id: str) -> dict[str, Any] | None:
        with self._database.reading() as connection:
            return sql.run_queries.body(connection, trace_id)
