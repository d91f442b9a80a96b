"""`TaskRuns`: the stored runs of each task, as others of it are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.calibration.agreement import TaskRun
from kp_langchain.gate.check import NONE_PASSES, WINDOW
from kp_langchain.store import run_queries, side_tables
from kp_langchain.store.database import StorePart
from kp_langchain.store.jobs import Jobs, replace_jobs
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_columns import judged_columns, outcome_columns
from kp_langchain.store.run_days import note_days_of
from kp_langchain.store.tables import runs, scores, verdicts
from kp_langchain.store.verdicts import load_run, save_rejudged

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.scoring.evidence import Agreement

MOST_TASK_RUNS = 16
"""A new run is compared with some of so many, the newest of its task."""
_RECENT = 100
"""Also with those that have a verdict, of so many of the newest."""

_c = runs.c
_WAITS = sa.and_(_c.gate == "score", _c.decision == "below_threshold")
OF_TASK_RUN = (
    _c.trace_id, _c.run_id, _c.compared_runs, scores.c.digest, _c.is_planted,
    _c.thread, _c.session,
    _WAITS.label("waits"), (_c.threshold >= NONE_PASSES).label("is_first"),
)  # fmt: skip
"""The columns that `task_run` reads."""


# What may change of a run: always, and if it has another worth.
_BY_AGREEMENT = ("worth", "agreement", "compared_runs", "veto")
_OF_GATE = ("gate", "threshold", "pass_rate", "gated_value", "passed")

# Built once, because building it takes longer than executing it.
_OF_TASK = sa.and_(
    _c.domain == sa.bindparam("domain"),
    _c.task == sa.bindparam("task"),
    _c.namespace.is_not_distinct_from(sa.bindparam("namespace")),
)
_READ = (
    sa.select(*OF_TASK_RUN)
    .join(scores, scores.c.trace_id == _c.trace_id)
    .where(scores.c.digest.is_not(None))
    .order_by(*run_queries.newest_first)
)
_NEWEST = _READ.where(_OF_TASK).limit(MOST_TASK_RUNS)
_LABELS = run_queries.select_labels().where(
    verdicts.c.trace_id.in_(
        sa.select(_c.trace_id).where(_OF_TASK).order_by(*run_queries.newest_first).limit(_RECENT)
    )
)


class TaskRuns(StorePart):
    """The runs of one store by task. Got from `TraceStore.task_runs`."""

    def newest(self, domain: str, task: str, namespace: str | None) -> list[TaskRun]:
        """Return the newest sixteen runs of a task, the newest first.

        After them come up to sixteen with a verdict, of the newest hundred.

        Args:
            domain: The domain.
            task: What is equal for the runs of the task.
            namespace: Only runs of this namespace; None for those without one.
        """
        with self._database.reading() as connection:
            return _newest(connection, domain, task, namespace)

    def waiting_tasks(self, domain: str) -> list[tuple[str, str | None]]:
        """Return task and namespace of those of the last 300 runs that did not pass by their score.

        Only of tasks with two of those runs.
        """
        recent = (
            sa.select(_c.task, _c.namespace, _WAITS.label("waits"))
            .where(_c.domain == clean_name(domain), _c.state == "judged")
            .order_by(*run_queries.newest_first)
            .limit(WINDOW)
            .subquery()
        )
        select = (
            sa.select(recent.c.task, recent.c.namespace)
            .where(recent.c.task.is_not(None))
            .group_by(recent.c.task, recent.c.namespace)
            .having(sa.func.count() > 1, sa.func.max(sa.case((recent.c.waits, 1), else_=0)) == 1)
        )
        with self._database.reading() as connection:
            return [(row.task, row.namespace) for row in connection.execute(select)]

    def recent_worths(self, domain: str) -> list[tuple[float | None, float]]:
        """Return agreement (None without one) and novelty of a domain's last 300 runs, in order."""
        with self._database.reading() as connection:
            return run_queries.recent_worths(connection, domain)

    def judge_again(
        self,
        domain: str,
        task: str,
        namespace: str | None,
        judge: Callable[[ScoredTrace, Agreement, bool], ScoredTrace],
        *,
        jobs: Jobs,
        registry: str | None,
        tools: Sequence[str],
    ) -> list[ScoredTrace]:
        """Judge the newest runs of a task again that may gain by it; one transaction.

        Args:
            domain: The domain.
            task: What is equal for the runs of the task.
            namespace: The namespace of the runs.
            judge: Returns a run as it is now, with `previous`; called with the run, its agreement,
                and whether there is a verdict on it.
            jobs: The jobs of the store.
            registry: URL of the registry to contribute to, if any.
            tools: The names of the tools that are sent scores.

        Returns:
            The runs on which the decision changed.
        """
        if not _new_agreements(self.newest(domain, task, namespace)):
            return []
        changed = []
        with self._database.writing() as connection:
            run_queries.lock_names(connection, [domain])
            agreements = _new_agreements(_newest(connection, domain, task, namespace))
            ids = list(agreements)
            run_queries.lock(connection, ids)
            note_days_of(connection, ids)
            rows = {row["trace_id"]: row for row in run_queries.whole_rows(connection, ids)}
            verdicts_by_trace = run_queries.verdicts_on(connection, ids)
            for trace_id in filter(rows.__contains__, reversed(ids)):  # the oldest stays kept
                row = rows[trace_id]
                run = load_run(row, side_tables.external_of(connection, trace_id))
                run = judge(run, agreements[trace_id], trace_id in verdicts_by_trace)
                if run.decision != row["decision"]:
                    run = save_rejudged(connection, row, run, registry)
                    replace_jobs(connection, jobs.score_rows([run], tools))
                    changed.append(run)
                _save_figures(connection, trace_id, run)
        return changed


