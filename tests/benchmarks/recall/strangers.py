"""What recall does with the tasks of another source, which its domain was not made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.benchmarks.quality.resampling import Sampled
from tests.benchmarks.recall.figures import TaskMeans
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.ways import Store


def answered(
    stores: Mapping[str, Sequence[Store]], other: RecallSource, *, knows_tools: bool
) -> dict[str, Sampled]:
    """Return, by source, the share of a source's tasks for which its stores have an example.

    Args:
        stores: By source, its stores, one for each draw of verdicts.
        other: The source of the tasks.
        knows_tools: Whether recall knows which tools the agents of that source have, as the
            middleware does.
    """
    tasks = TaskMeans(other.tasks[other.queries].tolist())
    tools = {name for plan in other.plans for name in plan} if knows_tools else set()
    found = {}
    for name, of_source in stores.items():
        shares = [
            [one.has_example(other, query, tools) for query in other.queries.tolist()]
            for one in of_source
        ]
        found[name] = tasks.mean(np.mean(np.array(shares, dtype=float), axis=0))
    return found
