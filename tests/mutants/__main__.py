"""Change the code in small ways and see whether a test fails: `python -m tests.mutants`.

    python -m tests.mutants                    75 mutants of each room
    python -m tests.mutants --room gate --each 20 --seed 2
    python -m tests.mutants --only gate/check.py:86    all mutants of a line

A mutant is killed if a test that runs the changed line fails or hangs, or if a golden file differs.
Of the tests, those of the room come first, the fastest of them first, as many as together take
`--cap` seconds. A mutant that survives tells of behaviour that no test holds, or changes none: then
`explained.toml` says why.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.changes import Change, changes
from tests.mutants.processes import (
    ROOT,
    Test,
    import_others,
    judge,
    judge_by_golden_files,
    measure,
    text_of,
)  # fmt: skip

# Of each room, what is changed. Left out of redaction are its caches and the searches that only
# save time; of the store, what reads, and what the design gives up.
ROOMS = {
    "gate": ("gate/*.py",),
    "scoring": ("scoring/*.py",),
    "redaction": (
        "redaction/*.py", "!redaction/finders.py", "!redaction/harmless.py",
        "!redaction/limits.py", "!redaction/stems.py",
    ),
    "store": (
        "store/jobs.py", "store/journal.py", "store/outbox_queries.py",
        "store/rows.py", "store/run_queries.py",
        "store/tables.py", "store/run_columns.py", "store/trace_store.py",
        "store/vector_queries.py", "store/vectors.py", "store/verdicts.py",
    ),
}  # fmt: skip
TESTS = (
    "tests/gate", "tests/scoring", "tests/redaction", "tests/store", "tests/recording",
    "tests/registry", "tests/calibration", "tests/review", "tests/cli",
    "tests/test_config.py", "tests/test_notebooks.py", "tests/test_schema.py",
)  # fmt: skip
# They start processes, which do not see the mutant, or compare durations.
TESTS_LEFT_OUT = ("*/test_linear.py", "*/test_processes.py", "*/test_real_server.py")
# What a mutant of a room that all tests leave alive is held against at last.
GOLDEN = {
    "gate": ("recall", "verdicts", "support_desk"), "scoring": ("scores", "verdicts"),
    "redaction": ("redaction", "situations"), "store": ("recall", "verdicts", "support_desk"),
}  # fmt: skip
EXPLAINED = Path(__file__).with_name("explained.toml")
MEASURED = ROOT / ".pytest_cache" / "mutants.json"


@dataclass
class Mutant:
    """A changed module.

    Args:
        room: Where it is.
        file: The module, from the top of the project.
        number: Which change of the module it is.
        line: The line that is changed.
        source: The text of that line.
        change: What becomes of what.
        nth: Which it is of those in the module with the same text and the same change.
        tests: How many tests run it.
        killed_by: A test that fails, or what ended the tests; empty if it survives.
        reason: Why it changes nothing, if that is known.
    """

    room: str
    file: str
    number: int
    line: int
    source: str
    change: str
    nth: int = 1
    tests: int = 0
    killed_by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        verdict = f"killed by {self.killed_by}" if self.killed_by else self.reason or "SURVIVES"
        return f"{self.file}:{self.line}: {verdict}\n    {self.source}\n    {self.change}"


def modules(room: str) -> list[str]:
    """Return the files of a room that are changed."""
    package = ROOT / "kp_langchain"
    files: set[Path] = set()
    for pattern in ROOMS[room]:
        if pattern.startswith("!"):
            files -= set(package.glob(pattern[1:]))
        else:
            files |= set(package.glob(pattern))
    return sorted(str(file.relative_to(ROOT)) for file in files)


def mutants(room: str) -> Iterator[Mutant]:
    """Return all mutants of a room."""
    for file in modules(room):
        text = text_of(file)
        lines = text.splitlines()
        known: Counter[tuple[str, str]] = Counter()
        for number, change in enumerate(changes(ast.parse(text))):
            source, made = lines[change.line - 1].strip(), str(change)
            known[source, made] += 1
            yield Mutant(room, file, number, change.line, source, made, known[source, made])


def draw(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants to try: one of each room in turn, so that a part tells of all."""
    chosen: list[tuple[int, Mutant]] = []
    for room in options.room or ROOMS:
        every = list(mutants(room))
        if options.only:
            ours = [one for one in every if f"{one.file}:{one.line}".endswith(options.only)]
        else:
            dice = random.Random(f"{options.seed} {room}")
            ours = dice.sample(every, min(options.each, len(every)))
        chosen += enumerate(ours)
    return [mutant for _, mutant in sorted(chosen, key=lambda one: one[0])]


