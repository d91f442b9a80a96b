"""What a handler costs the agent: pairs of runs without and with it, in turn.

A pair is two calls right after another, without the handler and with it (every other pair the other
way round), in one process that knows no other handler. The CPU of a call is that of the whole
process, from its start until the handler has done everything that it does behind the agent's back;
its wall time ends when the agent returns. Garbage is collected before each, and what was there
before the first pair is out of the collector's sight.
"""

from __future__ import annotations

import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.attached import Attached
from tests.benchmarks.candidates import BASELINE, CANDIDATES
from tests.benchmarks.workload import CASES, Case, Player, config_of, events_of, make_agent

_FEWEST_PAIRS = 3


class Sample(NamedTuple):
    """Seconds that one call took."""

    cpu_s: float
    wall_s: float


Pair = tuple[Sample, Sample]


def take(play: Callable[[], None], attached: Attached) -> Sample:
    """Time one call."""
    attached.switch_on()
    gc.collect()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    play()
    wall_s = time.perf_counter() - wall_s
    attached.settle()
    cpu_s = time.process_time() - cpu_s
    attached.switch_off()
    return Sample(cpu_s, wall_s)


def in_turn(
    without: Callable[[], Sample], with_it: Callable[[], Sample], *, seconds: float
) -> list[Pair]:
    """Pairs of samples, for about `seconds`."""
    pairs: list[Pair] = []
    until = time.monotonic() + seconds
    while len(pairs) < _FEWEST_PAIRS or time.monotonic() < until:
        if len(pairs) % 2:
            second = with_it()
            pairs.append((without(), second))
        else:
            pairs.append((without(), with_it()))
    return pairs


def measure(handler: str, cases: Sequence[str], seconds: float, server: str) -> dict[str, Any]:
    """Measure one handler in several cases, each for some seconds; called in a fresh process."""
    logging.disable(logging.CRITICAL)
    player = Player(make_agent())
    with tempfile.TemporaryDirectory() as name:
        attached = CANDIDATES[handler].attach(Path(name), server)
        baseline = BASELINE.attach(Path(name), server)
        result = {
            name: measure_case(player, CASES[name], baseline, attached, seconds) for name in cases
        }
        account = dict(attached.account())
    player.close()
    return {"cases": result, "account": account}


def measure_case(
    player: Player, case: Case, baseline: Attached, attached: Attached, seconds: float
) -> dict[str, Any]:
    def call_with(which: Attached) -> Callable[[], Sample]:
        config = config_of(which.callbacks)
        return lambda: take(lambda: case.play(player, config), which)

    events = events_of(player, case)
    without, with_it = call_with(baseline), call_with(attached)
    for _ in range(2):  # imports, caches, connections, threads
        without()
        with_it()
    gc.collect()
    gc.freeze()
    pairs = in_turn(without, with_it, seconds=seconds)
    gc.unfreeze()
    return {"events": events, "runs": case.runs, "pairs": pairs}


class Spread(NamedTuple):
    """Quartiles of a figure over all pairs."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def summary(measured: dict[str, Any]) -> dict[str, Spread]:
    """Ratios, and what an event costs in microseconds, of one measured case."""
    pairs = [(Sample(*without), Sample(*with_it)) for without, with_it in measured["pairs"]]
    per_event = 1e6 / measured["events"]
    return {
        "cpu_ratio": spread([b.cpu_s / a.cpu_s for a, b in pairs]),
        "wall_ratio": spread([b.wall_s / a.wall_s for a, b in pairs]),
        "added_cpu_us": spread([(b.cpu_s - a.cpu_s) * per_event for a, b in pairs]),
        "added_wall_us": spread([(b.wall_s - a.wall_s) * per_event for a, b in pairs]),
    }
