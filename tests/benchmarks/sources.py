"""The runs of one source as a store has them: what the product knows of each, beside the truth."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.calibration.agreement import TaskRun, agreement_of, pairs_of
from kp_langchain.calibration.failure_signs import parse_signs
from kp_langchain.calibration.features import LOOKED_SUCCESSFUL, complete_features
from kp_langchain.calibration.model import LabelledRun
from kp_langchain.gate.check import FEWEST_VALUES
from kp_langchain.recording.windows import LastRuns
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.evidence import Agreement
from kp_langchain.store.run_columns import trace_of
from kp_langchain.store.tables import bodies, runs, scores
from kp_langchain.store.task_runs import OF_TASK_RUN, task_run
from tests.benchmarks.intervals import TaskResamples
from tests.benchmarks.workspace import WITHOUT_MODEL, Run, Workspace, most_common_domain

_ORDER_SEED = 1
_GATE = {"KP_DEFAULTS": json.dumps({"gate": "worth", "pass_rate": 0.1})}


@dataclass(frozen=True)
class JudgedRun:
    """A run of which the store knows what it knows without any verdict, with the truth.

    Attributes:
        id: Its id.
        labelled: What a model learns from, with the truth, and without its agreement.
        breakdown: Its score, and its flags.
        task_run: What others of its task are compared with.
        is_kept: Whether the gate by worth kept it.
        is_kept_by_default: Whether the default gate did.
        agreement: How far it agrees with others of its task.
        unguarded: The same, were retries in one thread and planted instructions no matter.
        signs: Its signs, each as kind and text.
    """

    id: str
    labelled: LabelledRun
    breakdown: ScoreBreakdown
    task_run: TaskRun
    is_kept: bool
    is_kept_by_default: bool
    agreement: Agreement | None = None
    unguarded: Agreement | None = None
    signs: frozenset[tuple[str, str]] = frozenset()

    @property
    def task(self) -> str:
        return self.labelled.task

    @property
    def success(self) -> bool:
        return self.labelled.success

    @property
    def novelty(self) -> float:
        return self.breakdown.novelty.value

    def agreement_with(self, *, guards: bool) -> Agreement | None:
        """Return its agreement, with or without guards."""
        return self.agreement if guards else self.unguarded


@dataclass(frozen=True)
class Source:
    """The runs of one source.

    Attributes:
        name: Its name.
        runs: Its runs.
        resamples: Its tasks.
        last_runs: What the gate knows of the last runs of the domain without a flag.
        last_unguarded_runs: The same, without guards.
    """

    name: str
    runs: Sequence[JudgedRun]
    resamples: TaskResamples
    last_runs: LastRuns
    last_unguarded_runs: LastRuns

    @property
    def family(self) -> str:
        """The benchmark that it comes from."""
        return self.name.partition("-")[0]

    @property
    def tasks_repeat(self) -> bool:
        """Whether enough of its runs are compared with others, so that the gate goes by that."""
        return self.last_runs.compared >= FEWEST_VALUES["worth"]

    def last(self, *, guards: bool) -> LastRuns:
        """Return what the gate knows of the last runs, with or without guards."""
        return self.last_runs if guards else self.last_unguarded_runs


def import_source(name: str, of_source: Sequence[Run], folder: Path, *, embed: bool) -> Source:
    """Import the runs of a source, with the gate by worth and with the default one, and read them.

    Args:
        name: The name of the source.
        of_source: Its runs. They are imported in an order shuffled by a fixed seed.
        folder: An empty folder.
        embed: Whether the runs are embedded; else novelty is 0.5.
    """
    order = list(of_source)
    random.Random(_ORDER_SEED).shuffle(order)
    domain, model = most_common_domain(order), {} if embed else WITHOUT_MODEL
    by_worth = Workspace(folder / "worth", domain, **_GATE, **model)
    by_default = Workspace(folder / "default", domain, **model)
    with ThreadPoolExecutor() as both:
        list(both.map(lambda workspace: workspace.record(order), (by_worth, by_default)))
    with by_default.store() as store:
        kept = {run.run_id for run in store.runs(limit=None, decision="kept")}
    with by_worth.store() as store:
        return source_of(name, read_runs_of(store, {run.id: run for run in order}, kept))


def read_runs_of(
    store: TraceStore, known: dict[str, Run], kept_by_default: set[str]
) -> list[JudgedRun]:
    """Return the runs of a store, the oldest first, not yet compared with others.

    Args:
        store: The store.
        known: The runs with the truth, by id.
        kept_by_default: The ids of those that the default gate kept.
    """
    columns = (
        *OF_TASK_RUN,
        runs.c.decision,
        runs.c.signs,
        scores.c.features,
        scores.c.breakdown,
        bodies.c.trace,
    )
    select: sa.Select[Any] = (
        sa.select(*columns)
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .join(bodies, bodies.c.trace_id == runs.c.trace_id)
        .order_by(runs.c.created_at, runs.c.trace_id)
    )
    with store.database.reading() as connection:
        rows = connection.execute(select).all()
    return [_judged_run(row, known[row.run_id], row.run_id in kept_by_default) for row in rows]


def _judged_run(row: Any, run: Run, is_kept_by_default: bool) -> JudgedRun:
    breakdown = ScoreBreakdown.from_dict(row.breakdown)
    features = complete_features(row.features, trace_of(row.trace, row.trace_id)) or {}
    labelled = LabelledRun(
        task=run.task,
        success=run.success,
        features=features,
        looked_successful=bool(features[LOOKED_SUCCESSFUL]),
        values={name: one.value for name, one in breakdown.dimensions.items()},
        judged_at=datetime.now(UTC),
    )
    return JudgedRun(
        run.id,
        labelled,
        breakdown,
        task_run(row),
        row.decision == "kept",
        is_kept_by_default,
        signs=frozenset(parse_signs(row.signs).items()),
    )


def source_of(name: str, judged: Sequence[JudgedRun]) -> Source:
    """Return a source whose runs are compared with others of their task, as the gate does.

    Args:
        name: Its name.
        judged: Its runs, the oldest first.
    """
    of_task: defaultdict[str, list[JudgedRun]] = defaultdict(list)
    for run in judged:
        of_task[run.task].append(run)
    compared = []
    for run in judged:
        at = of_task[run.task].index(run)
        # Those before it, the newest first; the ones after it are there when it is judged again.
        others = [
            one.task_run for one in (*of_task[run.task][at::-1][1:], *of_task[run.task][at + 1 :])
        ]
        agreement = agreement_of(pairs_of(run.task_run, others))
        unguarded = agreement_of(pairs_of(_unguarded(run.task_run), map(_unguarded, others)))
        compared.append(replace(run, agreement=agreement, unguarded=unguarded))
    last_runs, last_unguarded_runs = (
        LastRuns(_worth_of(run, guards=guards) for run in compared if not run.breakdown.flags)
        for guards in (True, False)
    )
    resamples = TaskResamples(run.task for run in compared)
    return Source(name, compared, resamples, last_runs, last_unguarded_runs)


def _worth_of(run: JudgedRun, *, guards: bool) -> tuple[float | None, float]:
    """Return the agreement and the novelty of a run."""
    agreement = run.agreement_with(guards=guards)
    return None if agreement is None else agreement.value, run.novelty


def _unguarded(run: TaskRun) -> TaskRun:
    return replace(run, conversations=frozenset(), is_planted=False)
