"""Commands whose output nobody reads to its end, or that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, TraceStore
from tests.agents import ASK, handler, searching
from tests.commands import ROOT, cli

COMMANDS = [
    ["--help"],
    ["--version"],
    ["schema"],
    ["review", "--database", "runs.db"],
    ["review", "--database", "runs.db", "--json"],
    ["review", "show", "{id}", "--database", "runs.db"],
    ["review", "show", "{id}", "--database", "runs.db", "--json"],
    ["label", "{id}", "--success", "--database", "runs.db"],
    ["label", "--next", "--database", "runs.db"],
    ["label", "--next", "--json", "--database", "runs.db"],
    ["outbox", "--database", "runs.db"],
    ["delete", "{id}", "--dry-run", "--database", "runs.db"],
    ["delete", "{id}", "--yes", "--database", "runs.db"],
    ["prune", "--database", "runs.db"],
    ["export", "--database", "runs.db"],
    ["export", "--format", "few-shot", "--database", "runs.db"],
    ["calibrate", "--database", "runs.db"],
    ["calibrate", "show", "--database", "runs.db"],
    ["trust"],
    ["trust", "--list"],
    ["doctor", "--database", "runs.db"],
]


@pytest.fixture
def run_id() -> str:
    """The id of the run in `runs.db`; beside it, a `kp.toml` that is trusted."""
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    Path("kp.toml").write_text("max_steps = 10\n")
    assert cli("trust").returncode == 0
    return scored.trace.id


def start(words: list[str], **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "kp_langchain", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KP_EMBEDDING_MODEL": "/no/such/model"},
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_pipe_ends_a_command_without_a_word(run_id: str, words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = start(
        [word.format(id=run_id) for word in words], stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    _, stderr = command.communicate(timeout=600)
    assert (command.returncode, stderr) == (141, b"")


@pytest.mark.parametrize("words", [["review", "show", "nothing"], ["no-such-command"]])
def test_errors_that_nobody_reads_make_no_further_ones(run_id: str, words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = start(words, stdout=subprocess.PIPE, stderr=write_end)
    os.close(write_end)
    stdout, _ = command.communicate(timeout=600)
    assert (command.returncode, stdout) == (141, b"")


@pytest.mark.parametrize("words", [["review", "--json", "--limit", "100"], ["export", "--all"]])
def test_a_reader_of_the_first_line_gets_it(run_id: str, words: list[str]) -> None:
    with TraceStore("runs.db") as store:  # more than a pipe holds
        watching = handler(store=store)
        for _ in range(60):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
    command = start(
        [*words, "--database", "runs.db"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    assert command.stdout.readline().startswith(b"{")
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(600) == 141
    command.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words", [["schema"], ["review", "--database", "runs.db"], ["export", "--database", "runs.db"]]
)
def test_a_full_disk_is_one_message_and_status_1(run_id: str, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = start(words, stdout=full, stderr=subprocess.PIPE)
        _, stderr = command.communicate(timeout=600)
    assert command.returncode == 1
    assert stderr.decode().strip() == (
        "error: the output cannot be written: No space left on device"
    )
