"""How often recall calls a trace harmful that is, and one that is not; and so for a whole domain.

    python -m tests.benchmarks.credit [--times 100]

Runs are drawn: a tenth is held out, and each is judged. The rule of `kp_langchain.recall.credit` is
applied after each run. The domain has 360 runs with nine other traces, of which as many succeed as
do without the trace in question, unless its tasks are harder. A thousand draws take five minutes.

The second table applies the rule of `kp_langchain.recall.effect` after each of a thousand runs of a
domain.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from typing import NamedTuple

from kp_langchain.recall import credits_of
from kp_langchain.recall.effect import interval_of
from kp_langchain.store.side_tables import OutcomeCount
from tests.benchmarks.harness import parser, table

HELD_OUT = 0.1
_OTHERS, _RUNS_OF_OTHERS = 9, 40


class Case(NamedTuple):
    """What a trace does for runs.

    Attributes:
        shown: The share of them that succeeds with it.
        without: The share that succeeds without it.
        domain: The share that succeeds without it in the rest of the domain.
        runs: How many runs there are.
        share_judged: The share of runs with a verdict.
    """

    shown: float
    without: float
    domain: float
    runs: int
    share_judged: float = 1.0


class Rates(NamedTuple):
    """How often the trace of a case was called harmful.

    Attributes:
        ever: The share of the draws in which it was so after any run.
        at_last: The share in which it was so after the last.
    """

    ever: float
    at_last: float


CASES = {
    "changes nothing, at 0.5": Case(0.5, 0.5, 0.5, 300),
    "changes nothing, at 0.7": Case(0.7, 0.7, 0.7, 300),
    "changes nothing, at 0.9": Case(0.9, 0.9, 0.9, 300),
    "0.4 instead of 0.7, 100 runs": Case(0.4, 0.7, 0.7, 100),
    "0.4 instead of 0.7": Case(0.4, 0.7, 0.7, 300),
    "0.6 instead of 0.7": Case(0.6, 0.7, 0.7, 300),
    "0.4 instead of 0.7, one in five judged": Case(0.4, 0.7, 0.7, 300, 0.2),
    "changes nothing, hard tasks: 0.5 in a domain at 0.7": Case(0.5, 0.5, 0.7, 300),
}


def simulate(case: Case, times: int) -> Rates:
    """Return how often the trace of a case is called harmful.

    Args:
        case: The case.
        times: How often it is drawn.
    """
    drawn = [_draw(case, random.Random(seed)) for seed in range(times)]
    return Rates(
        sum(any(one) for one in drawn) / times,
        sum(one[-1] for one in drawn) / times,
    )


def _draw(case: Case, chance: random.Random) -> list[bool]:
    """Return after each run whether the trace is called harmful."""
    numbers: Counter[tuple[str, bool, bool, bool]] = Counter()
    for other in range(_OTHERS):
        for _ in range(_RUNS_OF_OTHERS):
            is_held_out = chance.random() < HELD_OUT
            numbers[str(other), is_held_out, chance.random() < case.domain, True] += 1
    is_harmful = []
    for _ in range(case.runs):
        is_held_out = chance.random() < HELD_OUT
        success = chance.random() < (case.without if is_held_out else case.shown)
        numbers["x", is_held_out, success, chance.random() < case.share_judged] += 1
        counts = (OutcomeCount(*key, runs=number) for key, number in numbers.items())
        is_harmful.append(credits_of(counts)["x"].hurts)
    return is_harmful


# ------------------------------------------------------------------ a whole domain

_RUNS_OF_DOMAIN = 1000


class Domain(NamedTuple):
    """What examples do for the runs of a domain.

    Attributes:
        without: The share that succeeds without them.
        change: By how much more succeed with them.
        share_judged: The share of runs with a verdict.
        tasks: The number of its tasks; 0 if each run has its own. Of half of the tasks,
            `differ` more succeed than `without`, of the others as many less.
        differ: See there.
        changes_differ: By how much `change` is higher for every second task, and lower for others.
        runs: How many runs there are.
        held_out: The share that is held out.
    """

    without: float
    change: float = 0.0
    share_judged: float = 1.0
    tasks: int = 0
    differ: float = 0.0
    changes_differ: float = 0.0
    runs: int = _RUNS_OF_DOMAIN
    held_out: float = HELD_OUT


DOMAINS = {
    **{f"change nothing, at {rate}": Domain(rate) for rate in (0.3, 0.5, 0.7, 0.9)},
    "change nothing, at 0.7, one in five judged": Domain(0.7, share_judged=0.2),
    "change nothing, at 0.7, half held out": Domain(0.7, held_out=0.5),
    "change nothing, at 0.7, 10,000 runs": Domain(0.7, runs=10_000),
    "change nothing, 4 tasks at 0.2 and 0.8": Domain(0.5, tasks=4, differ=0.3),
    "change nothing, 100 tasks at 0.2 and 0.8": Domain(0.5, tasks=100, differ=0.3),
    "+0.3 and -0.3 by turns, 4 tasks": Domain(0.5, tasks=4, changes_differ=0.3),
    **{
        f"{change:+} from 0.7{', one in five judged' if share < 1 else ''}": Domain(
            0.7, change, share
        )
        for share in (1.0, 0.2)
        for change in (-0.3, -0.2, -0.1, 0.1, 0.2)
    },
}


class Words(NamedTuple):
    """What was said of the domain of a case.

    Attributes:
        hurt: The share of the draws in which it was said after any run that examples hurt.
        help: The share in which it was said after any run that they help.
        median_runs: After how many runs one of both was said first; None if it never was.
    """

    hurt: float
    help: float
    median_runs: float | None


def simulate_domain(domain: Domain, times: int) -> Words:
    """Return what is said of the examples of a domain.

    Args:
        domain: The domain.
        times: How often its runs are drawn.
    """
    drawn = [_said(domain, random.Random(seed)) for seed in range(times)]
    first = [min(at.values()) for at in drawn if at]
    return Words(
        sum("hurts" in at for at in drawn) / times,
        sum("helps" in at for at in drawn) / times,
        statistics.median(first) if first else None,
    )


def _said(domain: Domain, chance: random.Random) -> dict[str, int]:
    """Return after which run each word was said first."""
    sides = [[0, 0], [0, 0]]  # judged and succeeded: with examples, and without
    signs = list(islice(cycle((1, -1)), domain.tasks))
    said: dict[str, int] = {}
    for number in range(1, domain.runs + 1):
        sign = signs[chance.randrange(domain.tasks)] if domain.tasks else 0
        is_held_out = chance.random() < domain.held_out
        change = 0.0 if is_held_out else domain.change + sign * domain.changes_differ
        success = chance.random() < domain.without + sign * domain.differ + change
        if chance.random() >= domain.share_judged:
            continue
        sides[is_held_out][0] += 1
        sides[is_held_out][1] += success
        low, high = interval_of(*sides[0], *sides[1])
        if low > 0 or high < 0:
            said.setdefault("helps" if low > 0 else "hurts", number)
    return said


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = parser("tests.benchmarks.credit", __doc__)
    options.add_argument("--times", type=int, default=100, help="how often each case is drawn")
    times = options.parse_args(words).times
    rows = []
    for name, case in CASES.items():
        rates = simulate(case, times)
        rows.append([name, f"{rates.ever:.1%}", f"{rates.at_last:.1%}"])
    print(table("Share called harmful", ["the trace", "ever", "at last"], rows))
    rows = []
    for name, domain in DOMAINS.items():
        said = simulate_domain(domain, times)
        runs = "" if said.median_runs is None else f"{said.median_runs:.0f}"
        rows.append([name, f"{said.hurt:.1%}", f"{said.help:.1%}", runs])
    headings = ["examples", "ever said to hurt", "to help", "after so many runs, median"]
    print(table("Domains", headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
