"""How often recall calls a trace harmful that is, and one that is not.

    python -m tests.benchmarks.credit [--times 100]

Runs are drawn: a tenth is held out, and each is judged. The rule of `kp_langchain.recall.credit` is
applied after each run. The domain has 360 runs with nine other traces, of which as many succeed as
do without the trace in question, unless its tasks are harder. A thousand draws take five minutes.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kp_langchain.recall import credits_of
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
