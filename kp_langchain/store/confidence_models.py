"""`ConfidenceModels`: the confidence models of a store, and the runs to fit them on."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kp_langchain.calibration.features import complete_features
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.errors import StoreError
from kp_langchain.printable import first_fault
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store import sql
from kp_langchain.store.database import Database

if TYPE_CHECKING:
    from kp_langchain.calibration.labelled_run import LabelledRun
    from kp_langchain.calibration.next_to_label import TaskVerdict, UnlabelledRun

_UNLABELLED_SEARCHED, _UNLABELLED_RUNS = 10_000, 2_000
_TASK_VERDICTS = 5_000
# What features raise that another program changed.
_UNREADABLE = (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError)


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


class ConfidenceModels:
    """The confidence models of one store. Got from `TraceStore.models`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"ConfidenceModels({str(self._database.location)!r})"

    def labelled(self, domain: str) -> list[LabelledRun]:
        """Return the runs of a domain whose success a verdict states, the oldest first.

        Runs whose features an earlier version of this package computed differently are left out.

        Raises:
            StoreError: The figures of a run cannot be read; the message names it.
        """
        with self._database.reading() as connection:
            rows = sql.verdict_queries.labelled_runs(connection, domain)
        runs = [_labelled_run(row) for row in rows]
        return [run for run in runs if run.is_current]

    def unlabelled(self, domain: str | None = None) -> list[UnlabelledRun]:
        """Return runs whose success no verdict states, and whose trace a person can still look at.

        At most the newest 2,000, found among the newest 10,000 without a verdict. Runs without
        features are left out, because no model learns from them, and so are withheld ones.

        Args:
            domain: Only runs of this domain; None for all.
        """
        with self._database.reading() as connection:
            models = sql.verdict_queries.select_models(connection, domain, only_active=True)
            by_domain = _usable_models(models)
            rows = sql.verdict_queries.unlabelled_runs(
                connection,
                domain,
                searched=_UNLABELLED_SEARCHED,
                limit=_UNLABELLED_RUNS,
                with_features=bool(by_domain),
            )
        return [_unlabelled_run(row, by_domain.get(row["domain"])) for row in rows]

    def task_verdicts(self, domain: str | None = None) -> list[TaskVerdict]:
        """Return task and verdict of the newest 5,000 runs whose success a verdict states.

        Args:
            domain: Only runs of this domain; None for all.
        """
        from kp_langchain.calibration.labelled_run import task_key
        from kp_langchain.calibration.next_to_label import TaskVerdict

        with self._database.reading() as connection:
            rows = sql.verdict_queries.newest_labels(connection, domain, limit=_TASK_VERDICTS)
        return [
            TaskVerdict(row["domain"], task_key(row["task"], row["objective"]), row["success"])
            for row in rows
        ]

    def verdict_counts(self) -> dict[str, tuple[int, int]]:
        """Return, by domain, the numbers of runs that succeeded and failed by their verdicts."""
        with self._database.reading() as connection:
            return sql.verdict_queries.label_counts(connection)

    def install(self, model: ConfidenceModel) -> int:
        """Put a model in force for its domain, in place of the present one.

        Returns:
            The version of the model.
        """
        now = datetime.now(UTC)
        with self._database.writing() as connection:
            return sql.verdict_queries.install_model(connection, model.domain, model.to_dict(), now)

    def remove(self, domain: str) -> bool:
        """Take the model of a domain out of force; `entries` still lists it.

        Returns:
            Whether a model was in force.
        """
        with self._database.writing() as connection:
            return sql.verdict_queries.remove_model(connection, domain)

    def entries(
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
            rows = sql.verdict_queries.select_models(connection, domain, only_active=only_active)
        return [_installed_model(row) for row in rows]

    def in_force(self, domain: str) -> ConfidenceModel | None:
        """Return the model in force for a domain, if there is one.

        Raises:
            StoreError: The model cannot be read.
        """
        models = self.entries(domain, only_active=True)
        return models[0].model if models else None


def _installed_model(row: dict[str, Any]) -> InstalledModel:
    try:
        model = ConfidenceModel.from_dict(json.loads(row.pop("body")))
        return InstalledModel(**row, model=model)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"version {row['version']} of the model of domain {row['domain']!r} cannot be read, so "
            "it was changed outside kp-langchain; take it out of force and fit another: "
            f"kp-langchain calibrate remove {row['domain']} ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    """Return in a few words why a model cannot be read."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split()[:30])
    return first_fault(error)


def _usable_models(rows: list[dict[str, Any]]) -> dict[str, ConfidenceModel]:
    """Return the models that can be read and are of this version, by domain."""
    models = {}
    for row in rows:
        with suppress(StoreError):  # which calibration and `doctor` report
            model = _installed_model(row).model
            if model.is_current:
                models[row["domain"]] = model
    return models


def _unlabelled_run(row: dict[str, Any], model: ConfidenceModel | None) -> UnlabelledRun:
    from kp_langchain.calibration.labelled_run import task_key
    from kp_langchain.calibration.next_to_label import UnlabelledRun

    confidence = None
    if model is not None:
        with suppress(*_UNREADABLE):
            trace = ReasoningTrace.model_validate_json(row["trace"])
            features = complete_features(json.loads(row["features"]), trace)
            confidence = model.confidence(features or {})
    task = task_key(row["task"], row["objective"])
    return UnlabelledRun(row["trace_id"], row["domain"], task, confidence)


def _labelled_run(row: dict[str, Any]) -> LabelledRun:
    from kp_langchain.calibration.features import LOOKED_SUCCESSFUL
    from kp_langchain.calibration.labelled_run import LabelledRun, task_key
    from kp_langchain.scoring.breakdown import ScoreBreakdown

    try:
        dimensions = ScoreBreakdown.from_dict(row["breakdown"]).dimensions
        features = {name: value for name, value in row["features"].items() if math.isfinite(value)}
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"the figures of run {row['trace_id']} cannot be read, so they were changed outside "
            "kp-langchain; restore the store from a backup, or delete that run: "
            f"kp-langchain delete {row['trace_id']}"
        ) from error
    return LabelledRun(
        task=task_key(row["task"], row["objective"]),
        success=row["success"],
        features=features,
        looked_successful=bool(features.get(LOOKED_SUCCESSFUL, True)),
        created_at=row["created_at"],
        trace_id=row["trace_id"],
        values={name: dimension.value for name, dimension in dimensions.items()},
    )
