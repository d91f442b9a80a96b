"""Every way in which a process ends in order: `python -m tests.faults.endings` prints the table.

A real program plays agent runs, notes each whose `invoke` returned, and ends. Then the next
process uses the store, which also scores what was left unscored; what was noted and is not stored
then was lost. What SIGKILL loses, `window` measures.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from tests import programs
from tests.faults.ending_programs import FINISHED, IN_A_TOOL, PROGRAMS, STORE, make_celery_app
from tests.faults.processes import (
    ENOUGH_S,
    UnexpectedEndError,
    ended,
    lines_in,
    started,
    stored_in,
    wait_until,
)

End = Callable[[Path], None]
_REQUESTS = 5
_CLIENTS = 8
_ANSWERS_UNDER_LOAD = 60
# What a way needs, by the first word of its name.
_PACKAGES = {
    "uvicorn": ("uvicorn", "starlette"),
    "gunicorn": ("gunicorn", "uvicorn", "starlette"),
    "Celery": ("celery",),
    "joblib": ("joblib",),
    "pytest-xdist": ("xdist",),
}


def missing_packages(name: str) -> list[str]:
    """Return the packages that a way of ending needs and that are not installed."""
    needed = _PACKAGES.get(name.replace(",", " ").split()[0], ())
    return [package for package in needed if not importlib.util.find_spec(package)]


# ---------------------------------------------------------------- programs, and signals to them


def program(folder: Path, name: str) -> AbstractContextManager[programs.Program]:
    return started(folder, "-m", "tests.faults.ending_programs", name)


def end_by_itself(folder: Path, *, name: str) -> None:
    status = {"exception": 1, "sys.exit": 3}.get(name, 0)
    with program(folder, name) as playing:
        ended(playing, folder / "output", status)


def interrupt(folder: Path) -> None:
    with program(folder, "Ctrl-C in a tool") as playing:
        wait_until((folder / IN_A_TOOL).exists, "the tool waits", folder / "output", playing)
        playing.send_signal(signal.SIGINT)
        (folder / IN_A_TOOL).unlink()
        ended(playing, folder / "output", 1, -signal.SIGINT)


def terminate(folder: Path) -> None:
    """Send SIGTERM at a random moment of an endless loop of runs."""
    with program(folder, "SIGTERM, handler calls sys.exit") as playing:
        output = folder / "output"
        wait_until(lambda: len(lines_in(folder / FINISHED)) > 0, "it plays", output, playing)
        time.sleep(random.uniform(0.0, 0.5))
        playing.send_signal(signal.SIGTERM)
        ended(playing, output, 0)


# ---------------------------------------------------------------- web services


def is_answered(address: Path, path: str) -> bool:
    """Ask a service on a Unix socket, on a connection for this request alone."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(ENOUGH_S)
        connection.connect(str(address))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
        return answer.startswith(b"HTTP/1.1 200") and b"42" in answer
    return False


def serve(
    folder: Path,
    *,
    command: Sequence[str],
    signal_number: int = signal.SIGTERM,
    under_load: bool = False,
    path: str = "/",
) -> None:
    """Ask a service that listens on the socket `s`, then end it; idle, or while it is asked."""
    answers = Counter[str]()
    stop = threading.Event()
    output = folder / "output"

    def ask() -> bool:
        good = is_answered(folder / "s", path)
        answers["good"] += good
        return good

    def ask_again_and_again() -> None:
        while not stop.is_set() and ask():
            pass

    with started(folder, "-m", *command) as playing:
        wait_until(ask, "it answers", output, playing)
        for _ in range(_REQUESTS):
            ask()
        clients = [
            threading.Thread(target=ask_again_and_again) for _ in range(_CLIENTS * under_load)
        ]
        for client in clients:
            client.start()
        if under_load:
            enough = _ANSWERS_UNDER_LOAD
            wait_until(lambda: answers["good"] >= enough, "many are answered", output, playing)
        playing.send_signal(signal_number)
        ended(playing, output, 0, -signal_number)
        stop.set()
        for client in clients:
            client.join()


_WSGI, _ASGI = "tests.faults.ending_programs:wsgi", "tests.faults.ending_programs:asgi"
_UVICORN = (
    "uvicorn", _ASGI, "--factory", "--uds", "s", "--log-level", "warning",
    "--timeout-worker-healthcheck", "600",  # s; by default it kills those that wait for a core
)  # fmt: skip
_GUNICORN = ("gunicorn", "--bind", "unix:s", "--log-level", "error", "-w", "2")
_UVICORN_WORKER = (*_GUNICORN, "-k", "uvicorn.workers.UvicornWorker", f"{_ASGI}()")


