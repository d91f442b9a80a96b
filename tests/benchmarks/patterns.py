"""Which plans recur in recorded runs, and are those of one kind of task one pattern?

    python -m tests.benchmarks.patterns [FILE ...] [--show N] [--traces N]

Files are those of `tests.benchmarks.quality`; by default the recorded runs are taken, where they
lie beside the checkout. Each source is a domain, the truth is its verdicts, and every success is
kept. Then come right runs of each kind of task of the live benchmark's worlds, six of a kind with
different values and wordings: a pattern is pure if its members are of one kind, and a kind is found
if at least three of its runs are in one pattern.

--show prints the SKILL.md of N patterns drawn at random, for somebody who judges them. --traces
says what it takes to look through a store of N runs.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kp_langchain import ReasoningTrace, TraceStore, trace_from_messages
from kp_langchain.recall.patterns import Mined, Pattern, mine, patterns_of
from kp_langchain.recall.run_paths import RunPath, run_path
from kp_langchain.recall.skill_file import skill_text
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.live.__main__ import WORLDS
from tests.benchmarks.live.worlds import ANSWER, Call, Task, World
from tests.benchmarks.store import fill, made_runs
from tests.benchmarks.workspace import RECORDED, REPEATED, Run, read_runs

REASONS = ("trivial", "unexplained", "worse", "unclear")
_OF_A_KIND = 6
_FOUND = 3


def paths_of(source: str, runs: Sequence[Run]) -> list[RunPath]:
    """Return the runs of a source as plans are compared."""
    paths = []
    for run in runs:
        try:
            trace = trace_from_messages(run.row["messages"], domain=source)
        except ValueError:  # it holds no answer of a model
            continue
        trace.id = f"kp:trace:{run.id}"
        paths.append(run_path(trace, run.task, success=run.success))
    return paths


def right_run(world: World, task: Task) -> ReasoningTrace:
    """Return the trace of a run that does what solves a task."""
    tools = {tool.name: tool for tool in world.open().tools}
    messages: list[dict[str, object]] = [{"role": "user", "content": task.text}]
    for number, call in enumerate([*task.calls, Call(ANSWER, {"value": task.truth or "done"})]):
        arguments = dict(call.arguments)
        asked = {"name": call.name, "args": arguments, "id": str(number), "type": "tool_call"}
        messages.append({"role": "assistant", "content": "", "tool_calls": [asked]})
        output = str(tools[call.name].invoke(arguments))
        messages.append({"role": "tool", "content": output, "tool_call_id": str(number)})
    messages.append({"role": "assistant", "content": task.truth or "done"})
    trace = trace_from_messages(messages, domain=world.name)
    trace.id = f"kp:trace:{task.kind}:{task.text}"
    return trace


def paths_of_world(world: World) -> list[RunPath]:
    """Return right runs of each kind of task of a world; the id of each begins with its kind."""
    tasks = [
        world.task(kind, number, is_kept=True)
        for kind in world.kinds
        for number in range(_OF_A_KIND)
    ]
    different = {task.text: task for task in tasks}.values()
    return [run_path(right_run(world, task), task.text) for task in different]


def kind_counts(pattern: Pattern) -> Counter[str]:
    """Return how many members are of each kind."""
    return Counter(trace_id.split(":")[2] for trace_id in pattern.members)


def source_rows(found: dict[str, tuple[Mined, list[RunPath]]]) -> Iterator[list[object]]:
    """Yield what is said of each source."""
    for name, (mined, paths) in found.items():
        members = sum(len(one.members) for one in mined.patterns)
        runs = sum(one.runs for one in mined.patterns)
        successes = sum(path.may_teach for path in paths)
        number = len(mined.patterns)
        left_out = [mined.left_out[reason] for reason in REASONS]
        yield [name, len(paths), successes, number, members, runs, *left_out]


def world_row(world: World, paths: Sequence[RunPath], mined: Mined) -> list[object]:
    """Return what is said of a world."""
    counts = [kind_counts(one) for one in mined.patterns]
    kinds = {kind for one in counts for kind, count in one.items() if count >= _FOUND}
    pure = sum(len(one) == 1 for one in counts)
    members = sum(map(Counter.total, counts))
    return [
        world.name, len(paths), len(world.kinds), len(kinds), len(counts), pure, members,
        *(mined.left_out[reason] for reason in REASONS),
    ]  # fmt: skip


def cost(number: int) -> str:
    """Return what it takes to look through a store."""
    with TemporaryDirectory() as folder, TraceStore(Path(folder) / "runs.db") as store:
        fill(store, made_runs(number, words=60, domain="finance"))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        mined = patterns_of(store, "finance")
        took = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return (
        f"{mined.runs:,} runs of a store: {took[0]:.1f} s, of which {took[1]:.1f} s of CPU; "
        f"{1000 * took[0] / max(mined.runs, 1):.2f} ms a run\n"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    options = parser("tests.benchmarks.patterns", __doc__)
    options.add_argument("files", nargs="*", type=Path, default=[RECORDED, REPEATED],
                         metavar="FILE", help="labelled runs")  # fmt: skip
    options.add_argument("--show", type=int, default=0, metavar="N",
                         help="print so many patterns, drawn at random")  # fmt: skip
    options.add_argument("--traces", type=int, default=0, metavar="N",
                         help="of the store whose search is timed; 0: none")  # fmt: skip
    chosen = options.parse_args(words)
    if missing := [str(file) for file in chosen.files if not file.is_file()]:
        options.error(f"no such file: {', '.join(missing)}")
    print(f"{machine()}\n")
    found = {}
    for name, runs in read_runs(chosen.files).items():
        paths = paths_of(name, runs)
        found[name] = mine(name, paths), paths
    head = ["source", "runs", "kept successes", "patterns", "members", "runs of them", *REASONS]
    print(table("Patterns", head, source_rows(found)))
    of_worlds = {name: paths_of_world(world) for name, world in WORLDS.items()}
    worlds = {name: (mine(name, paths), paths) for name, paths in of_worlds.items()}
    head = ["world", "runs", "kinds", "kinds found", "patterns", "of one kind", "members", *REASONS]
    rows = [world_row(WORLDS[name], paths, mined) for name, (mined, paths) in worlds.items()]
    print(table("Kinds of tasks of the live benchmark", head, rows), flush=True)
    if chosen.traces:
        print(cost(chosen.traces))
    every = [one for mined, _ in (found | worlds).values() for one in mined.patterns]
    every.sort(key=lambda one: one.id)
    for pattern in random.Random(1).sample(every, min(chosen.show, len(every))):
        print(f"---- {pattern.id}\n\n{skill_text(pattern)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
