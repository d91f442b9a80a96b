"""Some ways of ending, each once; `python -m tests.faults.endings` plays all of them, 50 times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.endings import MISSING, play_end

WAYS = [
    "script end",
    "exception",
    "Ctrl-C in a tool",
    "SIGTERM, handler calls sys.exit",
    "asyncio.run, tasks cancelled",
    "threads, not waited for",
    "Process, fork",
    "Pool closed and joined, fork",
    "ProcessPoolExecutor, fork",
    pytest.param("Pool closed and joined, forkserver", marks=pytest.mark.slow),
    "ProcessPoolExecutor, spawn",
    "os.fork, child ends by sys.exit",
    "fork in mid-run, both sides go on",
    "uvicorn, lifespan, idle",
    "uvicorn, 4 workers, lifespan, mid-load",
    "gunicorn sync, max_requests",
    "gunicorn UvicornWorker, lifespan, TERM, idle",
    "Celery prefork, max_tasks_per_child",
    "pytest-xdist",
    pytest.param("joblib (loky)", marks=pytest.mark.slow),
]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks of POSIX systems")


@posix
@pytest.mark.parametrize("name", WAYS)
def test_what_finished_is_stored_however_the_process_ends(name: str, tmp_path: Path) -> None:
    if name in MISSING:
        pytest.skip(f"{name!r} needs: pip install {' '.join(MISSING[name])}")
    runs = play_end(name, tmp_path)
    assert runs["finished"] > 0
    assert (runs["lost"], runs["doubled"]) == (0, 0), runs
