"""Does recall show a better trace than others would, and how long does a search take?

    pip install -e '.[bench]'
    python -m tests.benchmarks.recall [--every N] [--folds 5] [--traces 10000]

The recorded runs are taken, where they lie beside the checkout: some minutes.

How it is measured
  Each source stands for itself, as a domain does. Its tasks are in five parts. For the tasks of one
  part, a run of the others is shown: any, the nearest, or what `ExampleSearch` finds in a store
  with all of them. Tasks are looked up for each run that succeeded and that nobody attacked.
  The plan of a run is how often it called each tool. Plan F1 is what the plan of the shown run has
  in common with that of the successful one. Where nothing is shown, it is 0.
  In the store, one run in five has a verdict. If these suffice for a confidence model, it judges
  the others, which are recorded after it; else they count as what they look like. Runs in which
  planted instructions are found are never shown by recall. The other ways may show them.
  Intervals are of 95 %, with tasks, not runs, as what was sampled. Differences are of the same
  tasks.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kp_langchain import TraceStore, to_few_shot
from kp_langchain.embedding.embedder import embed_texts
from kp_langchain.recall import ExampleSearch
from kp_langchain.recall.prompt_text import estimate_tokens
from kp_langchain.scoring import resolve_embedder
from tests.benchmarks.harness import machine, median_ms, parser, table
from tests.benchmarks.intervals import Array, Sampled, TaskResamples, mean
from tests.benchmarks.scoring import RandomVectors
from tests.benchmarks.store import fill, made_runs, seconds, text
from tests.benchmarks.workspace import (
    KEEPS_ALL,
    RECORDED,
    WITHOUT_MODEL,
    KnownEmbeddings,
    Run,
    Workspace,
    most_common_domain,
    read_runs,
)

SOURCES = ("agentdojo", "tau-bench", "react-fever", "reflexion-hotpotqa")
"""Those whose runs name their tasks, and with enough of either outcome."""
RANDOM, NEAREST, NEAREST_SUCCESS, RECALL = "random", "nearest of all", "nearest success", "recall"
WAYS = (RANDOM, NEAREST, NEAREST_SUCCESS, RECALL)
_VERDICT_SHARE = 0.2
_QUERIES = 200


@dataclass
class Figures:
    """What was shown for the tasks of one source.

    Attributes:
        tasks: The task of each query.
        f1: By way, the plan F1 of each query; 0 where nothing is shown.
        is_shown: Whether recall shows something for each query.
        tokens: Of each example that recall shows.
        floors: The floor of each part.
    """

    tasks: list[str] = field(default_factory=list)
    f1: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    is_shown: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    def mean(self, values: Sequence[float]) -> Sampled:
        return TaskResamples(self.tasks).mean_of_tasks(self.tasks, values)


def plan_of(run: Run) -> Counter[str]:
    """Return how often a run called each tool."""
    return Counter(
        call["function"]["name"]
        for message in run.row["messages"]
        for call in message.get("tool_calls") or ()
    )


def plan_f1(one: Counter[str], other: Counter[str]) -> float:
    """Return what two plans have in common, 0 to 1; two empty ones are equal."""
    if not one and not other:
        return 1.0
    return 2 * (one & other).total() / (one.total() + other.total())


def objective_of(run: Run) -> str:
    return next(str(one["content"]) for one in run.row["messages"] if one["role"] == "user")


def is_query(run: Run) -> bool:
    """Return whether a run succeeded, and nobody attacked it."""
    return run.success and not (run.row.get("meta") or {}).get("attack")


def parts(runs: Sequence[Run], number: int) -> Iterator[tuple[list[Run], list[Run]]]:
    """Yield the runs that are kept and the queries of other tasks, for each part of the tasks."""
    tasks = sorted({run.task for run in runs})
    random.Random(1).shuffle(tasks)
    for at in range(number):
        asked = set(tasks[at::number])
        kept = [run for run in runs if run.task not in asked]
        yield kept, [run for run in runs if run.task in asked and is_query(run)]


def keep(runs: Sequence[Run], domain: str, folder: Path, seed: int) -> Workspace:
    """Record runs, of which one in five has a verdict; those come first."""
    workspace = Workspace(folder, domain, **KEEPS_ALL, **WITHOUT_MODEL)
    number = max(1, round(_VERDICT_SHARE * len(runs)))
    judged = random.Random(seed).sample(runs, number)
    ids = {run.id for run in judged}
    workspace.record(judged)
    workspace.label(judged)
    workspace.calibrate()  # installs no model if these are too few, or if it is refused
    workspace.record(run for run in runs if run.id not in ids)
    return workspace


def measure(runs: Sequence[Run], folds: int, embedder: Any) -> Figures:
    """Measure all ways for the tasks of one source.

    Args:
        runs: The runs of the source.
        folds: In how many parts its tasks are.
        embedder: Embeds tasks.
    """
    figures, domain = Figures(), most_common_domain(runs)
    for seed, (kept, queries) in enumerate(parts(runs, folds)):
        with TemporaryDirectory() as folder:
            workspace = keep(kept, domain, Path(folder) / "kept", seed)
            with workspace.store() as store:
                search = ExampleSearch(store, embedder)
                vectors = _vectors(embedder, kept), _vectors(embedder, queries)
                _shown(figures, kept, queries, vectors, search, domain)
    return figures


def _shown(
    figures: Figures,
    kept: Sequence[Run],
    queries: Sequence[Run],
    vectors_of: tuple[Array, Array],
    search: ExampleSearch,
    domain: str,
) -> None:
    plans = [plan_of(run) for run in kept]
    vectors, succeeded = vectors_of[0], np.array([run.success for run in kept])
    for run, vector in zip(queries, vectors_of[1], strict=True):
        f1s = np.array([plan_f1(plan, plan_of(run)) for plan in plans])
        similarities = vectors @ vector
        found = search.find(objective_of(run), domain=domain)
        shown = 0.0
        for example in found.matches:
            calls = (step.tool for step in example.trace.steps if step.type == "tool_call")
            shown = plan_f1(Counter(tool.name for tool in calls if tool), plan_of(run))
            figures.tokens.append(estimate_tokens(to_few_shot(example.trace)))
        figures.tasks.append(run.task)
        figures.is_shown.append(float(bool(found.matches)))
        figures.floors.append(found.floor)
        for way, f1 in (
            (RANDOM, f1s.mean()),
            (NEAREST, f1s[np.argmax(similarities)]),
            (NEAREST_SUCCESS, f1s[np.argmax(np.where(succeeded, similarities, -2.0))]),
            (RECALL, shown),
        ):
            figures.f1[way].append(float(f1))


def _vectors(embedder: Any, runs: Sequence[Run]) -> Array:
    found = [one.vector for one in embed_texts(embedder, [objective_of(run) for run in runs])]
    size = next((len(one) for one in found if one is not None), 1)
    vectors = np.array([np.zeros(size) if one is None else one for one in found])
    return vectors.reshape(len(runs), size)


def tables(found: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the tables of what is shown."""
    f1 = {name: {way: one.mean(one.f1[way]) for way in WAYS} for name, one in found.items()}
    means = {way: mean(one[way] for one in f1.values()) for way in WAYS}
    rows = [
        [name, *(one[way].text() for way in WAYS), (one[RECALL] - one[NEAREST]).text("+.2f")]
        for name, one in [*f1.items(), ("mean", means)]
    ]
    yield table("Plan F1 of what is shown", ["source", *WAYS, "recall over nearest of all"], rows)
    rows = [
        [
            name,
            f"{min(one.floors):.2f} to {max(one.floors):.2f}",
            f"{one.mean(one.is_shown).value:.0%}",
            f"{statistics.median(one.tokens):.0f}",
            str(max(one.tokens)),
        ]
        for name, one in found.items()
        if one.tokens
    ]
    head = ["source", "floor", "tasks with an example", "tokens, median", "tokens, longest"]
    yield table("Examples that recall shows", head, rows)