# ---------------------------------------------------------------- workers of other packages


def work_for_celery(folder: Path, *options: str, tasks: int = 8, enough: int = 8) -> None:
    """Have a worker do tasks; end it after some of them."""
    for name in ("queue", "control"):
        (folder / name).mkdir()
    app = make_celery_app(folder)
    words = (
        "celery", "-A", "tests.faults.ending_programs:celery_app", "worker", "--pool", "prefork",
        "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error",
        *options,
    )  # fmt: skip
    finished, output = folder / FINISHED, folder / "output"
    with started(folder, "-m", *words) as playing:
        for _ in range(tasks):
            app.send_task("play")
        wait_until(lambda: len(lines_in(finished)) >= enough, "tasks are done", output, playing)
        playing.send_signal(signal.SIGTERM)
        ended(playing, output, 0)


def run_pytest_xdist(folder: Path) -> None:
    """Play in the workers of pytest-xdist."""
    (folder / "test_plays.py").write_text(
        "import pytest\nfrom tests.faults.ending_programs import play\n\n\n"
        "@pytest.mark.parametrize('number', range(6))\ndef test(number): play()\n"
    )
    words = ("pytest", "-q", "-p", "xdist", "-n", "2", "--rootdir", ".", "test_plays.py")
    with started(folder, "-m", *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1") as playing:
        ended(playing, folder / "output", 0)


ENDS: dict[str, End] = {
    **{name: partial(end_by_itself, name=name) for name in PROGRAMS},
    "Ctrl-C in a tool": interrupt,
    "SIGTERM, handler calls sys.exit": terminate,
    "uvicorn, idle": partial(serve, command=_UVICORN),
    "uvicorn, mid-load": partial(serve, command=_UVICORN, under_load=True),
    "uvicorn, 4 workers, mid-load": partial(
        serve, command=(*_UVICORN, "--workers", "4"), under_load=True
    ),
    "uvicorn, runs in threads, mid-load": partial(
        serve, command=_UVICORN, under_load=True, path="/thread"
    ),
    "gunicorn sync, max_requests": partial(
        serve, command=(*_GUNICORN, "--max-requests", "3", _WSGI)
    ),
    "gunicorn sync, preload, mid-load": partial(
        serve, command=(*_GUNICORN, "--preload", _WSGI), under_load=True
    ),
    "gunicorn gthread, mid-load": partial(
        serve, command=(*_GUNICORN, "-k", "gthread", "--threads", "4", _WSGI), under_load=True
    ),
    "gunicorn sync, QUIT, mid-load": partial(
        serve, command=(*_GUNICORN, _WSGI), signal_number=signal.SIGQUIT, under_load=True
    ),
    "gunicorn UvicornWorker, idle": partial(serve, command=_UVICORN_WORKER),
    "gunicorn UvicornWorker, mid-load": partial(serve, command=_UVICORN_WORKER, under_load=True),
    "Celery prefork, mid-load": partial(work_for_celery, tasks=200, enough=20),
    "Celery prefork, max_tasks_per_child": lambda folder: work_for_celery(
        folder, "--max-tasks-per-child", "2"
    ),
    "pytest-xdist": run_pytest_xdist,
}


# ---------------------------------------------------------------- the account


def play_end(name: str, folder: Path) -> Counter[str]:
    """Have one program end so; count its runs that finished, were lost, and were stored twice."""
    ENDS[name](folder)
    finished = set(lines_in(folder / FINISHED))
    stored = stored_in(folder / STORE)
    return Counter(
        finished=len(finished),
        lost=len(finished - stored.keys()),
        doubled=sum(count > 1 for count in stored.values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what each way of ending loses.")
    parser.add_argument("--times", type=int, default=50, help="processes per way")
    parser.add_argument("--only", default="", help="part of a way's name")
    options = parser.parse_args()
    print("| way of ending | times | finished | lost | doubled | failed | s |")
    print(f"| --- |{' ---: |' * 6}", flush=True)
    bad = 0
    for name in (one for one in ENDS if options.only in one):
        began = time.perf_counter()
        total = Counter[str]()
        for _ in range(options.times):
            try:
                with tempfile.TemporaryDirectory() as folder:
                    total += play_end(name, Path(folder))
            except UnexpectedEndError as error:
                print(f"{name}: {error}", file=sys.stderr)
                total["failed"] += 1
        bad += total["lost"] + total["doubled"] + total["failed"]
        counts = [total[what] for what in ("finished", "lost", "doubled", "failed")]
        cells = [name, options.times, *counts, f"{time.perf_counter() - began:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
