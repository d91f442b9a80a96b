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
from kp_langchain.store.run_queries import is_kept, newest_first, weightiest_first
from kp_langchain.store.tables import models, runs, scores, verdicts
from kp_langchain.text import first_fault

_UNLABELLED_RUNS = 2_000
_TASK_VERDICTS = 5_000
_states_success = sa.and_(verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None))
_has_label = sa.exists(sa.select(verdicts.c.number).where(_states_success).correlate(runs))
# The verdicts that state success, each with its rank on its trace; 1 counts.
_labels = (
    sa.select(
        verdicts.c.trace_id,
        verdicts.c.success,
        verdicts.c.at,
        sa.func.row_number()
        .over(partition_by=verdicts.c.trace_id, order_by=weightiest_first)
        .label("rank"),
    )
    .where(verdicts.c.success.is_not(None))
    .subquery()
)
_is_label = sa.and_(_labels.c.trace_id == runs.c.trace_id, _labels.c.rank == 1)
# The same `success`, for a few runs.
_label = (
    sa.select(verdicts.c.success)
    .where(_states_success)
    .order_by(*weightiest_first)
    .limit(1)
    .scalar_subquery()
)
_has_features = scores.c.features.is_not(None)
_runs_with_scores = runs.join(scores, scores.c.trace_id == runs.c.trace_id)


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
        c = runs.c
        columns = (c.trace_id, c.objective, c.task, _labels.c.success, _labels.c.at)
        select: sa.Select[Any] = (
            sa.select(*columns, scores.c.features, scores.c.breakdown)
            .select_from(_runs_with_scores.join(_labels, _is_label))
            .where(c.domain == clean_name(domain), _has_features)
            .order_by(c.created_at, c.trace_id)
        )
        with self._database.reading() as connection:
            labelled = map(_labelled_run, connection.execute(select))
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
            sa.select(c.trace_id, c.domain, c.task, c.objective)
            .select_from(_runs_with_scores)
            .where(c.state == "judged", ~_has_label, is_kept(), c.withheld.is_(None), _has_features)
            .order_by(*newest_first)
            .limit(_UNLABELLED_RUNS)
        )
        with self._database.reading() as connection:
            rows = connection.execute(_in_domain(select, domain)).all()
        return [
            UnlabelledRun(row.trace_id, row.domain, task_key(row.task, row.objective))
            for row in rows
        ]

    def task_verdicts(self, domain: str | None = None) -> list[TaskVerdict]:
        """Return task and verdict of the newest 5,000 runs whose success a verdict states.

        Args:
            domain: Only runs of this domain; None for all.
        """
        c = runs.c
        # No condition on the features: it would read every row before its verdicts are looked up.
        columns = (c.domain, c.task, c.objective, _label.label("success"))
        select = (
            sa.select(*columns, _has_features.label("has_features"))
            .select_from(_runs_with_scores)
            .where(_has_label)
            .order_by(*newest_first)
            .limit(_TASK_VERDICTS)
        )
        with self._database.reading() as connection:
            rows = connection.execute(_in_domain(select, domain)).all()
        return [
            TaskVerdict(row.domain, task_key(row.task, row.objective), row.success)
            for row in rows
            if row.has_features
        ]

    def verdict_counts(self) -> dict[str, tuple[int, int]]:
        """Return, by domain, the numbers of runs that succeeded and failed by their verdicts."""
        select = (
            sa.select(runs.c.domain, _labels.c.success, sa.func.count())
            .select_from(_runs_with_scores.join(_labels, _is_label))
            .where(_has_features)
            .group_by(runs.c.domain, _labels.c.success)
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


# ------------------------------------------------------------------ queries and rows


def _in_domain(select: sa.Select[Any], domain: str | None) -> sa.Select[Any]:
    return select if domain is None else select.where(runs.c.domain == clean_name(domain))


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
