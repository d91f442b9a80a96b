"""Every way in which a process ends: `python -m tests.faults.endings` prints the table.

A real program plays agent runs, notes each whose `invoke` returned, and ends. Then the next
process uses the store, which also scores what was left unscored; what was noted and is not stored
then was lost. What SIGKILL loses, `window` measures.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import product
from pathlib import Path

from kp_langchain import TraceStore
from tests import programs
from tests.faults.ending_programs import FINISHED, IN_A_TOOL, PROGRAMS, STORE
from tests.faults.processes import (
    ENOUGH_S,
    UnexpectedEndError,
    ended,
    lines_in,
    started,
    stored_in,
    wait_until,
)

REQUESTS = 5
End = Callable[[Path], None]
ENDS: dict[str, End] = {}
MISSING: dict[str, list[str]] = {}
# Python is given no chance there, or the program asked for none: what is lost is the time between
# a run's end and the disk.
ABRUPT = {
    name
    for name in PROGRAMS
    if name.startswith(("with Pool()", "os._exit", "os.fork, child ends by os._exit"))
}


def enter(name: str, end: End, *needed: str, abrupt: bool = False) -> None:
    """Enter a way of ending, or the packages that it needs and that are not installed."""
    missing = [package for package in needed if not importlib.util.find_spec(package)]
    if missing:
        MISSING[name] = missing
    else:
        ENDS[name] = end
    if abrupt:
        ABRUPT.add(name)


def program(folder: Path, name: str) -> AbstractContextManager[programs.Program]:
    return started(folder, "-m", "tests.faults.ending_programs", name)


# ---------------------------------------------------------------- programs, and signals to them


def by_itself(folder: Path, *, name: str, status: int = 0) -> None:
    with program(folder, name) as playing:
        ended(playing, folder / "output", status)


def interrupted(folder: Path) -> None:
    with program(folder, "Ctrl-C in a tool") as playing:
        wait_until((folder / IN_A_TOOL).exists, "the tool waits", folder / "output", playing)
        playing.send_signal(signal.SIGINT)
        (folder / IN_A_TOOL).unlink()
        ended(playing, folder / "output", 1, -signal.SIGINT)


def terminated(folder: Path, *, name: str, status: int) -> None:
    """Send SIGTERM at a random moment of an endless loop of runs."""
    finished = folder / FINISHED
    with program(folder, name) as playing:
        wait_until(lambda: len(lines_in(finished)) > 0, "it plays", folder / "output", playing)
        time.sleep(random.uniform(0.0, 0.5))
        playing.send_signal(signal.SIGTERM)
        ended(playing, folder / "output", status)


def enter_programs() -> None:
    statuses = {"exception": 1, "sys.exit": 3}
    for name in PROGRAMS:
        needed = ["joblib"] if name.startswith("joblib") else []
        enter(name, partial(by_itself, name=name, status=statuses.get(name, 0)), *needed)
    enter("Ctrl-C in a tool", interrupted)
    by_handler = "SIGTERM, handler calls sys.exit"
    enter(by_handler, partial(terminated, name=by_handler, status=0))
    endless = partial(terminated, name="until killed", status=-signal.SIGTERM)
    enter("SIGTERM", endless, abrupt=True)
    del ENDS["until killed"]


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


def has_runs(path: Path) -> bool:
    if not path.exists():
        return False
    with TraceStore(path) as store:
        return store.count() > 0


def served(
    folder: Path,
    *command: str,
    number: int = signal.SIGTERM,
    expected: tuple[int, ...] = (0,),
    load: bool = False,
    opened: bool = False,
    path: str = "/",
) -> None:
    """Ask a service that listens on the socket `s`, then end it; idle, or while it is asked.

    With `opened`, it is asked once more after its first run is on disk, as in a longer life.
    """
    answered = Counter[str]()
    stop = threading.Event()
    output = folder / "output"

    def ask() -> bool:
        good = is_answered(folder / "s", path)
        answered["runs"] += good
        return good

    def ask_again_and_again() -> None:
        while not stop.is_set() and ask():
            pass

    with started(folder, "-m", *command) as playing:
        wait_until(ask, "it answers", output, playing)
        if opened:
            wait_until(lambda: has_runs(folder / STORE), "a run is stored", output, playing)
        for _ in range(REQUESTS):
            ask()
        clients = [threading.Thread(target=ask_again_and_again) for _ in range(8 * load)]
        for one in clients:
            one.start()
        if load:
            wait_until(lambda: answered["runs"] >= 60, "many are answered", output, playing)
        playing.send_signal(number)
        ended(playing, output, *expected)
        stop.set()
        for one in clients:
            one.join()


UVICORN = (
    "uvicorn", "--factory", "--uds", "s", "--log-level", "warning",
    "--timeout-worker-healthcheck", "600",  # s; by default it kills those that wait for a core
)  # fmt: skip
GUNICORN = ("gunicorn", "--bind", "unix:s", "--log-level", "error", "-w", "2")
ASGI, WSGI = "tests.faults.ending_services:asgi", "tests.faults.ending_services:wsgi"
LIFESPAN = f"{ASGI}_with_lifespan"
LOADS = {"idle": False, "mid-load": True}


def enter_uvicorn() -> None:
    serve = partial(partial, served, expected=(0, -signal.SIGTERM))
    needed = ("uvicorn", "starlette")
    for (when, load), workers in product(LOADS.items(), ((), ("--workers", "4"))):
        name = f"uvicorn{', 4 workers' if workers else ''}"
        words = (*UVICORN, *workers)
        plain = with_words(serve(load=load, opened=True), *words, ASGI)
        enter(f"{name}, {when}", plain, *needed, abrupt=True)
        if not load:
            at_once = with_words(serve(), *words, ASGI)
            enter(f"{name}, {when}, at once", at_once, *needed, abrupt=True)
        lifespan = with_words(serve(load=load), *words, LIFESPAN)
        enter(f"{name}, lifespan, {when}", lifespan, *needed)
    in_threads = with_words(serve(load=True, path="/thread"), *UVICORN, LIFESPAN)
    enter("uvicorn, lifespan, runs in threads, mid-load", in_threads, *needed)


def enter_gunicorn() -> None:
    workers = {
        "sync": (WSGI,),
        "gthread": ("-k", "gthread", "--threads", "4", WSGI),
        "sync, preload": ("--preload", WSGI),
    }
    for name, words in workers.items():
        for (when, load), number in product(LOADS.items(), (signal.SIGTERM, signal.SIGQUIT)):
            end = with_words(partial(served, load=load, number=number), *GUNICORN, *words)
            enter(f"gunicorn {name}, {number.name[3:]}, {when}", end, "gunicorn")
        few = with_words(served, *GUNICORN, "--max-requests", "3", *words)
        enter(f"gunicorn {name}, max_requests", few, "gunicorn")
    kinds = {"uvicorn.workers.UvicornWorker": ("uvicorn",), "asgi": ()}
    for (kind, needed), app, (when, load) in product(
        kinds.items(), (ASGI, LIFESPAN), LOADS.items()
    ):
        lifespan = ", lifespan" if app == LIFESPAN else ""
        end = with_words(
            partial(served, load=load, opened=not lifespan), *GUNICORN, "-k", kind, f"{app}()"
        )
        enter(
            f"gunicorn {kind.rpartition('.')[2]}{lifespan}, TERM, {when}",
            end, "gunicorn", "starlette", *needed,
            abrupt=bool(needed) and not lifespan,  # it ends as uvicorn does
        )  # fmt: skip


def with_words(serve: Callable[..., None], *words: str) -> End:
    return lambda folder: serve(folder, *words)


# ---------------------------------------------------------------- workers of other packages


def celery(folder: Path, *options: str, tasks: int = 8, enough: int = 8) -> None:
    """Have a worker do tasks; end it after some of them."""
    from tests.faults.ending_services import celery as celery_app

    for name in ("queue", "control"):
        (folder / name).mkdir()
    app = celery_app()
    options_of_broker = app.conf.broker_transport_options
    for name, value in options_of_broker.items():
        if isinstance(value, str):
            options_of_broker[name] = str(folder / value)
    words = (
        "celery", "-A", "tests.faults.ending_celery:app", "worker", "--pool", "prefork", "-c", "2",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error", *options,
    )  # fmt: skip
    finished, output = folder / FINISHED, folder / "output"
    with started(folder, "-m", *words) as playing:
        for _ in range(tasks):
            app.send_task("play")
        wait_until(lambda: len(lines_in(finished)) >= enough, "tasks are done", output, playing)
        playing.send_signal(signal.SIGTERM)
        ended(playing, output, 0)


def xdist(folder: Path) -> None:
    """Play in the workers of pytest-xdist."""
    (folder / "test_plays.py").write_text(
        "import pytest\nfrom tests.faults.ending_programs import play\n\n\n"
        "@pytest.mark.parametrize('number', range(6))\ndef test(number): play()\n"
    )
    words = ("pytest", "-q", "-p", "xdist", "-n", "2", "--rootdir", ".", "test_plays.py")
    with started(folder, "-m", *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1") as playing:
        ended(playing, folder / "output", 0)


def enter_workers() -> None:
    enter("Celery prefork, TERM", celery, "celery")
    enter("Celery prefork, TERM, mid-load", partial(celery, tasks=200, enough=20), "celery")
    few = with_words(celery, "--max-tasks-per-child", "2")
    enter("Celery prefork, max_tasks_per_child", few, "celery")
    enter("pytest-xdist", xdist, "xdist")


enter_programs()
enter_uvicorn()
enter_gunicorn()
enter_workers()


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


def play_once(name: str) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return play_end(name, Path(folder))
        except UnexpectedEndError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return Counter(failed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what each way of ending loses.")
    parser.add_argument("--times", type=int, default=50, help="processes per way")
    parser.add_argument("--at-once", type=int, default=1, help="so many play side by side")
    parser.add_argument("--only", default="", help="part of a way's name")
    parser.add_argument("--embedder", action="store_true", help="with the embedding model")
    options = parser.parse_args()
    if options.embedder:
        os.environ["ENDINGS_EMBEDDER"] = "1"
    print("| way of ending | times | finished | lost | doubled | failed | s |")
    print(f"| --- |{' ---: |' * 6}", flush=True)
    clean = True
    for name in (one for one in ENDS if options.only in one):
        began = time.perf_counter()
        with ThreadPoolExecutor(options.at_once) as pool:
            total = sum(pool.map(play_once, [name] * options.times), Counter[str]())
        clean = clean and not (total["doubled"] or total["failed"])
        clean = clean and (name in ABRUPT or not total["lost"])
        counts = [total[what] for what in ("finished", "lost", "doubled", "failed")]
        cells = [name, options.times, *counts, f"{time.perf_counter() - began:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    sys.exit(not clean)


if __name__ == "__main__":
    main()
