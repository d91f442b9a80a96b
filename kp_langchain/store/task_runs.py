"""`TaskRuns`: the stored runs of each task, as others of it are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.calibration.agreement import RunDigest, TaskRun
from kp_langchain.store import run_queries, side_tables
from kp_langchain.store.database import StorePart
from kp_langchain.store.jobs import Jobs, replace_jobs
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_columns import judged_columns, outcome_columns
from kp_langchain.store.tables import runs, scores, verdicts
from kp_langchain.store.verdicts import load_run, save_rejudged

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

MOST_TASK_RUNS = 8
"""A new run is compared with some of so many, the newest of its task."""

_c = runs.c
OF_TASK_RUN = (
    _c.trace_id, _c.run_id, _c.compared_runs, _c.gate, scores.c.digest, _c.is_planted,
    sa.func.coalesce(_c.thread, _c.session).label("thread"),
)  # fmt: skip
"""The columns that `task_run` reads."""


# What may change of a run: always, and if it has another worth.
_BY_AGREEMENT = ("worth", "agreement", "compared_runs", "veto")
_OF_GATE = ("gate", "threshold", "pass_rate", "gated_value", "passed")

# Built once, because building it takes longer than executing it.
_NEWEST = (
    sa.select(*OF_TASK_RUN)
    .join(scores, scores.c.trace_id == _c.trace_id)
    .where(
        _c.domain == sa.bindparam("domain"),
        _c.task == sa.bindparam("task"),
        _c.namespace.is_not_distinct_from(sa.bindparam("namespace")),
        scores.c.digest.is_not(None),
    )
    .order_by(*run_queries.newest_first)
    .limit(MOST_TASK_RUNS)
)


class TaskRuns(StorePart):
    """The runs of one store by task. Got from `TraceStore.task_runs`."""

    def newest(self, domain: str, task: str, namespace: str | None) -> list[TaskRun]:
        """Return the newest runs of a task, the newest first; at most eight.

        Args:
            domain: The domain.
            task: What is equal for the runs of the task.
            namespace: Only runs of this namespace; None for those without one.
        """
        which = {"domain": clean_name(domain), "task": task, "namespace": namespace}
        with self._database.reading() as connection:
            rows = connection.execute(_NEWEST, which).all()
            if not rows:
                return []
            of_these = verdicts.c.trace_id.in_([row.trace_id for row in rows])
            labels = connection.execute(run_queries.select_labels().where(of_these))
            success_of = {row[0]: row[1] for row in labels}
        return [task_run(row, success_of.get(row.trace_id)) for row in rows]

    def recent_worths(self, domain: str) -> list[tuple[float | None, float]]:
        """Return agreement (None without one) and novelty of a domain's last 300 runs, in order."""
        with self._database.reading() as connection:
            return run_queries.recent_worths(connection, domain)

    def judge_again(
        self,
        trace_id: str,
        judge: Callable[[ScoredTrace], ScoredTrace],
        *,
        jobs: Jobs,
        registry: str | None,
        tools: Sequence[str],
    ) -> ScoredTrace | None:
        """Judge a stored run again, and save what that changes; one transaction.

        Args:
            trace_id: The id of its trace.
            judge: Returns the run as it is now, with `previous`.
            jobs: The jobs of the store.
            registry: URL of the registry to contribute to, if any.
            tools: The names of the tools that are sent scores.

        Returns:
            The run; None if it is gone, or not judged yet.
        """
        with self._database.writing() as connection:
            domains = connection.scalars(sa.select(_c.domain).where(_c.trace_id == trace_id)).all()
            run_queries.lock_names(connection, domains)
            run_queries.lock(connection, [trace_id])
            rows = run_queries.whole_rows(connection, [trace_id])
            if not rows:
                return None
            row = rows[0]
            run = judge(load_run(row, side_tables.external_of(connection, trace_id)))
            if run.decision != row["decision"]:
                run = save_rejudged(connection, row, run, registry)
                replace_jobs(connection, jobs.score_rows([run], tools))
            figures = outcome_columns(run)
            columns = {name: figures[name] for name in _BY_AGREEMENT}
            if run.previous is not None and run.breakdown.worth != run.previous.breakdown.worth:
                judged = judged_columns(run)
                columns |= {name: judged[name] for name in _OF_GATE}
            run_queries.update(connection, trace_id, columns)
            breakdown = json_text(run.breakdown.to_dict())
            of_run = sa.update(scores).where(scores.c.trace_id == trace_id)
            connection.execute(of_run.values(breakdown=breakdown))
        return run


def task_run(row: Any, success: bool | None = None) -> TaskRun:
    """Return a run as others of its task are compared with it.

    Args:
        row: Has the columns of `OF_TASK_RUN`.
        success: What a verdict says of it.
    """
    return TaskRun(
        row.trace_id,
        row.run_id,
        RunDigest.from_bytes(row.digest),
        row.thread,
        is_planted=bool(row.is_planted),
        success=success,
        compared_runs=row.compared_runs or 0,
        gate=row.gate,
    )
