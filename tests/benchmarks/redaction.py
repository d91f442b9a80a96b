"""How much redaction finds, what it spoils, and how fast it is.

    python -m tests.benchmarks.redaction [--every N]

prints recall and false positives on the cases of tests/redaction, which were written for the kinds
that a redactor meets; the slowest of the texts that were made to be slow; and the MB of JSON a
second of CPU time for the messages of recorded runs, where these lie beside the checkout, each
message once.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from kp_langchain.redaction import redact
from tests.benchmarks.harness import machine, parser, table
from tests.recorded import load, present
from tests.redaction.cases import (
    BENIGN,
    CONTEXT,
    FORMATS,
    IDENTIFIERS,
    LOOKALIKES,
    NASTY,
    STRUCT,
    left_over,
)

SECRETS: dict[str, Iterable[tuple[str, Any, str]]] = {
    "credentials with a form of their own": FORMATS,
    "secrets that only their surroundings reveal": CONTEXT,
    "values under telling names in structures": STRUCT,
    "identifiers": IDENTIFIERS,
}
HARMLESS: dict[str, Iterable[tuple[str, Any]]] = {
    "names that look like telling ones": LOOKALIKES,
    "harmless texts": BENIGN,
}
_NASTY_CHARS = 100_000
_SLOWEST = 5


def recall(every: int) -> str:
    """Return the table of what is found, with the families in which something is missed."""
    rows = []
    for name, cases in SECRETS.items():
        missed: Counter[str] = Counter()
        chosen = list(islice(cases, 0, None, every))
        for family, value, secret in chosen:
            missed[family] += left_over(secret, redact(value).value)
        families = ", ".join(f"{family}: {number}" for family, number in missed.items() if number)
        rows.append([name, f"{len(chosen) - missed.total():,} of {len(chosen):,}", families])
    return table("Recall", ["cases", "found", "missed by family"], rows)


def false_positives(every: int) -> str:
    """Return the table of what is changed although it is harmless."""
    rows = []
    for name, cases in HARMLESS.items():
        chosen = list(islice(cases, 0, None, every))
        changed = Counter(family for family, value in chosen if redact(value).value != value)
        rows.append([name, f"{changed.total()} of {len(chosen):,}", ", ".join(changed)])
    return table("False positives", ["cases", "changed", "families"], rows)


def slowest(every: int) -> str:
    """Return the table of the texts that take longest."""
    rows = []
    for name, make in islice(NASTY, 0, None, every):
        text = make(_NASTY_CHARS)
        began_s = time.process_time()
        redact(text)
        rows.append([name, f"{time.process_time() - began_s:.2f}"])
    rows.sort(key=lambda row: -float(row[1]))
    title = (
        f"The slowest of {len(rows)} texts of {_NASTY_CHARS // 1000} KB that were made to be slow"
    )
    return table(title, ["text", "seconds"], rows[:_SLOWEST])


def speed(every: int) -> str:
    """Return the table of the speed on the messages of recorded runs, by source."""
    messages: defaultdict[str, list[Any]] = defaultdict(list)
    for run in islice(load(), 0, None, every):
        messages[run["source"]] += run["messages"]
    rows, sums = [], Counter[str]()
    for source, of_source in sorted(messages.items()):
        figures = {"messages": len(of_source), "mb": sum(map(_mb, of_source))}
        for level in ("aggregated", "private"):
            began_s = time.process_time()
            for message in of_source:
                redact(message, level=level)
            figures[level] = time.process_time() - began_s
        sums.update(figures)  # type: ignore[arg-type]
        rows.append(_speed_row(source, figures))
    head = ["source", "messages", "MB", "identifiers and secrets", "`private`: secrets alone"]
    return table("MB of JSON a second", head, [*rows, _speed_row("all", sums)])


def _mb(message: Any) -> float:
    return len(json.dumps(message, ensure_ascii=False).encode()) / 1e6


def _speed_row(name: str, figures: dict[str, Any]) -> list[str]:
    speeds = (f"{figures['mb'] / figures[level]:.1f}" for level in ("aggregated", "private"))
    return [name, f"{figures['messages']:,}", f"{figures['mb']:.2f}", *speeds]


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = parser("tests.benchmarks.redaction", __doc__)
    options.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth case")
    every = options.parse_args(words).every
    print(f"{machine()}\n")
    for part in (recall, false_positives, slowest):
        print(part(every), flush=True)
    if present():
        print(speed(every), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
