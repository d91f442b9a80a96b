"""What each way of choosing gains in each source, and recall with stores of equal size."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kp_langchain import to_few_shot
from kp_langchain.recall.token_estimate import estimate_tokens
from tests.benchmarks.quality.resampling import Array, Sampled, mean
from tests.benchmarks.recall.bits import Meter, targets
from tests.benchmarks.recall.figures import TaskMeans
from tests.benchmarks.recall.fills import FILLS, SIZES, later_runs, shares
from tests.benchmarks.recall.knowledge import with_verdicts
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.ways import (
    ELSEWHERE,
    KNOWING,
    NEAREST,
    NOTHING,
    RANDOM,
    RECALL,
    RECALL_ANY,
    WAYS,
    Store,
    column,
)

VERDICT_SHARES = (0.05, 0.2, 1.0)
USUAL_SHARE = 0.2
"""Of the runs that have a verdict, where nothing else is said."""

_BITS_DRAWS = 3

Tell = Callable[[str], object]


@dataclass
class SourceFigures:
    """The figures of one source.

    Attributes:
        f1: By way, the plan F1; 0 where nothing is shown.
        bits: By way, the bits a token; empty without the model.
        f1_by_share: By the share of runs with a verdict, the plan F1 of recall.
        f1_of_shown: Of the tasks for which recall shows something, by way.
        shown: The share of tasks for which recall shows something.
        floors: The floor of each draw.
        tokens: Of each example that recall shows, as `estimate_tokens` counts them.
        targets: How many runs the bits are of.
    """

    f1: dict[str, Sampled]
    bits: dict[str, Sampled]
    f1_by_share: dict[float, Sampled]
    f1_of_shown: dict[str, Sampled]
    shown: Sampled
    floors: list[float]
    tokens: list[int]
    targets: int


def stores_of(source: RecallSource, draws: int, share: float = USUAL_SHARE) -> list[Store]:
    """Return stores with everything of a source, one for each draw of verdicts.

    Args:
        source: The source.
        draws: How often verdicts are drawn.
        share: Of the runs that have one.
    """
    everything = np.ones(len(source), dtype=bool)
    number = 1 if share == 1.0 else draws
    return [Store(source, everything, with_verdicts(source, share, at)) for at in range(number)]


def measure(
    source: RecallSource,
    sources: Sequence[RecallSource],
    draws: int,
    meter: Meter | None,
    tell: Tell,
) -> SourceFigures:
    """Measure all ways with everything of a source in the store.

    Args:
        source: The source.
        sources: All sources.
        draws: How often verdicts are drawn.
        meter: Measures bits; None to leave them out.
        tell: Called with a line for whoever waits.
    """
    tasks = TaskMeans(source.tasks[source.queries].tolist())
    usual = stores_of(source, draws)
    f1 = {
        way: tasks.mean(np.mean([column(one, way) for one in usual], axis=0))
        if way in KNOWING
        else tasks.mean(column(usual[0], way))
        for way in WAYS
    }
    found = [[one.recall(query) for query in source.queries.tolist()] for one in usual]
    are_shown = np.array([[bool(shown) for shown in of_draw] for of_draw in found])
    f1_of_shown = {
        way: tasks.mean(_mean_where(are_shown, np.stack([column(one, way) for one in usual])))
        for way in (RECALL, RANDOM, NEAREST)
    }
    by_share = {
        share: tasks.mean(
            np.mean([column(one, RECALL) for one in stores_of(source, draws, share)], axis=0)
        )
        for share in VERDICT_SHARES
    }
    shown = {one for of_draw in found for ranked in of_draw for one in ranked}
    figures = SourceFigures(
        f1=f1,
        bits={},
        f1_by_share=by_share,
        f1_of_shown=f1_of_shown,
        shown=tasks.mean(are_shown.mean(axis=0)),
        floors=[one.floor for one in usual],
        tokens=[estimate_tokens(to_few_shot(source.traces[one])) for one in sorted(shown)],
        targets=0,
    )
    if meter is not None:
        runs = targets(source)
        figures.targets = len(runs)
        figures.bits = _bits(source, sources, usual[:_BITS_DRAWS], runs, meter, tell)
    return figures


def _bits(
    source: RecallSource,
    sources: Sequence[RecallSource],
    stores: Sequence[Store],
    runs: Sequence[int],
    meter: Meter,
    tell: Tell,
) -> dict[str, Sampled]:
    tasks = TaskMeans(source.tasks[list(runs)].tolist())
    found = {}
    for way in (NOTHING, ELSEWHERE, *WAYS):
        tell(f"{source.name}: bits, {way}")
        if way == ELSEWHERE:
            found[way] = tasks.mean(meter.from_elsewhere(source, sources, runs))
            continue
        of_draws = [meter.column(one, way, runs) for one in stores[: 3 if way in KNOWING else 1]]
        found[way] = tasks.mean(np.mean(of_draws, axis=0))
    return found


def _mean_where(known: Array, values: Array) -> Array:
    """Return the mean of each column where it is known; NaN where it never is."""
    numbers = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    return np.divide(sums, numbers, out=np.full(len(sums), np.nan), where=numbers > 0)


@dataclass
class SizeFigures:
    """Recall with stores of one size, by how they were filled.

    Attributes:
        size: Of all sources together.
        kept: By source, how many runs a store holds.
        f1: By filling and source, the plan F1; 0 where nothing is shown.
        f1_without_floor: The same where even the least similar trace is shown.
        bits: By filling and source, the bits a token.
        good: By filling and source, the share of successes among what is kept.
    """

    size: int
    kept: dict[str, int]
    f1: dict[str, dict[str, Sampled]] = field(default_factory=dict)
    f1_without_floor: dict[str, dict[str, Sampled]] = field(default_factory=dict)
    bits: dict[str, dict[str, Sampled]] = field(default_factory=dict)
    good: dict[str, dict[str, float]] = field(default_factory=dict)

    def gain(self, over: str, fill: str, source: str | None, *, in_bits: bool) -> Sampled:
        """Return by how much one filling is better than another; for no source, of the mean."""
        figures = self.bits if in_bits else self.f1
        one, other = (
            mean(figures[name].values()) if source is None else figures[name][source]
            for name in (fill, over)
        )
        return other - one if in_bits else one - other


def by_size(
    sources: Sequence[RecallSource], draws: int, meter: Meter | None, tell: Tell
) -> list[SizeFigures]:
    """Measure recall with stores of equal size.

    Args:
        sources: The sources, each of which has its share in each store.
        draws: How often verdicts are drawn and the model is fitted.
        meter: Measures bits; None to leave them out.
        tell: Called with a line for whoever waits.
    """
    later = [later_runs(source, draws, tell) for source in sources]
    number = min(len(of_source) for of_source in later)
    found = []
    for size in SIZES:
        sizes = [shares([of_source[at] for of_source in later], size) for at in range(number)]
        if None in sizes:
            tell(f"no store of {size}: too few later runs")
            continue
        figures = SizeFigures(size, {})
        for place, source in enumerate(sources):
            figures.kept[source.name] = (sizes[0] or [])[place]
            tasks = TaskMeans(source.tasks[source.queries].tolist())
            for fill in FILLS:
                stores = [
                    later[place][at].store(fill, (sizes[at] or [])[place]) for at in range(number)
                ]
                for way, found_f1 in (
                    (RECALL, figures.f1),
                    (RECALL_ANY, figures.f1_without_floor),
                ):
                    columns = [column(one, way) for one in stores]
                    found_f1.setdefault(fill, {})[source.name] = tasks.mean(
                        np.mean(columns, axis=0)
                    )
                figures.good.setdefault(fill, {})[source.name] = statistics.fmean(
                    source.successes[one.kept].mean() for one in stores
                )
                if meter is not None:
                    tell(f"{source.name}: bits, {size} kept {fill}")
                    runs = targets(source)
                    of_draws = [meter.column(one, RECALL, runs) for one in stores]
                    figures.bits.setdefault(fill, {})[source.name] = TaskMeans(
                        source.tasks[runs].tolist()
                    ).mean(np.mean(of_draws, axis=0))
        found.append(figures)
    return found