def _newest(
    connection: sa.Connection, domain: str, task: str, namespace: str | None
) -> list[TaskRun]:
    which = {"domain": clean_name(domain), "task": task, "namespace": namespace}
    rows = connection.execute(_NEWEST, which).all()
    if not rows:
        return []
    success_of = {row[0]: row[1] for row in connection.execute(_LABELS, which)}
    if older := success_of.keys() - {row.trace_id for row in rows}:
        select = _READ.where(_c.trace_id.in_(older)).limit(MOST_TASK_RUNS)
        rows = [*rows, *connection.execute(select)]
    return [task_run(row, success_of.get(row.trace_id)) for row in rows]


def _new_agreements(task_runs: Sequence[TaskRun]) -> dict[str, Agreement]:
    """Return the agreement, by trace id, of those that judging them again may change."""
    agreements = ((run.trace_id, run.new_agreement(task_runs)) for run in task_runs)
    return {trace_id: one for trace_id, one in agreements if one is not None}


def _save_figures(connection: sa.Connection, trace_id: str, run: ScoredTrace) -> None:
    """Save what may have changed of a run although the decision stays."""
    figures = outcome_columns(run)
    columns = {name: figures[name] for name in _BY_AGREEMENT}
    if run.previous is not None and run.breakdown.worth != run.previous.breakdown.worth:
        judged = judged_columns(run)
        columns |= {name: judged[name] for name in _OF_GATE}
        columns["passed"] = run.decision == "kept"  # what repeats it was one of those before
    run_queries.update(connection, trace_id, columns)
    breakdown = json_text(run.breakdown.to_dict())
    of_run = sa.update(scores).where(scores.c.trace_id == trace_id)
    connection.execute(of_run.values(breakdown=breakdown))


def task_run(row: Any, success: bool | None = None) -> TaskRun:
    """Return a run as others of its task are compared with it.

    Args:
        row: Has the columns of `OF_TASK_RUN`.
        success: What a verdict says of it.
    """
    return TaskRun(
        row.trace_id,
        row.run_id,
        row.digest,
        frozenset(filter(None, (row.thread, row.session))),
        is_planted=bool(row.is_planted),
        success=success,
        compared_runs=row.compared_runs or 0,
        waits=bool(row.waits and (success is None or row.is_first)),
    )
