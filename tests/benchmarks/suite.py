"""All that is measured, case by case, and where each result goes in what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import imports, machine, texts
from tests.benchmarks.apart import ChildError, in_fresh_process
from tests.benchmarks.candidates import CANDIDATES

# Ways to run the agent; workload.py knows how, but loads what only its processes need.
OVERHEAD = {
    "invoke": "invoke",
    "ainvoke": "ainvoke",
    "batch": "batch of 16",
    "gather": "gather of 16 ainvoke",
    "stream": "stream, token by token",
}
CASES = (*OVERHEAD, "event", "memory", "import", "worker")
_OURS = ("recording", "everything")


@dataclass(frozen=True)
class Extent:
    """How much of everything is measured.

    Args:
        turns: Tool calls of a run.
        seconds: Of pairs, per handler and case.
        pairs: Of these, the fewest.
        event_rounds: Runs played by hand.
        grown: Runs after which our handler's growth, and that of none, is looked at.
        peers_grown: The same for all others.
        given_up: Runs that are given up in each way.
        run_timeout_s: How long an open run may last then.
        imported: Interpreters per statement.
        recorded: Whether the worker gets recorded texts, too, where such are at hand.
        waiting: Finished runs that wait for the worker.
        rounds: How often the worker does them.
        at_once: Processes at once; more than one where times do not matter.
    """

    turns: int
    seconds: float
    pairs: int
    event_rounds: int
    grown: int
    peers_grown: int
    given_up: int
    run_timeout_s: float
    imported: int
    recorded: bool
    waiting: int
    rounds: int
    at_once: int


FULL = Extent(
    turns=9, seconds=6.0, pairs=6, event_rounds=1000, grown=10_000, peers_grown=1000,
    given_up=1000, run_timeout_s=2.0, imported=7, recorded=True, waiting=300, rounds=7, at_once=1,
)  # fmt: skip
QUICK = Extent(
    turns=1, seconds=0.0, pairs=2, event_rounds=20, grown=10, peers_grown=10,
    given_up=4, run_timeout_s=0.2, imported=2, recorded=False,
    waiting=4, rounds=2, at_once=machine.usable_cores(),
)  # fmt: skip


class Suite:
    """Measures the chosen cases with the chosen handlers.

    Args:
        cases: Of `CASES`.
        handlers: Of `CANDIDATES`; those that are not installed are left out.
        extent: How much of it.
        tell: Called with a line for whoever waits.

    Attributes:
        failures: What could not be measured, and why.
    """

    def __init__(
        self,
        cases: Sequence[str],
        handlers: Sequence[str],
        extent: Extent,
        tell: Callable[[str], object],
    ) -> None:
        self._cases = cases
        self._asked = handlers
        self._handlers = [name for name in handlers if CANDIDATES[name].installed]
        self._extent = extent
        self._tell = tell
        self.failures: list[str] = []

    def measure(self) -> dict[str, Any]:
        """Measure; return all results, by case."""
        results: dict[str, Any] = {
            "handlers": {
                name: {"title": CANDIDATES[name].title, "installed": CANDIDATES[name].installed}
                for name in self._asked
            },
        }
        if overhead := [case for case in OVERHEAD if case in self._cases]:
            results["overhead"] = self._overhead(overhead)
        for case, measure in (
            ("event", self._event),
            ("memory", self._memory),
            ("import", self._import),
            ("worker", self._worker),
        ):
            if case in self._cases:
                results[case] = measure()
        return results

    def _overhead(self, cases: Sequence[str]) -> dict[str, Any]:
        by_handler = self._each(
            "overhead:measure",
            {
                name: {
                    "handler": name,
                    "cases": cases,
                    "turns": self._extent.turns,
                    "seconds": self._extent.seconds,
                    "fewest": self._extent.pairs,
                }
                for name in self._handlers
            },
        )
        return {
            case: {
                "title": OVERHEAD[case],
                "handlers": {name: cases_of[case] for name, cases_of in by_handler.items()},
            }
            for case in cases
        }

    def _event(self) -> dict[str, Any]:
        rounds = self._extent.event_rounds
        return self._each("by_hand:measure", {"recording": {"rounds": rounds}})

    def _memory(self) -> dict[str, Any]:
        of_interest = [name for name in self._handlers if name not in ("inline", "elsewhere")]
        long = ("none", *_OURS)
        growth = {
            name: {
                "handler": name,
                "runs": self._extent.grown if name in long else self._extent.peers_grown,
            }
            for name in of_interest
        }
        limit_s = self._extent.run_timeout_s
        left_over = {
            name: {"handler": name, "runs": self._extent.given_up, "run_timeout_s": limit_s}
            for name in ("none", "everything")
            if name in self._handlers
        }
        settings = {"PYTHONMALLOC": "malloc", "KP_RUN_TIMEOUT_S": str(limit_s)}
        return {
            "growth": self._each("memory:growth", growth, settings=settings),
            "left_over": self._each("memory:left_over", left_over, settings=settings),
            "large_output": self._each("large_output:measure", {"recording": {}}),
        }

    def _import(self) -> dict[str, Any]:
        self._tell("import")
        of_handlers = {name: CANDIDATES[name].imports for name in self._handlers}
        statements = {"package": "import kp_langchain", **of_handlers}
        return imports.measure(
            {name: statement for name, statement in statements.items() if statement},
            self._extent.imported,
        )

    def _worker(self) -> dict[str, Any]:
        runs, rounds = self._extent.waiting, self._extent.rounds
        few = max(1, runs // 4)
        kinds = texts.kinds() if self._extent.recorded else ["written"]
        return {
            "throughput": self._each(
                "throughput:measure",
                {kind: {"kind": kind, "runs": runs, "rounds": rounds} for kind in kinds},
                settings={"KP_MAX_QUEUE": str(10 * runs)},
            ),
            "overrun": self._each(
                "throughput:overrun",
                {"written": {"runs": runs}},
                settings={"KP_MAX_QUEUE": str(few)},
            ),
        }

    def _each(
        self, function: str, arguments: dict[str, dict[str, Any]], **options: Any
    ) -> dict[str, Any]:
        """Call a function in a fresh process for each name; leave out where it fails."""

        def call(name: str) -> Iterable[tuple[str, Any]]:
            self._tell(f"{function.partition(':')[2]} {name}")
            try:
                result = in_fresh_process(
                    f"tests.benchmarks.{function}", arguments[name], **options
                )
            except ChildError as error:
                self.failures.append(f"{function} {name}: {error}")
                return []
            return [(name, result)]

        with ThreadPoolExecutor(self._extent.at_once) as pool:
            return dict(pair for pairs in pool.map(call, arguments) for pair in pairs)
