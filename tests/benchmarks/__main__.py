"""What this project's handler costs an agent, side by side with nothing and with floors.

    python -m tests.benchmarks [--only CASE ...] [--handlers NAME ...] [--quick]

prints tables in Markdown. Everything takes about a quarter of an hour.

invoke, ainvoke, batch, gather, stream
    The same `create_agent` agent with a scripted model, run without and with a handler in turn: CPU
    of the whole process (threads and the handler's flush included) and wall time until the agent
    returns, as ratios of the two calls of a pair. `none` is the agent against itself: the noise.
texts
    16 runs at once, of 28 steps, that say as much as real ones, through redaction, scoring and
    SQLite: what each adds to the CPU of the process, and so how many one core takes a second.
memory
    What stays in use per finished run, and what a run takes that is under way.
import
    CPU of imports in fresh interpreters.

Every handler is measured in a process of its own. `recording` is ours with what happens after a run
left out, `everything` is ours with redaction, scoring and a SQLite file that keeps every run, but
without an embedding model. A handler that loses runs has failed. Times are medians; in brackets are
quartiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.benchmarks.handlers import CANDIDATES
from tests.benchmarks.harness import (
    ChildError,
    in_fresh_process,
    machine,
    parser,
    table,
    usable_cores,
)

_RUNS = ("invoke", "ainvoke", "batch", "gather", "stream")
CASES = (*_RUNS, "texts", "memory", "import")
_OURS = ("none", "recording", "everything")


class Extent(NamedTuple):
    """How much of everything is measured.

    Attributes:
        turns: Tool calls of a run.
        seconds: Of pairs, per handler and case.
        pairs: Of these, the fewest.
        grown: Runs after which the memory is looked at.
        open_runs: Runs under way at the same time.
        imports: Interpreters per statement.
        at_once: Processes at once; more than one where times do not matter.
    """

    turns: int = 9
    seconds: float = 6.0
    pairs: int = 6
    grown: int = 10_000
    open_runs: int = 100
    imports: int = 7
    at_once: int = 1


QUICK = Extent(1, 0.0, 2, 10, 2, 2, usable_cores())


class Suite:
    """Measures handlers and yields tables.

    Args:
        handlers: Of `CANDIDATES`.
        extent: How much of it.

    Attributes:
        failures: What could not be measured, and why.
    """

    def __init__(self, handlers: Sequence[str], extent: Extent) -> None:
        self._handlers = list(handlers)
        self._extent = extent
        self.failures: list[str] = []

    def overhead(self, cases: Sequence[str]) -> Iterator[str]:
        found = self._each("overhead", self._handlers, **self._pairs(), cases=cases)
        for figure, title in (
            ("cpu_ratio", "CPU of a run, times that without a handler"),
            ("wall_ratio", "Time until the agent returns, times that without a handler"),
            ("added_us_per_event", "CPU that one event adds, in µs"),
        ):
            rows = [
                [CANDIDATES[name].title, *(_spread(one[case][figure]) for case in cases)]
                for name, one in found.items()
            ]
            yield table(title, ["handler", *cases], rows)
        for one in list(found.values())[:1]:
            base = (f"{one[case]['without_ms_per_run'][1]:.1f} ms" for case in cases)
            events = ", ".join(f"{one[case]['events']}" for case in cases)
            yield f"A run without a handler: {', '.join(base)}; {events} events.\n"

    def texts(self) -> Iterator[str]:
        names = [name for name in self._handlers if name in _OURS]
        found = self._each("overhead", names, **self._pairs(), cases=["batch"], texts=True)
        rows = []
        for name, one in found.items():
            added_ms = one["batch"]["added_ms_per_run"]
            rate = f"{1e3 / added_ms[1]:.0f}" if added_ms[1] > 0 else "-"
            rows.append([CANDIDATES[name].title, _spread(added_ms), rate])
        head = ["handler", "CPU that a run adds, ms", "runs a second and core"]
        yield table("Runs that say as much as real ones", head, rows)

    def memory(self) -> Iterator[str]:
        names = [name for name in self._handlers if name not in ("inline", "elsewhere")]
        runs = self._extent.grown
        growth = self._each("growth", names, {"PYTHONMALLOC": "malloc"}, runs=runs)
        yield table(
            "Memory that stays after a run",
            ["handler", "runs", "KB a run"],
            [[CANDIDATES[name].title, runs, f"{growth[name]:z.3f}"] for name in growth],
        )
        options = {"runs": self._extent.open_runs, "earlier_calls": [0, 10, 40]}
        kb = self._call("open_runs", {"PYTHONMALLOC": "malloc"}, options)
        yield table(
            "Memory of a run under way",
            ["calls that returned 1,000 characters", "agent, KB", "recording, KB more"],
            [[calls, f"{alone:.1f}", f"{more:.1f}"] for calls, (alone, more) in (kb or {}).items()],
        )

    def imports(self) -> Iterator[str]:
        of_handlers = {name: CANDIDATES[name].imports for name in self._handlers}
        statements = {"package": "import kp_langchain", **of_handlers}
        named = {name: one for name, one in statements.items() if one}
        options = {"statements": named, "rounds": self._extent.imports}
        found = self._call("imports", {}, options) or {}
        yield table(
            "CPU of an import in a fresh interpreter",
            ["statement", "ms"],
            [[named[name], _spread(one, ".0f")] for name, one in found.items()],
        )

    def _pairs(self) -> dict[str, Any]:
        one = self._extent
        return {"turns": one.turns, "seconds": one.seconds, "fewest": one.pairs}

    def _each(
        self,
        function: str,
        names: Sequence[str],
        settings: dict[str, str] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Call a function for each handler; leave out where it fails."""

        def measure(name: str) -> Any:
            return self._call(function, settings or {}, {"handler": name, **options})

        with ThreadPoolExecutor(self._extent.at_once) as pool:
            found = zip(names, pool.map(measure, names), strict=True)
            return {name: one for name, one in found if one is not None}

    def _call(self, function: str, settings: dict[str, str], options: dict[str, Any]) -> Any:
        try:
            return in_fresh_process(f"tests.benchmarks.cost:{function}", options, **settings)
        except ChildError as error:
            self.failures.append(f"{options.get('handler', '')} {error}".strip())
            return None


def _spread(figures: Sequence[float], form: str = ".2f") -> str:
    low, middle, high = (format(one, form) for one in figures)
    return f"{middle} ({low} to {high})"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 when something could not be measured."""
    options = parser("tests.benchmarks", __doc__)
    options.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE",
                         help=f"measure only these: {', '.join(CASES)}")  # fmt: skip
    options.add_argument("--handlers", nargs="+", choices=CANDIDATES, default=list(CANDIDATES),
                         metavar="NAME", help=f"only these: {', '.join(CANDIDATES)}")  # fmt: skip
    options.add_argument("--quick", action="store_true",
                         help="whether everything works; the figures mean nothing")  # fmt: skip
    chosen = options.parse_args(words)
    suite = Suite(chosen.handlers, QUICK if chosen.quick else Extent())
    print(f"{machine()}\n", flush=True)
    parts: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("texts", suite.texts),
        ("memory", suite.memory),
        ("import", suite.imports),
    ]
    if cases := [case for case in _RUNS if case in chosen.only]:
        print(*suite.overhead(cases), sep="\n", flush=True)
    for name, part in parts:
        if name in chosen.only:
            print(*part(), sep="\n", flush=True)
    for failure in suite.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
