"""The command line as a user types it: in this process, or in one of its own.

A process of its own takes half a second, so it is for tests of what only a process shows: signals,
pipes, terminals, what the environment decides at its start.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TextIO

import pytest
import typer.main

from kp_langchain.cli.app import main
from kp_langchain.embedding.local_models import _default_embedder
from tests import programs
from tests.programs import Done

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "from kp_langchain.cli.app import main; main()"
# typer reads the signatures of all commands each time, which takes longer than most of them.
_get_command = functools.cache(typer.main.get_command)


def cli(*words: str, stdin: str = "", columns: int = 120, **environment: str) -> Done:
    """Run a command in this process, as if it were a new one."""
    if "KP_EMBEDDING_MODEL" in environment:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kp_langchain.scoring.process_scorer._default_scorer", None)
            _default_embedder.cache_clear()
            try:
                return _run_here(words, stdin, columns, environment)
            finally:
                _default_embedder.cache_clear()
    return _run_here(words, stdin, columns, environment)


def _run_here(
    words: tuple[str, ...], stdin: str, columns: int, environment: dict[str, str]
) -> Done:
    # The command's threads. Those of earlier tests go on, and start others.
    threads = [threading.current_thread()]
    out, err = _Output(sys.stdout, threads), _Output(sys.stderr, threads)
    start_before = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if threading.current_thread() in threads:
            threads.append(thread)
        start_before(thread)

    last_resort = logging.StreamHandler(err)
    last_resort.setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"COLUMNS": str(columns), **environment}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["kp-langchain", *words])
        patch.setattr(typer.main, "get_command", _get_command)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        # In a new process nothing was warned of yet, and a warning of the log goes to stderr.
        patch.setattr("kp_langchain._logging._logged_kinds", set())
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setattr(logging, "lastResort", last_resort)
        patch.setattr(threading.Thread, "start", start)
        time.tzset()
        with pytest.raises(SystemExit) as end:
            main()
    time.tzset()
    assert isinstance(end.value.code, int)
    for thread in threads[1:]:
        thread.join(60)
        assert not thread.is_alive(), f"in the process of the tests, {thread.name} stays"
    return Done(end.value.code, out.text(), err.text())


class _Output(io.TextIOWrapper):
    """What a command writes. Other threads write where they did before: a tool's package may log
    for minutes that it cannot reach its server any more.
    """

    def __init__(self, before: TextIO, threads: Collection[threading.Thread]) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8")
        self._before, self._threads = before, threads

    def write(self, text: str) -> int:
        if threading.current_thread() in self._threads:
            return super().write(text)
        return self._before.write(text)

    def text(self) -> str:
        self.flush()
        return self._bytes.getvalue().decode()


def cli_apart(
    *words: str, stdin: str = "", columns: int = 120, program: str = PROGRAM, **environment: str
) -> Done:
    """Run a command in a process of its own, by a Python program that runs the command line."""
    return programs.run("-c", program, *words, stdin=stdin, COLUMNS=str(columns), **environment)


def write_user_config(text: str) -> Path:
    """Write the user's own configuration file, of which every key counts; return its path."""
    path = Path(os.environ["XDG_CONFIG_HOME"], "kp_langchain", "kp.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
