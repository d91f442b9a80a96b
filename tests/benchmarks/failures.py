"""Which failures of recorded runs are alike, and how often chance makes a group.

    python -m tests.benchmarks.failures [FILE ...] [--shuffles N]

Files are those of `tests.benchmarks.quality`; by default the recorded runs are taken, where they
lie beside the checkout. Each source is a domain, and the truth is its verdicts. Prints tables in
Markdown: how many failures of each source are in a group, the groups with their intervals of 95 %,
and in how many of N draws a source has a group if its labels say nothing. Labels are shuffled among
all runs of a source, or among its tasks, so that runs of one task still end alike. The last column
leaves the strongest group its labels, and says in how many draws there is another one.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kp_langchain import trace_from_messages
from kp_langchain.calibration.failure_groups import DomainFailures, domain_failures
from kp_langchain.calibration.failure_signs import SignedRun, signs_of
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.workspace import RECORDED, REPEATED, Run, has_both_outcomes, read_runs

_FEWEST_RUNS = 10
_START = datetime(2026, 2, 1, tzinfo=UTC)


def signed_runs(source: str, runs: Sequence[Run]) -> tuple[list[SignedRun], float]:
    """Return the runs of a source with their signs, and the seconds that the signs took."""
    traces = []
    for run in runs:
        try:
            traces.append((run, trace_from_messages(run.row["messages"], domain=run.domain)))
        except ValueError:  # it holds no answer of a model
            continue
    start = time.perf_counter()
    signs = [signs_of(trace) for _, trace in traces]
    seconds = time.perf_counter() - start
    return [
        SignedRun(
            trace_id=run.id,
            domain=source,
            task=run.task,
            at=_START + timedelta(minutes=at),
            signs=of_run,
            ended_well=run.success,
            success=run.success,
            tools=frozenset(step.tool.name for step in trace.steps if step.tool),
        )
        for at, ((run, trace), of_run) in enumerate(zip(traces, signs, strict=True))
    ], seconds


def shuffled(runs: Sequence[SignedRun], drawn: random.Random, *, by_task: bool) -> list[SignedRun]:
    """Return the runs with labels that say nothing.

    Args:
        runs: The runs of a source.
        drawn: Draws the order.
        by_task: Whether labels of one task stay together, as far as tasks are equally large.
    """
    order = {task: drawn.random() for task in sorted({run.task for run in runs})}
    places = sorted(runs, key=lambda run: (run.task, drawn.random()))
    if by_task:
        labels = sorted(runs, key=lambda run: (order[run.task], drawn.random()))
    else:
        labels = drawn.sample(list(runs), len(runs))
    return [replace(run, success=one.success) for run, one in zip(places, labels, strict=True)]


def has_group(runs: Sequence[SignedRun]) -> bool:
    """Return whether a source has a group."""
    return bool(domain_failures("", runs).groups)


def share_with_another(
    failures: DomainFailures, runs: Sequence[SignedRun], draws: int
) -> float | None:
    """Return in how many draws there is another group beside the strongest, 0 to 1.

    Args:
        failures: The failures of a source.
        runs: Its runs. Labels are shuffled among those outside the strongest group.
        draws: How many draws; None is returned without a group.
    """
    if not failures.groups:
        return None
    strongest = min(failures.groups, key=lambda group: group.stronger)
    sign = strongest.kind, strongest.sign
    inside = [run for run in runs if sign in run.signs.items()]
    outside = [run for run in runs if sign not in run.signs.items()]
    drawn = random.Random(f"{failures.domain} beside")
    number = 0
    for _ in range(draws):
        groups = domain_failures("", inside + shuffled(outside, drawn, by_task=False)).groups
        number += any((group.kind, group.sign) != sign for group in groups)
    return number / draws


def source_rows(every: Sequence[DomainFailures]) -> list[list[object]]:
    """Return what is said of each source."""
    rows = []
    for one in every:
        share = "-" if one.share is None else _interval(one.share.low, one.share.high)
        groups, grouped = len(one.groups) or "none", one.grouped or "-"
        rows.append([one.domain, one.runs, one.failures, share, groups, grouped])
    return rows


def group_rows(every: Sequence[DomainFailures]) -> list[list[object]]:
    """Return what is said of each group, and of the nearest where there is none."""
    rows = []
    for one in every:
        nearest = [one.nearest] if one.nearest is not None else []
        for group in (*one.groups, *nearest):
            mark = "" if one.groups else " (may be chance)"
            share = f"{group.failures} of {group.runs}"
            interval = _interval(group.share.low, group.share.high)
            others = f"{group.others:.0%}"
            title = group.title.replace("|", "/")
            rows.append([f"{one.domain}: {title}{mark}", share, interval, others, group.tasks])
    return rows


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _interval(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    options = parser("tests.benchmarks.failures", __doc__)
    options.add_argument("files", nargs="*", type=Path, default=[RECORDED, REPEATED],
                         metavar="FILE", help="labelled runs")  # fmt: skip
    options.add_argument("--shuffles", type=int, default=200, metavar="N",
                         help="draws of labels of each kind (default: %(default)s)")  # fmt: skip
    chosen = options.parse_args(words)
    if missing := [str(file) for file in chosen.files if not file.is_file()]:
        options.error(f"no such file: {', '.join(missing)}")
    sources: dict[str, list[SignedRun]] = {}
    seconds = 0.0
    for name, recorded in read_runs(chosen.files).items():
        if has_both_outcomes(recorded, 1) and len(recorded) >= _FEWEST_RUNS:
            sources[name], seconds_of_source = signed_runs(name, recorded)
            seconds += seconds_of_source
    if not sources:
        print("no source with 10 runs and both outcomes", file=sys.stderr)
        return 1
    every = [domain_failures(name, runs) for name, runs in sources.items()]
    number = sum(map(len, sources.values()))
    print(f"{machine()}\n\nSigns of a run: {1000 * seconds / number:.3f} ms, {number:,} runs\n")
    head = ["source", "runs", "failed", "95 %", "groups", "failures in a group"]
    print(table("Failures that are alike", head, source_rows(every)))
    head = ["group", "failed", "95 %", "other runs", "tasks"]
    print(table("Groups", head, group_rows(every)), flush=True)
    if chosen.shuffles:
        rows, shares = [], []
        for failures, (name, runs) in zip(every, sources.items(), strict=True):
            of_source: list[float | None] = []
            for by_task in (False, True):
                drawn = random.Random(f"{name} {by_task}")
                number = sum(
                    has_group(shuffled(runs, drawn, by_task=by_task))
                    for _ in range(chosen.shuffles)
                )
                of_source.append(number / chosen.shuffles)
            of_source.append(share_with_another(failures, runs, chosen.shuffles))
            rows.append([name, *map(_percent, of_source)])
            shares.append(of_source)
        known = [[one for one in column if one is not None] for column in zip(*shares, strict=True)]
        rows.append(["all", *(_percent(sum(one) / len(one) if one else None) for one in known)])
        head = ["source", "labels shuffled among runs", "among tasks", "beside the strongest group"]
        print(table("Sources with a group, if labels say nothing", head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
