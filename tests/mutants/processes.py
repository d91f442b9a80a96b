"""Processes that run tests on changed code, forked from one that has imported what others wrote.

The import of kp_langchain gets the changed code; nothing is written into the working tree.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.mutants.changes import PROBE, Probes
from tests.programs import IMPORTED

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
# Servers, models and interpreters of their own take longer than all other tests of a mutant.
SLOW_FIXTURES = {"postgres", "new_postgres_url", "onnx_folder", "run_python"}
EXAMPLES = 20  # that Hypothesis makes for a test
MEMORY_BYTES = 6 << 30
# A test hangs that takes so long, and so many times as long as it takes without a mutant.
HANG_S = 60
HANG_TIMES = 30
OUTPUT = "output.txt"
_LINES = 100_000  # more than any module has


def import_others() -> None:
    """Import what is the same for every mutant: all that tests need but kp_langchain."""
    for name in (*IMPORTED, "hypothesis.strategies", "hypothesis.internal.conjecture.engine"):
        importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    if "kp_langchain" in sys.modules:
        raise RuntimeError("kp_langchain is imported already, so mutants would not be seen")


def text_of(file: str) -> str:
    """Return the source of a file of this project."""
    return (ROOT / file).read_text()


@dataclass(frozen=True)
class Test:
    """A test that passes.

    Args:
        name: Its node id.
        seconds: How long it takes at the least.
        lines: The lines of functions that it runs, by file.
    """

    name: str
    seconds: float
    lines: Mapping[str, Collection[int]]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    def runs(self, file: str, lines: tuple[int, int]) -> bool:
        """Return whether it runs any of these lines."""
        first, last = lines
        return any(first <= line <= last for line in self.lines.get(file, ()))


def measure(files: Sequence[str], folders: Sequence[str], left_out: Sequence[str]) -> list[Test]:
    """Run all tests once; return those that pass.

    Args:
        files: The modules whose lines count.
        folders: Where the tests are.
        left_out: Patterns of the paths of tests that do not run.
    """

    def run() -> Any:
        numbers: set[int] = set()
        setattr(builtins, PROBE, numbers.add)
        trees = {}
        for at, file in enumerate(files):
            tree = Probes(at * _LINES).visit(ast.parse(text_of(file)))
            trees[file] = ast.fix_missing_locations(tree)
        hand_to_import(trees)
        plugin = _Measuring(numbers)
        ignored = [f"--ignore-glob={pattern}" for pattern in left_out]
        status = pytest.main([*OPTIONS, *ignored, *folders], plugins=[plugin])
        if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            raise RuntimeError(f"the tests cannot be run: {status!r}\n{_end_of_output()}")
        return plugin.tests

    tests = in_child(run, limit_s=3600)
    if isinstance(tests, str):
        raise RuntimeError(f"the tests cannot be measured: {tests}")
    return [_test(files, *one) for one in tests]


def _test(files: Sequence[str], name: str, seconds: float, numbers: list[int]) -> Test:
    lines: dict[str, list[int]] = {}
    for number in numbers:
        file, line = divmod(number, _LINES)
        lines.setdefault(files[file], []).append(line)
    return Test(name, seconds, lines)


def judge(file: str, tree: ast.Module, batches: Sequence[Sequence[Test]]) -> str:
    """Return which test fails with a mutant, or why the process ended; nothing if none fails.

    Args:
        file: The module that is changed.
        tree: The mutant.
        batches: The tests, to be run in this order.
    """

    def run() -> str:
        hand_to_import({file: tree})
        for tests in batches:
            plugin = _Choosing(tests)
            files = sorted({test.file for test in tests})
            status = pytest.main(["-x", *OPTIONS, *files], plugins=[plugin])
            if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                return plugin.failed or "the import"
        return ""

    return str(in_child(run, limit_s=600))


def hand_to_import(trees: Mapping[str, ast.Module]) -> None:
    """Have the import of these files get this code."""
    by_path = {str(ROOT / file): tree for file, tree in trees.items()}
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> types.CodeType | None:
        tree = by_path.get(self.path)
        if tree is None:
            return original(self, fullname)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def in_child(run: Callable[[], Any], *, limit_s: int) -> Any:
    """Return what a function returns in a forked process, or what ended that.

    Args:
        run: Returns what can be JSON.
        limit_s: Seconds of CPU that it may take.
    """
    with tempfile.TemporaryDirectory(prefix="kp-mutant-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder, "answer.json")
        child = os.fork()
        if not child:
            try:
                _isolate(folder, limit_s)
                value = run()
                answer.write_text(json.dumps({"value": value}))
            except BaseException:
                answer.write_text(json.dumps({"error": traceback.format_exc()}))
            finally:
                os._exit(0)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # also what its tests started
        if not answer.exists():
            is_hang = status in {-signal.SIGALRM, -signal.SIGXCPU}
            return "a hang" if is_hang else f"exit status {status}"
        content = json.loads(answer.read_text())
        if "error" in content:
            raise RuntimeError(content["error"])
        return content["value"]


def _isolate(folder: str, limit_s: int) -> None:
    """Keep a process from harm: in a group, a home and streams of its own, with limits."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.environ |= {"HOME": folder, "TMPDIR": folder}
    tempfile.tempdir = folder
    os.chdir(ROOT)
    with Path(os.devnull).open("rb") as nothing, Path(folder, OUTPUT).open("wb") as output:
        for number, stream in enumerate((nothing, output, output)):
            os.dup2(stream.fileno(), number)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def _end_of_output() -> str:
    sys.stdout.flush()
    return Path(os.environ["HOME"], OUTPUT).read_text()[-2000:]


class _Plugin:
    """What both ways of running tests need."""

    def pytest_sessionstart(self) -> None:
        few = {"max_examples": EXAMPLES, "database": None, "derandomize": True}
        settings.register_profile("mutants", settings.get_profile("default"), **few)
        settings.load_profile("mutants")
        signal.alarm(600)  # for the imports


class _Measuring(_Plugin):
    """Notes what each test runs, and how long it takes."""

    def __init__(self, numbers: set[int]) -> None:
        self.tests: list[tuple[str, float, list[int]]] = []
        self._numbers = numbers
        self._is_passed = True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not _is_slow(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        signal.alarm(600)
        self._numbers.clear()
        self._is_passed = True
        began, began_cpu = time.monotonic(), time.process_time()
        try:
            return (yield)
        finally:
            if self._is_passed:
                # On a busy machine, the duration alone says little.
                waited, worked = time.monotonic() - began, time.process_time() - began_cpu
                seconds = round(max(waited / 5, worked), 3)
                self.tests.append((item.nodeid, seconds, sorted(self._numbers)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._is_passed &= report.passed


def _is_slow(item: pytest.Item) -> bool:
    if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    return any(isinstance(value, str) and value == "postgresql" for value in parameters)


class _Choosing(_Plugin):
    """Runs only some tests, in their order."""

    def __init__(self, tests: Sequence[Test]) -> None:
        self.failed = ""
        self._seconds = {test.name: test.seconds for test in tests}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self._seconds if name in by_name]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.alarm(int(max(HANG_S, HANG_TIMES * self._seconds[nodeid])))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid
