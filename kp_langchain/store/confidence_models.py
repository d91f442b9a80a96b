"""`ConfidenceModels`: the confidence models of a store, and the runs to fit them on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from kp_langchain.calibration.agreement import AGREEMENT, TaskRun, agreement_of, pairs_of, task_key
from kp_langchain.calibration.basis import Basis, basis_of
from kp_langchain.calibration.features import LOOKED_SUCCESSFUL
from kp_langchain.calibration.model import ConfidenceModel, LabelledRun
from kp_langchain.calibration.next_to_label import TaskVerdict, UnlabelledRun
from kp_langchain.errors import StoreError
from kp_langchain.gate.check import WINDOW
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store.database import StorePart
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_queries import (
    is_kept,
    labels,
    newest_first,
    signs_in,
    signs_text,
    verdicts_on,
)
from kp_langchain.store.tables import insert_or_replace, models, runs, scores, verdicts
from kp_langchain.store.task_runs import OF_TASK_RUN, TaskRuns, task_run
from kp_langchain.text import first_fault
from kp_langchain.verdict import Verdict, counting

_UNLABELLED_RUNS = 2_000
_TASK_VERDICTS = 5_000
_LABELS_COUNTED = 1_000
_states_success = sa.and_(verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None))
_has_label = sa.exists(sa.select(verdicts.c.number).where(_states_success).correlate(runs))
_has_features = scores.c.features.is_not(None)
_runs_with_scores = runs.join(scores, scores.c.trace_id == runs.c.trace_id)


class ConfidenceModels(StorePart):
    """The confidence models of one store, one for each domain. Got from `TraceStore.models`."""

    def labelled(self, domain: str) -> list[LabelledRun]:
        """Return the runs of a domain whose success a verdict states, the oldest first.

        Runs whose features an earlier version of this package computed differently are left out.

        Raises:
            StoreError: The figures of a run cannot be read; the message names it.
        """
        c = runs.c
        columns = (*OF_TASK_RUN, c.objective, c.task, c.namespace, scores.c.features)
        select: sa.Select[Any] = (
            sa.select(*columns, scores.c.breakdown)
            .select_from(_runs_with_scores)
            .where(c.domain == clean_name(domain), _has_features, _has_label)
            .order_by(c.created_at, c.trace_id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(select).all()
            verdicts_by_trace = verdicts_on(connection, [row.trace_id for row in rows])
        task_runs = TaskRuns(self._database)
        # Without what verdicts say of the others: a model must not learn a verdict from itself.
        others = {
            key: [replace(one, success=None) for one in task_runs.newest(domain, *key)]
            for key in {(row.task, row.namespace) for row in rows if row.task and row.digest}
        }
        # PostgreSQL may show a run in the first statement that is deleted before the second one.
        labelled = [
            _labelled_run(
                row, verdicts_by_trace[row.trace_id], others.get((row.task, row.namespace), ())
            )
            for row in rows
            if row.trace_id in verdicts_by_trace
        ]
        return [run for run in labelled if run.is_current]

    def unlabelled(self, domain: str | None = None) -> list[UnlabelledRun]:
        """Return runs whose success no verdict states, and whose trace a person can still look at.

        The newest 2,000, newest first. Runs without features are left out, because no model learns
        from them, and so are withheld ones.

        Args:
            domain: Only runs of this domain; None for all.
        """
        c = runs.c
        select = (
            sa.select(c.trace_id, c.domain, c.task, c.objective, signs_text, scores.c.digest)
            .select_from(_runs_with_scores)
            .where(c.state == "judged", ~_has_label, is_kept(), c.withheld.is_(None), _has_features)
            .order_by(*newest_first)
            .limit(_UNLABELLED_RUNS)
        )
        with self._database.reading() as connection:
            rows = connection.execute(_in_domain(select, domain)).all()
        return [
            UnlabelledRun(
                row.trace_id,
                row.domain,
                task_key(row.task, row.objective),
                row.digest,
                frozenset(signs_in(row.signs).items()),
            )
            for row in rows
        ]

    def task_verdicts(self, domain: str | None = None) -> list[TaskVerdict]:
        """Return task and verdict of the newest 5,000 runs whose success a verdict states.

        Args:
            domain: Only runs of this domain; None for all.
        """
        c = runs.c
        # No condition on the features: it would read every row before its verdicts are looked up.
        columns = (c.trace_id, c.domain, c.task, c.objective, signs_text, scores.c.digest)
        select = (
            sa.select(*columns, _has_features.label("has_features"))
            .select_from(_runs_with_scores)
            .where(_has_label)
            .order_by(*newest_first)
            .limit(_TASK_VERDICTS)
        )
        with self._database.reading() as connection:
            rows = connection.execute(_in_domain(select, domain)).all()
            success_of = labels(connection)
        return [
            TaskVerdict(
                row.domain,
                task_key(row.task, row.objective),
                success_of[row.trace_id],
                row.digest,
                frozenset(signs_in(row.signs).items()),
            )
            for row in rows
            if row.has_features and row.trace_id in success_of
        ]

    def labelled_domains(self) -> list[str]:
        """Return the domains with runs whose success a verdict states, in order."""
        select = sa.select(runs.c.domain).distinct().select_from(_runs_with_scores)
        with self._database.reading() as connection:
            domains = connection.scalars(select.where(_has_features, _has_label))
            return sorted(domains)

    def bases(self, domains: Collection[str]) -> dict[str, Basis]:
        """Return what the decisions on each domain's runs rest on, in words.

        However many runs there are, it reads few of them. A model that cannot be read counts as
        none, as it does while runs are judged.

        Args:
            domains: The domains. One without a judged run is left out.
        """
        bases = {}
        with self._database.reading() as connection:
            labelled = {row[0]: row[1] for row in connection.execute(_LABELLED_RUNS)}
            rows = {row.domain: row for row in connection.execute(sa.select(models))}
            for domain in domains:
                name, model = clean_name(domain), None
                gate, highest, compared, last = connection.execute(_RECENT, {"domain": name}).one()
                if gate is None:
                    continue
                if name in rows:
                    with suppress(StoreError):
                        model = _model_of(rows[name])
                bases[domain] = basis_of(
                    gate,
                    model,
                    labelled=labelled.get(name, 0),
                    compared=compared,
                    last=last,
                    highest=highest or 0.0,
                )
        return bases

    def largest_domains(self, limit: int) -> list[str]:
        """Return the domains with the most runs, the largest first.

        Args:
            limit: At most so many.
        """
        number = sa.func.count()
        select = sa.select(runs.c.domain).group_by(runs.c.domain)
        with self._database.reading() as connection:
            rows = connection.scalars(select.order_by(number.desc(), runs.c.domain).limit(limit))
            return list(rows)

    def install(self, model: ConfidenceModel) -> bool:
        """Put a model in force for its domain, in place of the present one, which is deleted.

        Returns:
            False, and nothing is written, if the present one is the same, fitted earlier.
        """
        with self._database.writing() as connection:
            for present in _select_models(connection, model.domain):
                if replace(model, created_at=present.created_at) == present:
                    return False
            row = {"domain": clean_name(model.domain), "body": json_text(model.to_dict())}
            connection.execute(insert_or_replace(models, connection.dialect.name), [row])
        return True

    def remove(self, domain: str) -> bool:
        """Delete the model of a domain; return whether there was one."""
        delete = sa.delete(models).where(models.c.domain == clean_name(domain))
        with self._database.writing() as connection:
            return connection.execute(delete).rowcount > 0

    def installed(self, domain: str | None = None) -> list[ConfidenceModel]:
        """Return the models in force, ordered by domain.

        Args:
            domain: Only the model of this domain.

        Raises:
            StoreError: A model cannot be read; the message names it.
        """
        with self._database.reading() as connection:
            return _select_models(connection, domain)

    def in_force(self, domain: str) -> ConfidenceModel | None:
        """Return the model in force for a domain, if there is one.

        Raises:
            StoreError: The model cannot be read.
        """
        return next(iter(self.installed(domain)), None)


# ------------------------------------------------------------------ queries and rows


def _select_recent() -> sa.Select[Any]:
    """Return the statement for what a domain's last runs were held against.

    That is the gate of the newest, the highest threshold, how many were compared with others of
    their task, and how many they are.
    """
    c = runs.c
    newest = (
        sa.select(c.gate, c.agreement, c.threshold)
        .where(c.domain == sa.bindparam("domain"), c.state == "judged")
        .order_by(*newest_first)
    )
    window = newest.where(c.veto.is_(None)).limit(WINDOW).subquery()
    return sa.select(
        newest.with_only_columns(c.gate).limit(1).scalar_subquery(),
        sa.select(sa.func.max(window.c.threshold)).scalar_subquery(),
        sa.select(sa.func.count(window.c.agreement)).scalar_subquery(),
        sa.select(sa.func.count()).select_from(window).scalar_subquery(),
    )


_RECENT = _select_recent()
_newest_labels = (
    sa.select(verdicts.c.trace_id)
    .where(verdicts.c.success.is_not(None))
    .order_by(verdicts.c.number.desc())
    .limit(_LABELS_COUNTED)  # whether there are ten of a domain is all that matters
    .subquery()
)
# An outer join, because SQLite may begin an inner one with all runs, which are many more.
_LABELLED_RUNS = (
    sa.select(runs.c.domain, sa.func.count(_newest_labels.c.trace_id.distinct()))
    .select_from(_newest_labels.outerjoin(runs, runs.c.trace_id == _newest_labels.c.trace_id))
    .group_by(runs.c.domain)
)


def _in_domain(select: sa.Select[Any], domain: str | None) -> sa.Select[Any]:
    return select if domain is None else select.where(runs.c.domain == clean_name(domain))


def _select_models(connection: sa.Connection, domain: str | None) -> list[ConfidenceModel]:
    select = sa.select(models).order_by(models.c.domain)
    if domain is not None:
        select = select.where(models.c.domain == clean_name(domain))
    return [_model_of(row) for row in connection.execute(select)]


def _model_of(row: sa.Row[Any]) -> ConfidenceModel:
    try:
        return ConfidenceModel.from_dict(row.body)
    except ValidationError as error:
        raise StoreError(
            f"the model of domain {row.domain!r} cannot be read; take it out of force and fit "
            f"another: kp-langchain calibrate remove {row.domain} ({first_fault(error)})"
        ) from error


def _labelled_run(
    row: sa.Row[Any], run_verdicts: Sequence[Verdict], others: Sequence[TaskRun]
) -> LabelledRun:
    # One states it, and has a time.
    label: Any = counting(one for one in run_verdicts if one.success is not None)
    try:
        breakdown = ScoreBreakdown.from_dict(row.breakdown)
    except ValidationError as error:
        raise StoreError(
            f"the breakdown of {row.trace_id} cannot be read back; it was changed outside "
            f"kp-langchain: delete the run: kp-langchain store delete {row.trace_id}"
        ) from error
    agreement = agreement_of(pairs_of(task_run(row), others)) if others else None
    features = row.features
    if agreement is not None:
        features = features | {AGREEMENT: agreement.value}
    return LabelledRun(
        task=task_key(row.task, row.objective),
        success=label.success,
        features=features,
        looked_successful=bool(row.features.get(LOOKED_SUCCESSFUL, True)),
        judged_at=label.at,
        values={name: dimension.value for name, dimension in breakdown.dimensions.items()},
        is_vetoed=bool(breakdown.flags),
    )
