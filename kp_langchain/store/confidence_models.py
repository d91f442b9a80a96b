"""`ConfidenceModels`: the confidence models of a store, and the verdicts they are learned from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.errors import StoreError

if TYPE_CHECKING:
    from kp_langchain.calibration.labelled_run import LabelledRun
    from kp_langchain.store.trace_store import TraceStore


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A confidence model as the store has it.

    Args:
        domain: The domain whose runs it is for.
        version: Counted from 1 in each domain.
        active: Whether it is the one in force.
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
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"ConfidenceModels({self._store.location!r})"

    def labelled(self, domain: str) -> list[LabelledRun]:
        """Return the runs of a domain whose success somebody told, the oldest first.

        Left out are those that an earlier version of this package recorded, if it computed other
        features.
        """
        from kp_langchain.store import verdict_queries

        with self._store._reading() as connection:  # noqa: SLF001 - one room
            rows = verdict_queries.labelled(connection, domain)
        runs = [_labelled(row) for row in rows]
        return [run for run in runs if run.is_current]

    def verdict_counts(self) -> dict[str, tuple[int, int]]:
        """Return, by domain, how many runs were said to have succeeded, and to have failed."""
        from kp_langchain.store import verdict_queries

        with self._store._reading() as connection:  # noqa: SLF001
            return verdict_queries.counts(connection)

    def install(self, model: ConfidenceModel) -> int:
        """Put a model in force for its domain, in place of the one that was.

        Returns:
            Its version.
        """
        from kp_langchain.store import verdict_queries

        now = datetime.now(UTC)
        with self._store._writing() as connection:  # noqa: SLF001
            return verdict_queries.install_model(connection, model.domain, model.to_dict(), now)

    def remove(self, domain: str) -> bool:
        """Take the model of a domain out of force; it stays in the list.

        Returns:
            Whether there was one.
        """
        from kp_langchain.store import verdict_queries

        with self._store._writing() as connection:  # noqa: SLF001
            return verdict_queries.remove_model(connection, domain)

    def entries(
        self, domain: str | None = None, *, only_active: bool = False
    ) -> list[InstalledModel]:
        """Return the models that were ever installed, oldest first.

        Args:
            domain: Only this domain's.
            only_active: Only those in force, one a domain at most.

        Raises:
            StoreError: A model is not what was installed; the message names it.
        """
        from kp_langchain.store import verdict_queries

        with self._store._reading() as connection:  # noqa: SLF001
            rows = verdict_queries.select_models(connection, domain, only_active=only_active)
        return [_installed(row) for row in rows]

    def in_force(self, domain: str) -> ConfidenceModel | None:
        """Return the model in force for a domain, if there is one."""
        found = self.entries(domain, only_active=True)
        return found[0].model if found else None


def _installed(row: dict[str, Any]) -> InstalledModel:
    try:
        return InstalledModel(**row | {"model": ConfidenceModel.from_dict(row.pop("body"))})
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split()[:30])
        raise StoreError(
            f"version {row['version']} of the model of domain {row['domain']!r} cannot be read, so "
            "something else than this package changed it; take it out of force, and fit another: "
            f"kp-langchain calibrate remove ({reason})"
        ) from error


def _labelled(row: dict[str, Any]) -> LabelledRun:
    from kp_langchain.calibration.features import LOOKED_SUCCESSFUL
    from kp_langchain.calibration.labelled_run import LabelledRun
    from kp_langchain.scoring.breakdown import ScoreBreakdown

    try:
        dimensions = ScoreBreakdown.from_dict(row["breakdown"]).dimensions
        features = {name: value for name, value in row["features"].items() if math.isfinite(value)}
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"the figures of run {row['trace_id']} cannot be read, so something else than this "
            "package changed them; restore the store, or delete that run"
        ) from error
    return LabelledRun(
        task=row["task"] or " ".join(row["objective"].casefold().split()),
        success=row["success"],
        features=features,
        looked_successful=bool(features.get(LOOKED_SUCCESSFUL, True)),
        values={name: dimension.value for name, dimension in dimensions.items()},
        created_at=row["created_at"],
    )
