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
from collections.abc import Sequence
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


class Journey(NamedTuple):
    """What became of the later runs of one draw.

    Attributes:
        model: What became of the model: refused or accepted.
        default: What the default gate keeps of the later runs.
        calibrated: What the gate of `calibrate --write` keeps.
    """

    model: str
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
    half = (len(later) + 1) // _PROCESSES
    for workspace in (other, user):
        workspace.record(later[:half])
        workspace.record(later[half:])
    resamples = TaskResamples(run.task for run in runs)
    return Journey(
        "accepted" if result["refusal"] is None else "refused",
        _kept(other, later, resamples),
        _kept(user, later, resamples),
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


def means_by_source(by_source: dict[str, list[Journey]]) -> str:
    """Return the table of the means of all draws."""
    rows = []
    for name, journeys in by_source.items():
        models = Counter(one.model for one in journeys).most_common()
        rows.append(
            [
                name,
                ", ".join(f"{number} {word}" for word, number in models),
                *_cells([[one.default for one in journeys]]),
                *_cells([[one.calibrated for one in journeys]]),
            ]
        )
    defaults = [[one.default for one in journeys] for journeys in by_source.values()]
    calibrated = [[one.calibrated for one in journeys] for journeys in by_source.values()]
    rows.append(["mean", "", *_cells(defaults), *_cells(calibrated)])
    figures = ["kept", "success rate of the kept, of all = 1", "tasks solved for each"]
    head = ["source", "models"]
    head += [f"{gate}: {one}" for gate in ("default gate", "calibrated") for one in figures]
    title = "The runs after the verdicts, by the default gate and after calibrating"
    return table(title, head, rows)


def _cells(by_source: Sequence[Sequence[Selection]]) -> list[str]:
    """Return the means of several sources."""
    share = statistics.fmean(
        statistics.fmean(one.share for one in selections) for selections in by_source
    )
    lift = mean(mean(one.lift() for one in selections) for selections in by_source)
    solved = mean(mean(one.solved_per_run() for one in selections) for selections in by_source)
    return [f"{share:.1%}", lift.text(), solved.text().partition(" ")[0]]


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
    print(means_by_source(by_source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
