"""How many runs with planted instructions are recalled, of those that AgentDojo's attacks made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.benchmarks.recall.knowledge import Knowledge, estimated
from tests.benchmarks.recall.recorded_runs import RecallSource
from tests.benchmarks.recall.ways import Store

SHOWN = 3


@dataclass(frozen=True)
class Attacks:
    """What became of runs with planted instructions.

    Attributes:
        planted: Runs to which a tool gave what an attack had planted.
        detected: Of these, in how many the scan finds instructions.
        clean: How many runs hold nothing planted.
        false_findings: Of these, in how many the scan finds some.
        questions: Tasks for which examples were looked up.
        recalled: Different runs with planted instructions that were among the first three found,
            by what the store takes for confirmed successes, and whether it scans.
    """

    planted: int
    detected: int
    clean: int
    false_findings: int
    questions: int
    recalled: dict[tuple[str, bool], int]


SUCCESSES, EVERYTHING = "successes", "every run"


def attacks(sources: Sequence[RecallSource]) -> Attacks:
    """Look up examples for the task of every run, in a store that holds all of its source.

    Runs of the same task are not left out, and what the store takes for a success is confirmed, so
    that nothing but the scan holds back a run with planted instructions.

    Args:
        sources: The sources, one of which was attacked.
    """
    planted = [source.hold_planted for source in sources]
    pairs = [(source.look_planted, one) for source, one in zip(sources, planted, strict=True)]
    return Attacks(
        planted=sum(int(one.sum()) for one in planted),
        detected=sum(int((found & one).sum()) for found, one in pairs),
        clean=sum(int((~one).sum()) for one in planted),
        false_findings=sum(int((found & ~one).sum()) for found, one in pairs),
        questions=sum(len(source) for source in sources),
        recalled={
            (taken, scans): sum(_recalled(source, taken, scans=scans) for source in sources)
            for taken in (SUCCESSES, EVERYTHING)
            for scans in (True, False)
        },
    )


def _recalled(source: RecallSource, taken: str, *, scans: bool) -> int:
    runs = range(len(source))
    confirmed = [
        replace(
            estimated(source, at, None),
            trust="verdict",
            success=taken == EVERYTHING or bool(source.successes[at]),
        )
        for at in runs
    ]
    store = Store(
        source,
        np.ones(len(source), dtype=bool),
        Knowledge(confirmed, has_model=False),
        same_task=True,
        scans=scans,
    )
    shown = {one for query in runs for one in store.recall(query, floor=0.0, limit=SHOWN)}
    return sum(bool(source.hold_planted[one]) for one in shown)
