"""`ConfidenceModels`: the confidence models of a store, and the runs to fit them on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from kp_langchain.calibration.features import LOOKED_SUCCESSFUL
from kp_langchain.calibration.model import ConfidenceModel, LabelledRun, task_key
from kp_langchain.calibration.next_to_label import TaskVerdict, UnlabelledRun
from kp_langchain.errors import StoreError
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store.database import StorePart
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_queries import is_kept, weightiest_first
from kp_langchain.store.tables import bodies, models, runs, scores, verdicts
from kp_langchain.text import first_fault

_UNLABELLED_SEARCHED, _UNLABELLED_RUNS = 10_000, 2_000
_TASK_VERDICTS = 5_000
_newest_runs_first = (runs.c.created_at.desc(), runs.c.trace_id.desc())


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A confidence model as the store has it.

    Attributes:
        domain: The domain whose runs it is for.
        version: Its number, counted from 1 in each domain.
        active: Whether it is the model in force for its domain.
        installed_at: When it was installed, in UTC.
        model: The model itself.
    """

    domain: str
    version: int
    active: bool
    installed_at: datetime
    model: ConfidenceModel


class ConfidenceModels(StorePart):
    """The confidence models of one store. Got from `TraceStore.models`."""

    def labelled(self, domain: str) -> list[LabelledRun]:
        """Return the runs of a domain whose success a verdict states, the oldest first.

        Runs whose features an earlier version of this package computed differently are left out.

        Raises:
            StoreError: The figures of a run cannot be read; the message names it.
        """
        with self._database.reading() as connection:
            labelled = _labelled_runs(connection, domain)
        return [run for run in labelled if run.is_current]

    def unlabelled(self, domain: str | None = None) -> list[UnlabelledRun]:
        """Return runs whose success no verdict states, and whose trace a person can still look at.

        At most the newest 2,000, found among the newest 10,000 without a verdict. Runs without
        features are left out, because no model learns from them, and so are withheld ones.

        Args:
            domain: Only runs of this domain; None for all.
        """
        with self._database.reading() as connection:
            return _unlabelled_runs(connection, domain)

    def task_verdicts(self, domain: str | None = None) -> list[TaskVerdict]:
        """Return task and verdict of the newest 5,000 runs whose success a verdict states.

        Args:
            domain: Only runs of this domain; None for all.
        """
        with self._database.reading() as connection:
            return _newest_labels(connection, domain)

    def verdict_counts(self) -> dict[str, tuple[int, int]]:
        """Return, by domain, the numbers of runs that succeeded and failed by their verdicts."""
        labels = _labels()
        select = (
            sa.select(runs.c.domain, labels.c.success, sa.func.count())
            .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
            .join(scores, scores.c.trace_id == runs.c.trace_id)
            .where(scores.c.features.is_not(None))
            .group_by(runs.c.domain, labels.c.success)
            .order_by(runs.c.domain)
        )
        counts: dict[str, tuple[int, int]] = {}
        with self._database.reading() as connection:
            for domain, success, number in connection.execute(select):
                right, wrong = counts.get(domain, (0, 0))
                counts[domain] = (right + number, wrong) if success else (right, wrong + number)
        return counts

    def install(self, model: ConfidenceModel) -> int:
        """Put a model in force for its domain, in place of the present one.

        Returns:
            The version of the model; that of the present one if it is the same, fitted earlier.
        """
        domain = clean_name(model.domain)
        newest = sa.select(sa.func.max(models.c.version)).where(models.c.domain == domain)
        with self._database.writing() as connection:
            for present in _select_models(connection, domain, only_active=True):
                if replace(model, created_at=present.model.created_at) == present.model:
                    return present.version
            version: int = (connection.scalar(newest) or 0) + 1
            _remove_model(connection, domain)
            row = {
                "domain": domain,
                "version": version,
                "active": True,
                "installed_at": datetime.now(UTC),
                "body": json_text(model.to_dict()),
            }
            connection.execute(sa.insert(models), [row])
        return version

    def remove(self, domain: str) -> bool:
        """Take the model of a domain out of force; `installed` still lists it.

        Returns:
            Whether a model was in force.
        """
        with self._database.writing() as connection:
            return _remove_model(connection, domain)

    def installed(
        self, domain: str | None = None, *, only_active: bool = False
    ) -> list[InstalledModel]:
        """Return the models that were ever installed, the oldest first.

        Args:
            domain: Only models of this domain.
            only_active: Only models in force, at most one for each domain.

        Raises:
            StoreError: A model cannot be read; the message names it.
        """
        with self._database.reading() as connection:
            return _select_models(connection, domain, only_active=only_active)

    def in_force(self, domain: str) -> ConfidenceModel | None:
        """Return the model in force for a domain, if there is one.

        Raises:
            StoreError: The model cannot be read.
        """
        models = self.installed(domain, only_active=True)
        return models[0].model if models else None


# ------------------------------------------------------------------ queries