def tests_of(change: Change, mutant: Mutant, tests: Sequence[Test], cap_s: float) -> list[Test]:
    """Return the tests that run a change: those of its room first, the fastest first."""
    home = f"tests/{mutant.room}/"
    runs = [test for test in tests if test.runs(mutant.file, change.seen_from)]
    chosen = []
    for test in sorted(runs, key=lambda one: (not one.name.startswith(home), one.seconds)):
        if test.seconds <= cap_s:
            chosen.append(test)
            cap_s -= test.seconds
    return chosen


def try_out(mutant: Mutant, tests: Sequence[Test], cap_s: float) -> None:
    """Run tests on a mutant."""
    tree = ast.parse(text_of(mutant.file))
    change = changes(tree)[mutant.number]
    chosen = tests_of(change, mutant, tests, cap_s)
    change.make()
    mutant.tests = len(chosen)
    home = f"tests/{mutant.room}/"
    at_home = [test for test in chosen if test.name.startswith(home)]
    batches = [batch for batch in (at_home, chosen[len(at_home) :]) if batch]
    mutant.killed_by = judge(mutant.file, tree, batches) or judge_by_golden_files(
        mutant.file, tree, GOLDEN[mutant.room]
    )


def measured(is_fresh: bool) -> list[Test]:
    """Return all tests, measured once for the same code and tests."""
    files = [file for room in ROOMS for file in modules(room)]
    sources = [*ROOT.glob("kp_langchain/**/*.py"), *ROOT.glob("tests/[!m]*/**/*.py")]
    digest = hashlib.sha256(repr((TESTS, TESTS_LEFT_OUT, files)).encode())
    for file in sorted(sources):
        digest.update(file.read_bytes())
    version = digest.hexdigest()
    if not is_fresh and MEASURED.exists():
        known = json.loads(MEASURED.read_text())
        if known["version"] == version:
            return [Test(**one) for one in known["tests"]]
    began = time.monotonic()
    tests = measure(files, TESTS, TESTS_LEFT_OUT)
    progress(f"{len(tests)} tests measured in {time.monotonic() - began:.0f} s")
    MEASURED.parent.mkdir(exist_ok=True)
    rows = [vars(test) for test in tests]
    MEASURED.write_text(json.dumps({"version": version, "tests": rows}))
    return tests


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def reasons() -> dict[tuple[str, str, str, int], str]:
    """Return why each of the explained survivors changes nothing."""
    rows = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    return {
        (row["file"], row["line"], row["change"], row.get("nth", 1)): row["why"] for row in rows
    }


def table(tried: Sequence[Mutant]) -> str:
    """Return the figures of each room."""
    rows = [
        "| room | mutants | killed | survived | per cent | explained |",
        "| --- |" + " ---: |" * 5,
    ]
    for room in [*dict.fromkeys(one.room for one in tried), "all"]:
        ours = [one for one in tried if room in {one.room, "all"}]
        alive = [one for one in ours if not one.killed_by]
        explained = sum(bool(one.reason) for one in alive)
        share = 100 * len(alive) / max(1, len(ours))
        rows.append(
            f"| {room} | {len(ours)} | {len(ours) - len(alive)} | {len(alive)} | {share:.0f} "
            f"| {explained} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Change the code and see whether a test fails.")
    parser.add_argument("--each", type=int, default=75, help="mutants of each room")
    parser.add_argument("--room", choices=ROOMS, action="append", help="only this room")
    parser.add_argument("--seed", type=int, default=1, help="draws other mutants")
    parser.add_argument("--only", help="all mutants of FILE:LINE")
    parser.add_argument("--cap", type=float, default=15.0, help="seconds of tests for a mutant")
    parser.add_argument("--fresh", action="store_true", help="measure the tests again")
    parser.add_argument("--out", type=Path, help="write what became of each mutant to this file")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the tests end, too
    import_others()
    tests = measured(options.fresh)
    known = reasons()
    tried: list[Mutant] = []
    for mutant in draw(options):
        try_out(mutant, tests, options.cap)
        mutant.reason = known.get((mutant.file, mutant.source, mutant.change, mutant.nth), "")
        tried.append(mutant)
        progress(f"{len(tried)}: {mutant}")
        if options.out:
            options.out.write_text(json.dumps([asdict(one) for one in tried], indent=1))
    for mutant in tried:
        if not mutant.killed_by:
            print(mutant)
    print(table(tried))


if __name__ == "__main__":
    main()
