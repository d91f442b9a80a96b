"""Stores of equal size, filled by the score, by worth, and at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kp_langchain.calibration.hypothetical_score import hypothetical_worth
from tests.benchmarks.quality.draws import Draw, drawn
from tests.benchmarks.quality.resampling import Array
from tests.benchmarks.quality.selection import TWINS_FROM
from tests.benchmarks.recall.knowledge import Knowledge, estimated
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.ways import Store

SIZES = (50, 100, 200, 500, 1000)
SCORE, WORTH, AT_RANDOM = "by the score", "by worth", "at random"
FILLS = (SCORE, WORTH, AT_RANDOM)


@dataclass(frozen=True)
class Later:
    """The runs of a source that come after those with a verdict, as the gate sees them.

    Args:
        source: The source.
        places: Where each of them is in the source.
        values: By the name of a filling, what it goes by, of each of them.
        knowledge: What is known of all runs of the source; none of these has a verdict.
        similarities: Of each two of their traces.
    """

    source: RecallSource
    places: Sequence[int]
    values: Mapping[str, Array]
    knowledge: Knowledge
    similarities: Array

    def store(self, fill: str, size: int) -> Store:
        """Return the store with those of the highest values that are not twins.

        Args:
            fill: How it is filled.
            size: How many runs it keeps at most.
        """
        kept: list[int] = []
        for one in np.argsort(-self.values[fill], kind="stable").tolist():
            if len(kept) == size:
                break
            if not (self.similarities[one, kept] >= TWINS_FROM).any():
                kept.append(one)
        are_kept = np.zeros(len(self.source), dtype=bool)
        are_kept[[self.places[one] for one in kept]] = True
        return Store(self.source, are_kept, self.knowledge)


def later_runs(source: RecallSource, draws: int, tell: Callable[[str], object]) -> list[Later]:
    """Draw runs that get a verdict, fit a model to them, and value the runs that come later.

    As in `python -m tests.benchmarks.quality`; the two share no task.

    Args:
        source: The source.
        draws: How often.
        tell: Called with a line for whoever waits.
    """
    place = {id(one.run): at for at, one in enumerate(source.scored.runs)}
    return [
        _later(source, draw, place, seed)
        for seed, draw in enumerate(drawn(source.scored, draws, tell))
    ]


def _later(source: RecallSource, draw: Draw, place: Mapping[int, int], seed: int) -> Later:
    model = None if draw.state == "refused" else draw.model
    pairs = list(zip(draw.further, draw.confidences, strict=True))
    return Later(
        source,
        [place[id(one.run)] for one in draw.further],
        {
            SCORE: np.array([one.breakdown.total for one in draw.further]),
            WORTH: np.array([hypothetical_worth(one.labelled, chance) for one, chance in pairs]),
            AT_RANDOM: np.random.default_rng(seed).random(len(pairs)),
        },
        Knowledge([estimated(source, at, model) for at in range(len(source))], model is not None),
        source.scored.similarities(draw.further),
    )


def shares(later: Sequence[Later], size: int) -> list[int] | None:
    """Return how many runs of each source a store of some size holds; None if there are too few.

    Args:
        later: One draw of each source.
        size: Of the store, in which each source has the share that it has among all runs.
    """
    numbers = [len(one.places) for one in later]
    if sum(numbers) < size:
        return None
    return [max(1, round(size * number / sum(numbers))) for number in numbers]
