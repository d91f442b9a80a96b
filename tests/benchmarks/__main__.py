"""What this project's handler costs an agent, side by side with no handler.

    python -m tests.benchmarks [--only CASE ...] [--handlers NAME ...] [--quick]

prints tables in Markdown. Everything takes some minutes.

runs
    The same `create_agent` agent with a scripted model, run without and with a handler in turn, by
    `invoke` and `ainvoke`: CPU of the whole process (threads and the handler's flush included), as
    ratios of the two calls of a pair. `none` is the agent against itself: the noise.
texts
    Runs of 28 steps that say as much as real ones, through redaction, scoring and SQLite: what each
    adds to the CPU of the process, and so how many one core takes a second.
memory
    What stays in use per finished run, and what a run takes that is under way.

Every handler is measured in a process of its own. `inline` does nothing, so it shows what LangChain
itself takes to call a handler. `recording` is ours with what happens after a run left out,
`everything` is ours with redaction, scoring and a SQLite file that keeps every run, but without an
embedding model. A handler that loses runs has failed. Times are medians; in brackets are quartiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.benchmarks.cost import HANDLERS, WAYS
from tests.benchmarks.harness import ChildError, in_fresh_process, machine, parser, table


class Extent(NamedTuple):
    """How much of everything is measured.

    Attributes:
        turns: Tool calls of a run.
        seconds: Of pairs, per handler and way.
        pairs: Of these, the fewest.
        finished_runs: Runs after which the memory is measured.
        open_runs: Runs under way at the same time.
    """

    turns: int = 9
    seconds: float = 6.0
    pairs: int = 6
    finished_runs: int = 10_000
    open_runs: int = 100


class Suite:
    """Measures handlers and yields tables.

    Args:
        handlers: Of `HANDLERS`.
        extent: How much of it.

    Attributes:
        failures: What could not be measured, and why.
    """

    def __init__(self, handlers: Sequence[str], extent: Extent) -> None:
        self._handlers = handlers
        self._extent = extent
        self.failures: list[str] = []

    def runs(self) -> Iterator[str]:
        results = self._each_handler("overhead", **self._pairs(), ways=WAYS)
        for figure, title in (
            ("cpu_ratio", "CPU of a run, times that without a handler"),
            ("added_us_per_event", "CPU that one event adds, in µs"),
        ):
            rows = [
                [HANDLERS[name], *(_spread(by_way[way][figure]) for way in WAYS)]
                for name, by_way in results.items()
            ]
            yield table(title, ["handler", *WAYS], rows)

    def texts(self) -> Iterator[str]:
        results = self._each_handler("overhead", **self._pairs(), ways=["invoke"], texts=True)
        rows = []
        for name, by_way in results.items():
            added_ms = by_way["invoke"]["added_ms_per_run"]
            rate = f"{1e3 / added_ms[1]:.0f}" if added_ms[1] > 0 else "-"
            rows.append([HANDLERS[name], _spread(added_ms), rate])
        head = ["handler", "CPU that a run adds, ms", "runs a second and core"]
        yield table("Runs that say as much as real ones", head, rows)

    def memory(self) -> Iterator[str]:
        runs = self._extent.finished_runs
        growth_kb = self._each_handler("growth_kb", runs=runs)
        rows = [[HANDLERS[name], runs, f"{kb:z.3f}"] for name, kb in growth_kb.items()]
        yield table("Memory that stays after a run", ["handler", "runs", "KB a run"], rows)
        options = {"runs": self._extent.open_runs, "earlier_calls": [0, 10, 40]}
        open_kb = self._measure("open_runs_kb", options) or {}
        yield table(
            "Memory of a run under way",
            ["calls that returned 1,000 characters", "agent, KB", "recording, KB more"],
            [[calls, f"{alone:.1f}", f"{more:.1f}"] for calls, (alone, more) in open_kb.items()],
        )

    def _pairs(self) -> dict[str, Any]:
        extent = self._extent
        return {"turns": extent.turns, "seconds": extent.seconds, "fewest": extent.pairs}

    def _each_handler(self, function: str, **options: Any) -> dict[str, Any]:
        """Call a function for each handler; leave out where it fails."""
        results = {
            name: self._measure(function, {"handler": name, **options}) for name in self._handlers
        }
        return {name: result for name, result in results.items() if result is not None}

    def _measure(self, function: str, options: dict[str, Any]) -> Any:
        # So that `used_bytes` sees every byte.
        settings = {"PYTHONMALLOC": "malloc"} if function.endswith("_kb") else {}
        try:
            return in_fresh_process(f"tests.benchmarks.cost:{function}", options, **settings)
        except ChildError as error:
            self.failures.append(f"{options.get('handler', '')} {error}".strip())
            return None


def _spread(figures: Sequence[float]) -> str:
    low, middle, high = (format(figure, ".2f") for figure in figures)
    return f"{middle} ({low} to {high})"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 when something could not be measured."""
    parts: dict[str, Callable[[Suite], Iterator[str]]] = {
        "runs": Suite.runs,
        "texts": Suite.texts,
        "memory": Suite.memory,
    }
    options = parser("tests.benchmarks", __doc__)
    options.add_argument("--only", nargs="+", choices=parts, default=list(parts), metavar="CASE",
                         help=f"measure only these: {', '.join(parts)}")  # fmt: skip
    options.add_argument("--handlers", nargs="+", choices=HANDLERS, default=list(HANDLERS),
                         metavar="NAME", help=f"only these: {', '.join(HANDLERS)}")  # fmt: skip
    options.add_argument("--quick", action="store_true",
                         help="whether everything works; the figures mean nothing")  # fmt: skip
    chosen = options.parse_args(words)
    extent = Extent(1, 0.0, 2, 10, 2) if chosen.quick else Extent()
    suite = Suite(chosen.handlers, extent)
    print(f"{machine()}\n", flush=True)
    for name in chosen.only:
        print(*parts[name](suite), sep="\n", flush=True)
    for failure in suite.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
