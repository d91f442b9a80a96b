"""`TraceStore`: stores scored runs and finds them again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import sqlalchemy as sa

from kp_langchain.gate import Rescored
from kp_langchain.gate.check import JudgedRun
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store import run_queries, side_tables
from kp_langchain.store.confidence_models import ConfidenceModels
from kp_langchain.store.connections import compact
from kp_langchain.store.database import Database
from kp_langchain.store.deletion import Deletion, Deletions
from kp_langchain.store.journal import Journal
from kp_langchain.store.location import locate
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.own_patterns import OwnPatterns
from kp_langchain.store.pulled import PulledUnits
from kp_langchain.store.recall_effects import RecallEffects
from kp_langchain.store.recall_tasks import RecallTasks
from kp_langchain.store.rows import trace_key, with_outcome_of
from kp_langchain.store.run_columns import StoredRun, trace_of, usage_in
from kp_langchain.store.run_days import RunDays, count_runs
from kp_langchain.store.run_log import log_rescored
from kp_langchain.store.selection import (
    MATCHES_SHOWN,
    RunFilters,
    Sort,
    ambiguous_id,
    beyond,
    check_page,
    conditions_of,
    find_by_id,
    order_by,
    selecting,
)
from kp_langchain.store.side_tables import ExternalTraces, PausedRuns, ShownTraces
from kp_langchain.store.tables import runs
from kp_langchain.store.task_runs import TaskRuns
from kp_langchain.store.verdicts import judge_stored, load_run, redact_note
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.calibration.failure_signs import SignedRun
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import Gate
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store.run_figures import Figures
    from kp_langchain.usage import ModelCall, Usage

# Thousands of rows at once cost the garbage collector as much as it takes to read them.
_ROWS_AT_ONCE, _TRACES_AT_ONCE = 100, 20
_c = runs.c


class TraceStore:
    """Scored runs in SQLite or PostgreSQL. Safe to use from several threads, and after a fork.

    Nothing is opened before the first use. That creates the database, or brings one of an earlier
    schema version up to this one. One of a version that this package cannot use is refused.
    Pickled, it is an address, password included.

    Every method that reads or writes raises `StoreError` when the database cannot be opened, read
    or written; a write is then undone as a whole.

    The file may be deleted, moved or replaced while it is in use. The next use notices that and
    logs a warning. It continues with what is there now, or creates what is missing. A link to the
    moved file in its place is not noticed: other processes then miss what is in the old `-wal`.

    Args:
        url: Path of a SQLite file, `sqlite:///path`, or `postgresql://user:password@host/database`;
            None for `Settings.database_url`, or else a file in the user's data folder.

    Attributes:
        database: The database.
        journal: The writes of finished runs, and the runs that wait for being judged.
        days: The figures of all runs, by domain.
        outbox: What goes to registries.
        paused: The runs that wait for a human.
        external_traces: Where other tracers recorded the runs.
        task_runs: The runs by task, as others of it are compared with them.
        recall_tasks: The tasks of the kept runs, as recall compares them with a new one.
        shown: Which kept traces the runs were shown as examples.
        effects: How runs ended with examples and without, and what was decided of that.
        pulled: The units of registries, and which of them runs may be shown.
        own_patterns: The patterns of its own runs that a person admitted or rejected.
        models: The confidence models.
        deletions: Deletes runs as planned, and what the store no longer needs.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and its driver is not installed.
    """

    def __init__(self, url: str | Path | None = None) -> None:
        self.database = Database(locate(url))
        self.journal = Journal(self.database)
        self.days = RunDays(self.database)
        self.outbox = Outbox(self.database)
        self.paused = PausedRuns(self.database)
        self.external_traces = ExternalTraces(self.database)
        self.task_runs = TaskRuns(self.database)
        self.recall_tasks = RecallTasks(self.database)
        self.shown = ShownTraces(self.database)
        self.effects = RecallEffects(self.database)
        self.pulled = PulledUnits(self.database)
        self.own_patterns = OwnPatterns(self.database)
        self.models = ConfidenceModels(self.database)
        self.deletions = Deletions(self.database)

    @property
    def location(self) -> str:
        """Path or URL of the database, without the password."""
        return str(self.database.location)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

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
        with self.database.using("compact") as engine:
            return compact(engine)

    def close(self) -> None:
        """Release the connections. The next use opens them again."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ runs

    def add(self, *scored: ScoredTrace, registry: str | None = None) -> None:
        """Write scored runs in one transaction, in place of earlier ones with the same trace ids.

        Verdicts on an earlier one stay listed, and do not change the new one's score.

        Args:
            scored: The runs.
            registry: URL of the registry to contribute to. A trace that passed and is not
                `private` enters the outbox in the same transaction.
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
        return StoredMemory(self.database, max_remembered)

    def get(self, id: str) -> StoredRun | None:  # noqa: A002  (the word of the command line too)
        """Return the run that `id` identifies, or None.

        Args:
            id: A trace id, a run id, or the first 4 characters or more.

        Raises:
            UnknownRunError: It fits more than one run; the message lists them.
        """
        with self.database.reading() as connection:
            matches = find_by_id(
                connection,
                run_queries.select_stored_runs().order_by(*order_by()).limit(MATCHES_SHOWN),
                str(id),
                trace_id=_c.trace_id,
                other_id=_c.run_id,
            )
            if len(matches) > 1:
                raise ambiguous_id(str(id), matches)
            return self._stored_run(matches[0]) if matches else None

    def runs_by_trace(self, trace_ids: Collection[str]) -> dict[str, StoredRun]:
        """Return several runs by trace id.

        Args:
            trace_ids: The ids as `StoredRun` has them. One that no judged run has is left out.
        """
        select = run_queries.select_stored_runs().where(_c.trace_id.in_(trace_ids))
        with self.database.reading() as connection:
            rows = connection.execute(select).mappings()
            return {row["trace_id"]: self._stored_run(dict(row)) for row in rows}

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
            id: A trace id, a run id, or the first 4 characters or more. The id of a run that
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
        verdict = redact_note(Verdict(success, confidence, note, source, at, by_model))
        runs = judge_stored(
            self.database,
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
        key = trace_key(trace_id)
        with self.database.reading() as connection:
            rows = run_queries.whole_rows(connection, [key])
            external = side_tables.external_of(connection, key)
        return load_run(rows[0], external) if rows else None

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
        with self.database.reading() as connection:
            return run_queries.verdicts_on(connection, trace_ids)

    def body_texts(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of several runs by trace id, as the text of their JSON.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run whose trace is not kept is left out.
        """
        with self.database.reading() as connection:
            return run_queries.body_texts(connection, trace_ids)

    def model_calls(self, trace_ids: Collection[str]) -> dict[str, tuple[ModelCall, ...]]:
        """Return the answers of the models of several runs, by trace id.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run whose trace is not kept is left out.
        """
        with self.database.reading() as connection:
            return run_queries.model_calls(connection, trace_ids)

    def tool_definitions(self, trace_ids: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the tools that the models of several runs could ask for, by trace id.

        Each is a function in OpenAI's form, with `name`, and `description` and `parameters` where
        they are known.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run without any is left out.
        """
        with self.database.reading() as connection:
            return run_queries.tool_definitions(connection, trace_ids)

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
        order = order_by(sort, newest_first=newest_first)
        # In two steps, so that only the rows of the page are read whole, and not all that match.
        page = sa.select(_c.trace_id).where(*conditions_of(filters)).order_by(*order)
        select = run_queries.select_stored_runs().where(
            _c.trace_id.in_(page.limit(limit).offset(offset))
        )
        with self.database.reading() as connection:
            rows = connection.execute(select.order_by(*order)).mappings()
            return [self._stored_run(dict(row)) for row in rows]

    def count(self, *, most: int | None = None, **filters: Unpack[RunFilters]) -> int:
        """Return the number of runs.

        Args:
            most: Count no further than to this; None to count all.
            filters: As `RunFilters` explains them.
        """
        matching = sa.select(_c.trace_id).where(*conditions_of(filters)).limit(most).subquery()
        select = sa.select(sa.func.count()).select_from(matching)
        with self.database.reading() as connection:
            return connection.scalar(select) or 0

    def figures(self, **filters: Unpack[RunFilters]) -> dict[str, list[Any]]:
        """Return the figures of runs as columns of equal length, for counting over many.

        Args:
            filters: As `RunFilters` explains them.

        Returns:
            The columns by name, such as a DataFrame takes them, the oldest run first: `trace_id`,
            `domain`, `decision`, `gate`, `score`, `worth`, `threshold`, `recovered_errors`,
            `novelty_source`, `veto` and `success` as `StoredRun` has them; `total_tokens` and
            `duration_ms` of its usage; `is_twin`, `is_withheld` and `is_compared`, with others of
            its task; each dimension of the score and, with `_weight` appended, its weight (0 to 1,
            None if unknown); `rules`, `redactions`, `dropped` and `usage` as JSON text; and
            `label`, whether the run succeeded by the newest verdict that states it, None without
            one.

        Raises:
            StoreError: The store cannot be read.
        """
        select = sa.select(*run_queries.FIGURES).where(*conditions_of(filters))
        columns: dict[str, list[Any]] = {column.name: [] for column in run_queries.FIGURES}
        with self.database.reading() as connection:
            pages = connection.execute(select.order_by(*order_by(newest_first=False)))
            for rows in pages.partitions(_ROWS_AT_ONCE):
                for column, values in zip(columns.values(), zip(*rows, strict=True), strict=True):
                    column.extend(values)
        return columns

    def domain_figures(self, **filters: Unpack[RunFilters]) -> dict[str, Figures]:
        """Return the figures of runs by domain, for `kp_langchain.review.stats_of`.

        Those of whole domains are kept by day, so that only days with changes are counted anew.

        Args:
            filters: As `RunFilters` explains them.

        Raises:
            StoreError: The store cannot be read.
        """
        if selecting(filters).keys() <= {"domain"}:
            return self.days.figures(filters.get("domain"))
        with self.database.reading() as connection:
            return count_runs(connection, conditions_of(filters))

    def signed_runs(self, **filters: Unpack[RunFilters]) -> list[SignedRun]:
        """Return runs as failures are grouped, the oldest first; withheld ones are left out.

        Args:
            filters: As `RunFilters` explains them.
        """
        with self.database.reading() as connection:
            return run_queries.signed_runs(connection, filters)

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
        with self.database.reading() as connection:
            return run_queries.recent_values(connection, domain, gate, since)

    def traces(
        self, *, with_expiring: bool = False, **filters: Unpack[RunFilters]
    ) -> Iterator[ReasoningTrace]:
        """Yield the traces that are kept for good, the newest first, read a page at a time.

        No transaction stays open between two traces, so a slow reader blocks no writer. A run that
        is added meanwhile appears if its place in the order is still to come.

        Args:
            with_expiring: Whether to yield also traces that are kept only for some days, to await a
                verdict.
            filters: As `RunFilters` explains them.

        Raises:
            StoreError: The database cannot be read, or a body holds no trace.
        """
        for trace, *_ in self.traces_with_usage(with_expiring=with_expiring, **filters):
            yield trace

    def traces_with_usage(
        self, *, with_expiring: bool = False, **filters: Unpack[RunFilters]
    ) -> Iterator[tuple[ReasoningTrace, str | None, Usage | None]]:
        """Yield what `traces` does, each with the namespace of its run, and what that took."""
        select = run_queries.select_bodies(with_expiring=with_expiring)
        select = select.where(*conditions_of(filters))
        page = select = select.order_by(*run_queries.newest_first).limit(_TRACES_AT_ONCE)
        while True:
            with self.database.reading() as connection:
                rows = connection.execute(page).all()
            for row in rows:
                body = with_outcome_of(row.trace, row._mapping)  # noqa: SLF001 - public, as of a namedtuple
                yield trace_of(body, row.trace_id), row.namespace, usage_in(row._mapping)  # noqa: SLF001
            if len(rows) < _TRACES_AT_ONCE:
                return
            page = select.where(beyond(rows[-1].created_at, rows[-1].trace_id))

    def delete(self, *ids: str, **filters: Unpack[RunFilters]) -> Deletion:
        """Delete runs for good: traces, scores, verdicts, tags, and what novelty remembers of them.

        Each transaction deletes some hundreds, so that other writers need not wait for long. Other
        processes that use the store forget the runs within a minute. What a registry has of them is
        withdrawn by the next process that sends. `compact` removes their text from the file, too.

        Args:
            ids: Trace ids, run ids, or the first 4 characters or more. The id of a run that several
                handlers recorded identifies all its traces.
            filters: Without ids: delete the runs that match, as `RunFilters` explains it. Runs that
                are not scored yet, or wait for a human, match by domain, time and keys alone.

        Returns:
            What was deleted.

        Raises:
            ConfigError: There are neither ids nor conditions, or both.
            UnknownRunError: An id fits no run, or several. Nothing was deleted then.
        """
        plan = self.deletions.plan(*ids, **filters)
        self.deletions.carry_out(plan)
        return plan

    def _stored_run(self, row: dict[str, Any]) -> StoredRun:
        breakdown = ScoreBreakdown.from_dict(row.pop("breakdown"))
        values = row | {"usage": usage_in(row)}
        return StoredRun(**values, breakdown=breakdown, read_trace=self._read_trace)

    def _read_trace(self, trace_id: str) -> ReasoningTrace | None:
        with self.database.reading() as connection:
            rows = run_queries.whole_rows(connection, [trace_id])
        body = rows[0]["trace"] if rows else None
        return None if body is None else trace_of(body, trace_id)