def costs(embedder: Any, traces: int) -> str:
    """Return the table of the time of a search in a new store in a file."""
    drawn, domain = random.Random(2), "finance"
    tasks = [text(drawn, 20) for _ in range(_QUERIES)]
    with TemporaryDirectory() as folder, TraceStore(Path(folder) / "runs.db") as store:
        runs = made_runs(traces + 20, words=60, domain=domain)
        fill(store, islice(runs, traces))

        def look_up(search: ExampleSearch, limit: int = 1) -> None:
            search.find(drawn.choice(tasks), domain=domain, floor=0.0, limit=limit)

        vectors = KnownEmbeddings(RandomVectors())
        first_s = seconds(lambda: look_up(ExampleSearch(store, vectors)))
        search = ExampleSearch(store, vectors)
        opened_s = seconds(lambda: look_up(search))
        one, three = (
            median_ms(lambda limit=limit: look_up(search, limit), _QUERIES)  # type: ignore[misc]
            for limit in (1, 3)
        )
        after = []
        for run in runs:
            store.add(run)
            after.append(1e3 * seconds(lambda: look_up(search)))
    some = iter(tasks)
    embedding = median_ms(lambda: embedder.embed([next(some)]), rounds=min(50, _QUERIES))
    rows = [
        ["a search", f"{one:.1f} ms"],
        ["for three examples", f"{three:.1f} ms"],
        ["right after one more run was kept", f"{statistics.median(after):.1f} ms"],
        ["beside that, the embedding of the task", f"{embedding:.1f} ms"],
        ["the first search of a store, without the time of embedding", f"{first_s:.1f} s"],
        ["the first search in another process", f"{opened_s:.1f} s"],
    ]
    return table(f"Time among {traces:,} kept traces of one domain", ["median of", "time"], rows)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where there is nothing to measure with."""
    options = parser("tests.benchmarks.recall", __doc__)
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    options.add_argument("--folds", type=int, default=5, metavar="N",
                         help="in how many parts the tasks are (default: %(default)s)")  # fmt: skip
    options.add_argument("--traces", type=int, default=10_000, metavar="N",
                         help="of the store whose searches are timed; 0: none")  # fmt: skip
    chosen = options.parse_args(words)
    embedder = resolve_embedder("auto")
    if not RECORDED.is_file() or embedder is None or find_spec("sklearn") is None:
        print("this needs the recorded runs beside the checkout, and pip install -e '.[bench]'",
              file=sys.stderr)  # fmt: skip
        return 1
    logging.disable(logging.WARNING)
    print(f"{machine()}\n", flush=True)
    all_runs = read_runs([RECORDED], chosen.every)
    by_source = {name: all_runs[name] for name in SOURCES}
    known = KnownEmbeddings(embedder)
    found = {}
    for name in SOURCES:
        print(f"{name}: {len(by_source[name])} runs", file=sys.stderr, flush=True)
        found[name] = measure(by_source[name], chosen.folds, known)
    print(*tables(found), sep="\n", flush=True)
    if chosen.traces:
        print(costs(embedder, chosen.traces))
    return 0


if __name__ == "__main__":
    sys.exit(main())
