"""`HeldOut`: what models predict of runs whose tasks they were fitted without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.folds import folds
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.model import Fold, probability, with_weights


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Models that were each fitted without some of the tasks, and their predictions for these.

    Attributes:
        splits: The indices of each model's training runs, and of the runs of the other tasks.
        models: The models, in the same order.
        task_folds: By task, the index of the model that was fitted without it.
        probabilities: Each run's probability of success, by the model without its task.
    """

    splits: Sequence[tuple[list[int], list[int]]]
    models: tuple[Fold, ...]
    task_folds: Mapping[str, int]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun], table: FeatureTable) -> HeldOut:
        """Fit and predict.

        Args:
            runs: The labelled runs.
            table: Their features.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        splits = list(folds(runs))
        models, task_folds = [], {}
        probabilities = [0.0] * len(runs)
        for number, (training, test) in enumerate(splits):
            model = Fold(*table.fit(training))
            models.append(model)
            terms = with_weights(table.terms, model.weights)
            for index in test:
                task_folds[runs[index].task] = number
                probabilities[index] = probability(model.intercept, terms, runs[index].features)
        return cls(splits, tuple(models), task_folds, tuple(probabilities))
