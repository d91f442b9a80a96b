"""What a handler costs the agent: pairs of runs without and with it, in turn.

A pair is two calls right after another, without the handler and with it (every other pair the other
way round), in one process that knows no other handler. The CPU of a call is that of the whole
process, all threads, from its start until the handler has done everything that it does behind the
agent's back; its wall time ends when the agent returns. Garbage is collected before each, and what
was there before the first pair is out of the collector's sight, as it is in a server that calls
`gc.freeze`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.benchmarks.attached import Attached
from tests.benchmarks.candidates import attached
from tests.benchmarks.figures import quartiles
from tests.benchmarks.workload import CASES, Case, Player, config_of, events_of, make_agent


class Sample(NamedTuple):
    """Seconds that one call took."""

    cpu_s: float
    wall_s: float


class Pair(NamedTuple):
    """Two calls, one right after the other."""

    without: Sample
    with_it: Sample


def take(play: Callable[[], None], handler: Attached) -> Sample:
    """Time one call."""
    handler.switch_on()
    gc.collect()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    play()
    wall_s = time.perf_counter() - wall_s
    handler.settle()
    cpu_s = time.process_time() - cpu_s
    handler.switch_off()
    return Sample(cpu_s, wall_s)


def in_turn(
    without: Callable[[], Sample], with_it: Callable[[], Sample], *, seconds: float, fewest: int
) -> list[Pair]:
    """Pairs of samples, for about `seconds`, and at least `fewest`."""
    pairs: list[Pair] = []
    until = time.monotonic() + seconds
    while len(pairs) < fewest or time.monotonic() < until:
        if len(pairs) % 2:
            second = with_it()
            pairs.append(Pair(without(), second))
        else:
            pairs.append(Pair(without(), with_it()))
    return pairs


def measure(
    handler: str, cases: Sequence[str], turns: int, seconds: float, fewest: int
) -> dict[str, Any]:
    """Measure one handler in several cases, each for some seconds; called in a fresh process."""
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns))
    gc.freeze()
    with attached("none") as nothing, attached(handler) as handled:
        result = {}
        for name in cases:
            case = CASES[name]
            without, with_it = _call(player, case, nothing), _call(player, case, handled)
            for _ in range(min(2, fewest - 1)):  # imports, caches, connections, threads
                without()
                with_it()
            gc.collect()
            gc.freeze()
            pairs = in_turn(without, with_it, seconds=seconds, fewest=fewest)
            result[name] = summary(pairs, case, events_of(player, case))
    player.close()
    return result


def _call(player: Player, case: Case, handler: Attached) -> Callable[[], Sample]:
    config = config_of(handler.callbacks)
    return lambda: take(lambda: case.play(player, config), handler)


def summary(pairs: Sequence[Pair], case: Case, events: int) -> dict[str, Any]:
    """Ratios, what an event costs in microseconds, and milliseconds of a run without a handler."""
    per_event, per_run = 1e6 / events, 1e3 / case.runs
    return {
        "runs": case.runs,
        "events": events,
        "cpu_ratio": quartiles([pair.with_it.cpu_s / pair.without.cpu_s for pair in pairs]),
        "wall_ratio": quartiles([pair.with_it.wall_s / pair.without.wall_s for pair in pairs]),
        "added_cpu_us_per_event": quartiles(
            [(pair.with_it.cpu_s - pair.without.cpu_s) * per_event for pair in pairs]
        ),
        "added_wall_us_per_event": quartiles(
            [(pair.with_it.wall_s - pair.without.wall_s) * per_event for pair in pairs]
        ),
        "without_cpu_ms_per_run": quartiles([pair.without.cpu_s * per_run for pair in pairs]),
        "without_wall_ms_per_run": quartiles([pair.without.wall_s * per_run for pair in pairs]),
    }
