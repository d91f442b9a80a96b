"""What recall does with the tasks of another source, which its domain was not made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.benchmarks.quality.resampling import Sampled
from tests.benchmarks.recall.figures import TaskMeans
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.ways import Store


def answered(stores: Mapping[str, Sequence[Store]], other: RecallSource) -> dict[str, Sampled]:
    """Return, by source, the share of another source's tasks for which it has an example.

    Args:
        stores: By source, its stores, one for each draw of verdicts.
        other: The source of the tasks.
    """
    tasks = TaskMeans(other.tasks[other.queries].tolist())
    found = {}
    for name, of_source in stores.items():
        shares = [
            [one.best_similarity(other.vectors[query]) >= one.floor for query in other.queries]
            if name != other.name
            else [bool(one.recall(query)) for query in other.queries.tolist()]
            for one in of_source
        ]
        found[name] = tasks.mean(np.mean(np.array(shares, dtype=float), axis=0))
    return found