def _labelled_runs(connection: sa.Connection, domain: str) -> list[LabelledRun]:
    """Return what calibration needs of the runs of a domain that have a label, oldest first.

    A run's label is the `success` of the verdict that counts among those that state one.
    """
    labels = _labels()
    select: sa.Select[Any] = (
        sa.select(
            runs.c.trace_id,
            runs.c.objective,
            runs.c.task,
            scores.c.features,
            scores.c.breakdown,
            labels.c.success,
            labels.c.at,
        )
        .join(labels, sa.and_(labels.c.trace_id == runs.c.trace_id, labels.c.rank == 1))
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .where(runs.c.domain == clean_name(domain), scores.c.features.is_not(None))
        .order_by(runs.c.created_at, runs.c.trace_id)
    )
    return [_labelled_run(row) for row in connection.execute(select)]


def _labels() -> sa.Subquery:
    """Return the verdicts that state success, each with its rank on its trace; 1 counts."""
    rank = sa.func.row_number().over(partition_by=verdicts.c.trace_id, order_by=weightiest_first)
    select = sa.select(verdicts.c.trace_id, verdicts.c.success, verdicts.c.at, rank.label("rank"))
    return select.where(verdicts.c.success.is_not(None)).subquery()


def _unlabelled_runs(connection: sa.Connection, domain: str | None) -> list[UnlabelledRun]:
    """Return the newest runs that a person can be asked about, the newest first.

    Those have a body, features, and no verdict that states success, and are not withheld. Only the
    newest runs without a verdict are looked at: bodies lie in between, so that looking at all would
    read most of the file.
    """
    newest = sa.select(runs.c.trace_id).where(runs.c.state == "judged", ~_has_label())
    if domain is not None:
        newest = newest.where(runs.c.domain == clean_name(domain))
    newest_ids = newest.order_by(*_newest_runs_first).limit(_UNLABELLED_SEARCHED).subquery()
    select = (
        sa.select(runs.c.trace_id, runs.c.domain, runs.c.task, runs.c.objective)
        .join(newest_ids, newest_ids.c.trace_id == runs.c.trace_id)
        .join(scores, scores.c.trace_id == runs.c.trace_id)
        .join(bodies, bodies.c.trace_id == runs.c.trace_id)
        .where(is_kept(), runs.c.withheld.is_(None), scores.c.features.is_not(None))
        .order_by(*_newest_runs_first)
        .limit(_UNLABELLED_RUNS)
    )
    return [
        UnlabelledRun(trace_id, domain_of_run, task_key(task, objective))
        for trace_id, domain_of_run, task, objective in connection.execute(select)
    ]


def _newest_labels(connection: sa.Connection, domain: str | None) -> list[TaskVerdict]:
    """Return domain, task and label of the newest runs that have features and a label."""
    label = (
        sa.select(verdicts.c.success)
        .where(verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None))
        .order_by(*weightiest_first)
        .limit(1)
        .scalar_subquery()
    )
    # Not a condition on the features: it would read every row before its verdicts are looked up.
    has_features = scores.c.features.is_not(None)
    select = sa.select(runs.c.domain, runs.c.task, runs.c.objective, label, has_features)
    select = select.join(scores, scores.c.trace_id == runs.c.trace_id).where(_has_label())
    if domain is not None:
        select = select.where(runs.c.domain == clean_name(domain))
    rows = connection.execute(select.order_by(*_newest_runs_first).limit(_TASK_VERDICTS))
    return [
        TaskVerdict(domain_of_run, task_key(task, objective), success)
        for domain_of_run, task, objective, success, is_usable in rows
        if is_usable
    ]


def _has_label() -> sa.ColumnElement[bool]:
    """Return the condition that a verdict states the success of a run."""
    states_success = sa.and_(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
    return sa.exists(sa.select(verdicts.c.number).where(states_success).correlate(runs))


def _remove_model(connection: sa.Connection, domain: str) -> bool:
    """Take the model of a domain out of force; return whether there was one."""
    update = sa.update(models).where(models.c.domain == clean_name(domain), models.c.active)
    return connection.execute(update.values(active=False)).rowcount > 0


def _select_models(
    connection: sa.Connection, domain: str | None, *, only_active: bool
) -> list[InstalledModel]:
    """Return models, ordered by domain and version."""
    select = sa.select(models).order_by(models.c.domain, models.c.version)
    if domain is not None:
        select = select.where(models.c.domain == clean_name(domain))
    if only_active:
        select = select.where(models.c.active)
    return [_installed_model(dict(row)) for row in connection.execute(select).mappings()]


# ------------------------------------------------------------------ rows


def _installed_model(row: dict[str, Any]) -> InstalledModel:
    try:
        return InstalledModel(**row | {"model": ConfidenceModel.from_dict(row.pop("body"))})
    except ValidationError as error:
        raise StoreError(
            f"version {row['version']} of the model of domain {row['domain']!r} cannot be read; "
            "take it out of force and fit another: "
            f"kp-langchain calibrate remove {row['domain']} ({first_fault(error)})"
        ) from error


def _labelled_run(row: sa.Row[Any]) -> LabelledRun:
    try:
        dimensions = ScoreBreakdown.from_dict(row.breakdown).dimensions
    except ValidationError as error:
        raise StoreError(
            f"the breakdown of {row.trace_id} cannot be read back; it was changed outside "
            f"kp-langchain: delete the run: kp-langchain store delete {row.trace_id}"
        ) from error
    return LabelledRun(
        task=task_key(row.task, row.objective),
        success=row.success,
        features=row.features,
        looked_successful=bool(row.features.get(LOOKED_SUCCESSFUL, True)),
        judged_at=row.at,
        values={name: dimension.value for name, dimension in dimensions.items()},
    )
