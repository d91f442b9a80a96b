"""What a user's journey comes to, as Markdown tables."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.quality.resampling import Sampled, Selection, TaskResamples, mean
from tests.benchmarks.quality.tables import interval, titled

_GATES = {False: "default gate", True: "calibrated"}
Journey = dict[str, Any]


def tables(report: dict[str, Any]) -> Iterator[str]:
    """A table of the means by source, and one of all draws, each under a heading of its own."""
    by_source: defaultdict[str, dict[bool, list[Journey]]] = defaultdict(
        lambda: {calibrated: [] for calibrated in _GATES}
    )
    for one in report["journeys"]:
        by_source[one["source"]][one["calibrated"]].append(one)
    yield _by_source(by_source)
    yield _by_draw(by_source)


def _by_source(by_source: dict[str, dict[bool, list[Journey]]]) -> str:
    rows, lifts, solved, kept, twins = [], *(defaultdict[bool, list[Any]](list) for _ in range(4))
    for name, gates in by_source.items():
        cells = []
        for calibrated, journeys in gates.items():
            selections = [_selection(one) for one in journeys]
            lifts[calibrated].append(mean(one.lift() for one in selections))
            solved[calibrated].append(mean(one.solved_per_run() for one in selections))
            kept[calibrated].append(statistics.fmean(map(_share, selections)))
            twins[calibrated].append(statistics.fmean(one["twins"] for one in journeys))
            cells += _cells(*(one[calibrated][-1] for one in (kept, lifts, solved, twins)))
        words = Counter(one["model"] for one in gates[True])
        models = ", ".join(f"{number} {word}" for word, number in words.most_common())
        rows.append([name, models, *cells])
    means = []
    for calibrated in _GATES:
        means += _cells(
            statistics.fmean(kept[calibrated]),
            mean(lifts[calibrated]),
            mean(solved[calibrated]),
            statistics.fmean(twins[calibrated]),
        )
    heads = ["kept", "success rate of the kept, of all = 1", "tasks solved for each", "twins"]
    return titled(
        "What a user gets: the runs after the verdicts, by the default gate and after "
        "`calibrate --write`",
        ["source", "models", *(f"{gate}: {head}" for gate in _GATES.values() for head in heads)],
        [*rows, ["mean", "", *means]],
    )


def _by_draw(by_source: dict[str, dict[bool, list[Journey]]]) -> str:
    rows = []
    for name, gates in by_source.items():
        for default, one in zip(gates[False], gates[True], strict=True):
            selection, before = _selection(one), _selection(default)
            base = statistics.fmean(selection.successes)
            rows.append(
                [
                    name,
                    str(one["draw"] + 1),
                    f"{one['labelled']}, {len(one['runs'])}",
                    one["model"],
                    one["gate"],
                    f"{_share(before):.1%}",
                    _percent(before.lift().value * base),
                    f"{_share(selection):.1%}",
                    _percent(selection.lift().value * base),
                    f"{base:.0%}",
                ]
            )
    return titled(
        "The same by draw",
        ["source", "draw", "verdicts, later runs", "model", "gate",
         "default gate: kept", "default gate: right", "calibrated: kept", "calibrated: right",
         "right of all later runs"],
        rows,
    )  # fmt: skip


def _cells(kept: float, lift: Sampled, solved: Sampled, twins: float) -> list[str]:
    estimate = solved.estimate
    return [
        f"{kept:.1%}",
        interval(lift.estimate),
        "-" if estimate is None else f"{estimate['value']:.2f}",
        f"{twins:.0%}",
    ]


def _selection(one: Journey) -> Selection:
    tasks, successes, kept = zip(*one["runs"], strict=True)
    names = [str(number) for number in range(one["tasks"])]
    return Selection(
        successes,
        [names[number] for number in tasks],
        [float(is_kept) for is_kept in kept],
        TaskResamples(names),
    )


def _share(selection: Selection) -> float:
    return statistics.fmean(selection.shares)


def _percent(share: float) -> str:
    return "-" if share != share else f"{share:.0%}"
