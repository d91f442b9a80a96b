"""Change the code in small ways and see whether a test fails: `python -m tests.mutants`.

    python -m tests.mutants                    75 mutants of each room
    python -m tests.mutants --room gate --each 20 --seed 2
    python -m tests.mutants --only gate/check.py:86    all mutants of a line

A mutant is killed if a test that runs the changed line fails or hangs. Of the tests, those of the
room come first, the fastest of them first, as many as together take `--cap` seconds. A mutant that
survives tells of behaviour that no test holds, or changes none.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.benchmarks.harness import table
from tests.mutants.changes import Change, changes
from tests.mutants.processes import (
    ROOT,
    Test,
    import_others,
    judge,
    measure,
    text_of,
)  # fmt: skip

ROOMS = ("gate", "scoring", "redaction", "store")
TESTS = (
    "tests/gate", "tests/scoring", "tests/redaction", "tests/store", "tests/recording",
    "tests/registry", "tests/calibration", "tests/review", "tests/cli",
    "tests/test_config.py", "tests/test_notebooks.py", "tests/test_schema.py",
)  # fmt: skip
# They start processes, which do not see the mutant, or compare durations.
TESTS_LEFT_OUT = ("*/test_linear.py", "*/test_processes.py", "*/test_real_server.py")
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
        killed_by: A test that fails, or what ended the tests; empty if it survives.
    """

    room: str
    file: str
    number: int
    line: int
    source: str
    change: str
    killed_by: str = ""

    def __str__(self) -> str:
        verdict = f"killed by {self.killed_by}" if self.killed_by else "SURVIVES"
        return f"{self.file}:{self.line}: {verdict}\n    {self.source}\n    {self.change}"


def modules(room: str) -> list[str]:
    """Return the files of a room."""
    files = (ROOT / "kp_langchain" / room).glob("*.py")
    return sorted(str(file.relative_to(ROOT)) for file in files)


def mutants(room: str) -> Iterator[Mutant]:
    """Return all mutants of a room."""
    for file in modules(room):
        text = text_of(file)
        lines = text.splitlines()
        for number, change in enumerate(changes(ast.parse(text))):
            source = lines[change.line - 1].strip()
            yield Mutant(room, file, number, change.line, source, str(change))


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
    home = f"tests/{mutant.room}/"
    at_home = [test for test in chosen if test.name.startswith(home)]
    batches = [batch for batch in (at_home, chosen[len(at_home) :]) if batch]
    mutant.killed_by = judge(mutant.file, tree, batches)


def measured_tests() -> list[Test]:
    """Return all tests, measured once for the same code and tests."""
    files = [file for room in ROOMS for file in modules(room)]
    sources = [*ROOT.glob("kp_langchain/**/*.py"), *ROOT.glob("tests/[!m]*/**/*.py")]
    digest = hashlib.sha256(repr((TESTS, TESTS_LEFT_OUT, files)).encode())
    for file in sorted(sources):
        digest.update(file.read_bytes())
    version = digest.hexdigest()
    if MEASURED.exists():
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


def figures_of(tried: Sequence[Mutant]) -> str:
    """Return the table of each room's figures."""
    rows = []
    for room in [*dict.fromkeys(one.room for one in tried), "all"]:
        of_room = [one for one in tried if room in {one.room, "all"}]
        alive = sum(not one.killed_by for one in of_room)
        share = f"{alive / max(1, len(of_room)):.0%}"
        rows.append([room, len(of_room), len(of_room) - alive, alive, share])
    return table("Mutants", ["room", "mutants", "killed", "survived", "share"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Change the code and see whether a test fails.")
    parser.add_argument("--each", type=int, default=75, help="mutants of each room")
    parser.add_argument("--room", choices=ROOMS, action="append", help="only this room")
    parser.add_argument("--seed", type=int, default=1, help="draws other mutants")
    parser.add_argument("--only", help="all mutants of FILE:LINE")
    parser.add_argument("--cap", type=float, default=15.0, help="seconds of tests for a mutant")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the tests end, too
    import_others()
    tests = measured_tests()
    tried: list[Mutant] = []
    for mutant in draw(options):
        try_out(mutant, tests, options.cap)
        tried.append(mutant)
        progress(f"{len(tried)}: {mutant}")
    for mutant in tried:
        if not mutant.killed_by:
            print(mutant)
    print(figures_of(tried))


if __name__ == "__main__":
    main()
