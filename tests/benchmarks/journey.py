"""What a user gets: verdicts on some runs, `calibrate --write`, and then the runs that follow.

    pip install -e '.[bench]'
    python -m tests.benchmarks.journey [--sources NAME ...] [--draws N] [--every N]

Needs the recorded runs beside the checkout. Of each source with enough of them, several times:

1. 150 runs of some tasks, or half of the source's, are imported; each names its task (`kp_task`).
2. `kp-langchain label import FILE` records the truth about these runs.
3. `kp-langchain calibrate --domain DOMAIN --write`.
4. A second process imports up to 150 runs of other tasks, and a third one up to 150 more.
5. What the gate kept of these later runs is read from the store.

Beside it, the same later runs meet the default gate: without 2 and 3. Nothing else is configured,
so 10 % are promised. Prints tables in Markdown. Intervals are of 95 %, with tasks as what was
sampled. A run takes up to 100 ms, nearly all for its embedding.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.intervals import Selection, TaskResamples, mean
from tests.benchmarks.workspace import (
    LABELLED,
    RECORDED,
    WITHOUT_MODEL,
    Run,
    Workspace,
    has_both_outcomes,
    most_common_domain,
    read_runs,
    split_by_task,
)

_PROCESSES = 2  # after the verdicts
_ENOUGH = 30  # runs of either outcome
_GATES = ("default gate", "calibrated")


class Journey(NamedTuple):
    """What became of the later runs of one draw.

    Attributes:
        labelled: How many runs had a verdict.
        model: What became of the model: refused, provisional or accepted.
        gate: Whether the calibrated gate is by score or by worth.
        default: What the default gate keeps of the later runs.
        calibrated: What the gate of `calibrate --write` keeps.
    """

    labelled: int
    model: str
    gate: str
    default: Selection
    calibrated: Selection


def play(runs: Sequence[Run], seed: int, folder: Path, **settings: str) -> Journey:
    """Play one journey, with the default gate and with that of `calibrate --write`.

    Args:
        runs: The runs of a source.
        seed: Decides which tasks get verdicts.
        folder: An empty folder.
        settings: Environment variables of the commands.
    """
    labelled, later = split_by_task(runs, seed)
    later = later[: _PROCESSES * LABELLED]
    domain = most_common_domain(runs)
    user = Workspace(folder / "calibrated", domain, **settings)
    user.record(labelled)
    shutil.copytree(user.folder, folder / "default")
    other = Workspace(folder / "default", domain, **settings)
    user.label(labelled)
    result = user.calibrate("--write")
    model = "provisional" if result["provisional"] else "accepted"
    half = (len(later) + 1) // _PROCESSES
    for workspace in (other, user):
        workspace.record(later[:half])
        workspace.record(later[half:])
    resamples = TaskResamples(run.task for run in runs)
    with user.store() as store:
        gates = Counter(one.gate for run in later if (one := store.get(run.id)) is not None)
    return Journey(
        len(labelled),
        "refused" if result["refusal"] is not None else model,
        gates.most_common(1)[0][0],
        *(_kept(one, later, resamples) for one in (other, user)),
    )


def _kept(workspace: Workspace, later: Sequence[Run], resamples: TaskResamples) -> Selection:
    with workspace.store() as store:
        stored = [(run, store.get(run.id)) for run in later]
    pairs = [(run, one.decision == "kept") for run, one in stored if one is not None]
    return Selection(
        [run.success for run, _ in pairs],
        [run.task for run, _ in pairs],
        [is_kept for _, is_kept in pairs],
        resamples,
    )


def tables(by_source: dict[str, list[Journey]]) -> Iterator[str]:
    """Yield a table of the means by source, and one of all draws."""
    rows: list[list[str]] = []
    columns: dict[str, list[list[Selection]]] = {gate: [] for gate in _GATES}
    for name, journeys in by_source.items():
        models = Counter(one.model for one in journeys).most_common()
        rows.append([name, ", ".join(f"{number} {word}" for word, number in models)])
        for gate, selections in zip(
            _GATES,
            ([one.default for one in journeys], [one.calibrated for one in journeys]),
            strict=True,
        ):
            columns[gate].append(selections)
            rows[-1] += _cells([selections])
    rows.append(["mean", "", *(cell for gate in _GATES for cell in _cells(columns[gate]))])
    heads = ["kept", "success rate of the kept, of all = 1", "tasks solved for each"]
    head = ["source", "models", *(f"{gate}: {head}" for gate in _GATES for head in heads)]
    yield table(
        "The runs after the verdicts, by the default gate and after calibrating", head, rows
    )
    yield table(
        "The same by draw",
        ["source", "verdicts, later runs", "model", "gate", "default gate: kept, right",
         "calibrated: kept, right", "right of all later runs"],
        [
            [
                name,
                f"{one.labelled}, {len(one.default.tasks)}",
                one.model,
                one.gate,
                *(_kept_and_right(selection) for selection in (one.default, one.calibrated)),
                f"{statistics.fmean(one.default.successes):.0%}",
            ]
            for name, journeys in by_source.items()
            for one in journeys
        ],
    )  # fmt: skip


def _cells(by_source: Sequence[Sequence[Selection]]) -> list[str]:
    """Return the means of several sources."""
    share = statistics.fmean(
        statistics.fmean(one.share for one in selections) for selections in by_source
    )
    lift = mean(mean(one.lift() for one in selections) for selections in by_source)
    solved = mean(mean(one.solved_per_run() for one in selections) for selections in by_source)
    return [f"{share:.1%}", lift.text(), solved.text().partition(" ")[0]]


def _kept_and_right(selection: Selection) -> str:
    right = selection.lift().value * statistics.fmean(selection.successes)
    return f"{selection.share:.1%}, " + ("-" if right != right else f"{right:.0%}")


def main(words: Sequence[str] | None = None) -> int:
    """Play the journeys and print; return 1 where there are no recorded runs."""
    options = parser("tests.benchmarks.journey", __doc__)
    options.add_argument("--sources", nargs="+", metavar="NAME",
                         help="by default all with enough runs")  # fmt: skip
    options.add_argument("--draws", type=int, default=3, metavar="N",
                         help="how often tasks are drawn (default: %(default)s)")  # fmt: skip
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    options.add_argument("--no-embedder", action="store_true", help="leave novelty at 0.5")
    chosen = options.parse_args(words)
    if not RECORDED.is_file():
        print(f"no recorded runs at {RECORDED}", file=sys.stderr)
        return 1
    print(f"{machine()}\n", flush=True)
    by_source: dict[str, list[Journey]] = {}
    for name, runs in read_runs([RECORDED], chosen.every).items():
        if (chosen.sources and name not in chosen.sources) or not has_both_outcomes(runs, _ENOUGH):
            continue
        for seed in range(chosen.draws):
            print(f"{name}: draw {seed + 1} of {chosen.draws}", file=sys.stderr, flush=True)
            with TemporaryDirectory(prefix="kp-journey-") as folder:
                settings = WITHOUT_MODEL if chosen.no_embedder else {}
                journey = play(runs, seed, Path(folder), **settings)
            by_source.setdefault(name, []).append(journey)
    if not by_source:
        print("no source with enough runs", file=sys.stderr)
        return 1
    print(*tables(by_source), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
