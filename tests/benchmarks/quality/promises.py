"""How often a model is said to hold no longer: on runs like its own, and on runs that changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.later_verdicts import MOST_RUNS, later_verdicts
from tests.benchmarks.quality.scores import Source
from tests.benchmarks.quality.tables import titled

VERDICTS = (50, 100, 150)
CHANGES = {
    "as before": "runs as before",
    "opposite": "verdicts turned round",
    "rarer": "every second success a failure",
}
_FEWEST_LATER = 30


def figures(
    sources: Sequence[Source], draws: int, tell: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """How many models are said to hold no longer, by source.

    Args:
        sources: The sources.
        draws: How often runs are drawn for each number of verdicts.
        tell: Called with a line for whoever waits.
    """
    found = {}
    for source in sources:
        tell(f"{source.name}: promises held against later verdicts")
        broken = dict.fromkeys(CHANGES, 0)
        models = 0
        for number in VERDICTS:
            for seed in range(draws if len(source.runs) >= number + _FEWEST_LATER else 0):
                alarms = _alarms(source, number, random.Random(f"{number} {seed}"))
                models += bool(alarms)
                for change, is_broken in alarms.items():
                    broken[change] += is_broken
        found[source.name] = {"models": models, "broken": broken}
    return found


def _alarms(source: Source, number: int, draw: random.Random) -> dict[str, bool]:
    """Whether a model of so many verdicts holds no longer on the next ones; {} if it is refused."""
    size = min(len(source.runs), number + MOST_RUNS)
    runs = [
        replace(one.labelled, trace_id=str(at))
        for at, one in enumerate(draw.sample(list(source.runs), size))
    ]
    known, later = runs[:number], runs[number:]
    fitted = fit(source.name, known)
    if fitted.model is None or fitted.refusal is not None:
        return {}
    alarms = {}
    for change in CHANGES:
        held = later_verdicts(fitted.model, known + _changed(later, change))
        alarms[change] = held is not None and held.is_broken
    return alarms


def _changed(runs: Sequence[LabelledRun], change: str) -> list[LabelledRun]:
    if change == "opposite":
        return [replace(run, success=not run.success) for run in runs]
    if change == "rarer":
        return [replace(run, success=run.success and at % 2 == 0) for at, run in enumerate(runs)]
    return list(runs)


def tables(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table, under a heading."""
    yield titled(
        f"Models said to hold no longer by the next {MOST_RUNS} verdicts",
        ["source", "models", *CHANGES.values()],
        [_row(name, one) for name, one in [*found.items(), ("all", _total(found))]],
    )


def _total(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "models": sum(one["models"] for one in found.values()),
        "broken": {
            change: sum(one["broken"][change] for one in found.values()) for change in CHANGES
        },
    }


def _row(name: str, one: dict[str, Any]) -> list[str]:
    models = one["models"]
    shares = (f"{one['broken'][change] / models:.0%}" if models else "-" for change in CHANGES)
    return [name, str(models), *shares]
