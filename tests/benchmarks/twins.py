"""From which similarity two runs are repeats of one task, and which of two twins to keep.

    pip install -e '.[bench]'
    python -m tests.benchmarks.twins [FILE ...] [--task FIELD]

A file holds runs as `python -m tests.benchmarks.quality` takes them; by default the recorded ones
are taken, where they lie beside the checkout. Runs are compared within their source.

The first table has the pairs of runs that are at least so similar, and how many of them are of one
task. The second one has what is kept if runs come in an order shuffled by a fixed seed and all pass
the gate: the tasks of which no run is kept, and the runs kept that are at least 0.9 similar to
another kept one. The third one is of the pairs above 0.9 of which one run is right: how often that
is the surer one, by how much surer it is. Confidences are those of models that never saw the task.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.embedding.embedder_protocol import resolve_embedder
from tests.benchmarks.quality import runs
from tests.benchmarks.quality.__main__ import RECORDED
from tests.benchmarks.quality.scores import KnownEmbeddings
from tests.benchmarks.quality.tables import titled

SIMILARITIES = (0.8, 0.85, 0.88, 0.9, 0.92, 0.95, 0.98)
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
TWINS_FROM = 0.9
ENOUGH_RUNS = 50
ORDER_SEED = 1


@dataclass(frozen=True)
class Source:
    """The runs of one source.

    Args:
        runs: They.
        similarities: The cosine similarity of each two.
    """

    runs: Sequence[runs.Run]
    similarities: NDArray[np.float64]

    def pairs(self, least: float) -> Iterator[tuple[int, int]]:
        """Each two runs that are at least so similar."""
        first, second = np.triu_indices(len(self.runs), 1)
        alike = self.similarities[first, second] >= least
        yield from zip(first[alike].tolist(), second[alike].tolist(), strict=True)

    def of_one_task(self, least: float) -> tuple[int, int]:
        """How many pairs that are at least so similar are of one task, and of all."""
        same = [self.runs[one].task == self.runs[other].task for one, other in self.pairs(least)]
        return sum(same), len(same)

    def kept(self, least: float) -> list[int]:
        """Which runs are kept if none is that is at least so similar to one kept before."""
        order = list(range(len(self.runs)))
        random.Random(ORDER_SEED).shuffle(order)
        kept: list[int] = []
        for at in order:
            if not (self.similarities[at, kept] >= least).any():
                kept.append(at)
        return kept

    def lost_and_twins(self, least: float) -> tuple[int, float]:
        """The number of tasks of which no run is kept, and the share of the kept with a twin."""
        kept = self.kept(least)
        lost = {run.task for run in self.runs} - {self.runs[at].task for at in kept}
        among = self.similarities[np.ix_(kept, kept)] - np.eye(len(kept))
        return len(lost), float((among >= TWINS_FROM).any(axis=1).mean())

    def surer(self) -> list[tuple[float, bool]]:
        """Of each pair of twins of which one run is right: the margin, and whether the surer is."""
        sure = fit("source", [_labelled(one) for one in self.runs]).held_out
        right = [one.success for one in self.runs]
        return [
            (abs(sure[one] - sure[other]), right[one if sure[one] > sure[other] else other])
            for one, other in (self.pairs(TWINS_FROM) if sure else ())
            if right[one] != right[other]
        ]


def _labelled(run: runs.Run) -> LabelledRun:
    looked = run.trace.metadata.success
    features = features_of(run.trace, looked_successful=looked)
    return LabelledRun(
        run.task, run.success, features, looked, {}, run.trace.metadata.created_at, run.trace.id
    )


def main() -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.twins")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--task", default=None, metavar="FIELD", help="where a line names its task")
    chosen = parser.parse_args()
    files = chosen.files or [RECORDED]
    if missing := [str(file) for file in files if not file.is_file()]:
        print(f"no such file: {', '.join(missing)}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    task = chosen.task or ("task" if chosen.files else "meta.task_id")
    found = runs.read(files, lambda line: print(line, file=sys.stderr), task)
    embedder = resolve_embedder("auto")
    if embedder is None:
        print("no embedding model is installed", file=sys.stderr)
        return 1
    by_source: defaultdict[str, list[runs.Run]] = defaultdict(list)
    for run in found.labelled:
        by_source[run.source].append(run)
    sources = {
        name: Source(some, KnownEmbeddings(embedder, some).similarities(some))
        for name, some in sorted(by_source.items(), key=lambda pair: -len(pair[1]))
        if len(some) >= ENOUGH_RUNS
    }
    for table in tables(sources):
        print(table)
    return 0


def tables(sources: dict[str, Source]) -> list[str]:
    """The three tables, in Markdown."""
    head = ["source", "runs", "tasks", *(f"{least:.2f}" for least in SIMILARITIES)]
    alike, kept = [], []
    margins: list[tuple[float, bool]] = []
    for name, source in sources.items():
        cells = [name, str(len(source.runs)), str(len({run.task for run in source.runs}))]
        counts = [source.of_one_task(least) for least in SIMILARITIES]
        alike.append([*cells, *(f"{same} of {all_}" for same, all_ in counts)])
        losses = [source.lost_and_twins(least) for least in SIMILARITIES]
        kept.append([*cells, *(f"{lost}, {twins:.0%}" for lost, twins in losses)])
        margins += source.surer()
    rows = []
    for margin in MARGINS:
        right = [is_right for by, is_right in margins if by >= margin]
        share = f"{sum(right) / len(right):.2f}" if right else "-"
        rows.append([f"{margin:.2f}", str(len(right)), share])
    return [
        titled("Pairs of one task among those that are at least so similar", head, alike),
        titled("Tasks of which nothing is kept, and twins among the kept", head, kept),
        titled("Of two twins, is the surer one right?", ["surer by", "pairs", "right"], rows),
    ]


if __name__ == "__main__":
    sys.exit(main())
