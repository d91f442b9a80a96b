"""Processes that end in some way, what they noted, and what the next one finds in the store.

All of it by public names, so that it holds whatever the inside of the package is, but for one
table: it shortens the waits of today's inside, so that a scenario takes seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kp_langchain import TraceStore
from tests import programs
from tests.agents import ASK, handler, searching

ENOUGH_S = 600.0
# The settings that the programs take over.
_LIMITS = ("KP_EXIT_TIMEOUT_S", "KP_FUNCTION_TIMEOUT_S")
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
_SHORT_S = {
    "kp_langchain.registry.client._LONGEST_LOOKUP_S": 1.0,
    "kp_langchain.registry.answers._FIRST_BACKOFF_S": 0.002,
    "kp_langchain.registry.answers.LONGEST_BACKOFF_S": 0.2,
    "kp_langchain.registry.sender.LONGEST_BACKOFF_S": 0.2,
    "kp_langchain.registry.answers._HOUR_S": 0.5,
    "kp_langchain.registry.answers._MARGIN_S": 0.01,
    "kp_langchain.registry.answers._DEFAULT_INTERVAL_S": 0.0,
    "kp_langchain.registry.answers._THROTTLE_WAIT_S": 0.05,
    "kp_langchain.registry.sender._RETRY_TURN_S": 0.01,
    "kp_langchain.registry.sender._OTHERS_TURN_S": 0.001,
    "kp_langchain.store.jobs.LEASE_S": 3.0,
    "kp_langchain.recording.engine.LEASE_S": 3.0,
    "kp_langchain.recording.store_writer.LEASE_S": 3.0,
    "kp_langchain.store.jobs._FIRST_PAUSE_S": 0.01,
    "kp_langchain.store.jobs._LONGEST_PAUSE_S": 0.05,
    "kp_langchain.store.connections._BUSY_TIMEOUT_S": 0.05,
}

# Runs that are taken over are scored by the bundled scorer, whose model would take seconds to load.
WITHOUT_MODEL = {"KP_EMBEDDING_MODEL": "no-such-model", "HF_HUB_OFFLINE": "1"}


@contextmanager
def shortened_clock() -> Iterator[None]:
    """Shorten rests, pauses and leases, and load no model; an error if a wait is not there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WITHOUT_MODEL.items():
            patch.setenv(name, value)
        for name, seconds in _SHORT_S.items():
            patch.setattr(name, seconds)
        yield


class UnexpectedEndError(Exception):
    """A program did not end as it was to."""


@contextmanager
def started(
    folder: Path, *words: str, output: str = "output", **more: str
) -> Iterator[programs.Program]:
    """Run a program in `folder`, with what it prints in the file `output`; leave none behind.

    Args:
        folder: Its working folder and home of its data.
        words: As after `python`.
        output: The file.
        more: Added to its environment.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KP_") or name in _LIMITS
    } | {
        "PYTHONPATH": str(programs.ROOT),
        "PYTHONFAULTHANDLER": "1",
        "XDG_DATA_HOME": str(folder / "data"),
        **WITHOUT_MODEL,
        **more,
    }
    with (folder / output).open("w") as stream:
        program = programs.start(
            *words, stdout=stream, stderr=stream, cwd=folder, environment=environment
        )
    try:
        yield program
    finally:
        program.kill()  # it may not lead its group yet
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def wait_until(
    done: Callable[[], bool], what: str, output: Path, *playing: programs.Program
) -> None:
    """Wait for a condition, as long as the programs live."""
    until = time.monotonic() + ENOUGH_S
    while not done():
        statuses = [program.poll() for program in playing]
        if any(status is not None for status in statuses) or time.monotonic() > until:
            raise UnexpectedEndError(
                f"waiting until {what}; exit status {statuses}\n{output.read_text()[-3000:]}"
            )
        time.sleep(0.002)


def ended(program: programs.Program, output: Path, *expected: int) -> None:
    """Wait for the end of a program.

    Raises:
        UnexpectedEndError: It does not end, or with another exit status.
    """
    try:
        status = program.wait(ENOUGH_S)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGABRT)  # which has each process print its stacks
        program.wait(ENOUGH_S)
        stacks = output.read_text()[-20_000:]
        raise UnexpectedEndError(f"it does not end\n{stacks}") from None
    if status not in expected:
        text = output.read_text()[-3000:]
        raise UnexpectedEndError(f"exit status {status}, not {expected}\n{text}")


def append(path: Path, *words: object) -> None:
    """Append a line in one write, which other processes see as a whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{' '.join(map(str, words))}\n".encode())
    finally:
        os.close(descriptor)


def lines_in(path: Path) -> list[str]:
    """Return the lines that were appended to a file."""
    return path.read_text().splitlines() if path.exists() else []


def settle(url: Path | str) -> None:
    """Use a store as the next process does, until nothing in it waits for its score."""
    until = time.monotonic() + ENOUGH_S
    with TraceStore(url) as store, handler("next", store=store) as watching:
        while time.monotonic() < until:
            searching().invoke(ASK, {"callbacks": [watching]})
            if watching.flush(ENOUGH_S) and not store.deletions.plan(until=_END_OF_TIME).unscored:
                return
            time.sleep(0.05)
    raise UnexpectedEndError(f"runs in {url} still wait for their score")


def stored_in(url: Path | str) -> Counter[str]:
    """Let the next process use a store; return how many scored traces each run has there."""
    if isinstance(url, Path) and not url.exists():
        return Counter()
    settle(url)
    with TraceStore(url) as store:
        runs = [run for run in store.runs(limit=None) if run.domain != "next"]
        assert all(0.0 <= run.score <= 1.0 for run in runs)
    return Counter(run.run_id for run in runs)
