"""Every way in which a process ends: `python -m tests.faults.endings` prints the table.

A real program plays agent runs, notes each whose `invoke` returned, and ends. Then the next
process uses the store, which also scores what was left unscored; what was noted and is not stored
then was lost.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.agents import ASK, handler, searching
from tests.faults.ending_programs import FINISHED, IN_A_TOOL, PROGRAMS, STORE

ROOT = Path(__file__).resolve().parents[2]
ENOUGH_S = 600.0
REQUESTS = 5
# The settings that the programs take over.
LIMITS = ("KP_EXIT_TIMEOUT_S", "KP_FUNCTION_TIMEOUT_S")

End = Callable[[Path], str]
ENDS: dict[str, End] = {}
# Python is given no chance there, or the program asked for none: what is lost is the time between
# a run's end and the disk.
ABRUPT = {
    "os.fork, child ends by os._exit", "SIGTERM", "kill -9",
    *(name for name in PROGRAMS if name.startswith(("with Pool()", "os._exit"))),
}  # fmt: skip


@dataclass
class Account:
    """What came of one or more processes that ended in the same way.

    Args:
        finished: Runs whose `invoke` returned.
        stored: Of these, runs in the store after the next process used it.
        lost: The others.
        doubled: Runs with more than one trace.
        note: What else there is to say.
    """

    finished: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    note: str = ""

    def add(self, other: Account) -> None:
        self.finished += other.finished
        self.stored += other.stored
        self.lost += other.lost
        self.doubled += other.doubled
        self.note = self.note or other.note


class UnexpectedEndError(Exception):
    """A program did not end as it was to."""


def end(name: str, *needed: str) -> Callable[[End], End]:
    """Enter a way of ending, unless a package that it needs is not installed."""

    def enter(function: End) -> End:
        if all(importlib.util.find_spec(package) for package in needed):
            ENDS[name] = function
        return function

    return enter


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process in `folder`, with what it prints in the file `output`; not left behind."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KP_") or name in LIMITS
    } | {
        "PYTHONPATH": str(ROOT),
        "PYTHONFAULTHANDLER": "1",
        "XDG_DATA_HOME": str(folder / "data"),
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=output, stderr=output,
            start_new_session=True,
            # What runs in the background of a script ignores SIGINT, and hands that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def program(folder: Path, name: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(folder, sys.executable, "-m", "tests.faults.ending_programs", name)


def finished_in(folder: Path) -> list[str]:
    """The runs that finished; a line that is being written is not yet one."""
    path = folder / FINISHED
    return (
        [line for line in path.read_text().splitlines() if len(line) == 36] if path.exists() else []
    )


def wait_until(
    done: Callable[[], bool], process: subprocess.Popen[str], folder: Path, what: str
) -> None:
    until = time.monotonic() + ENOUGH_S
    while not done():
        if process.poll() is not None or time.monotonic() > until:
            raise UnexpectedEndError(
                f"waiting until {what}; exit status {process.poll()}\n"
                + (folder / "output").read_text()[-3000:]
            )
        time.sleep(0.002)


def ended(process: subprocess.Popen[str], folder: Path, *expected: int) -> None:
    try:
        status = process.wait(ENOUGH_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # which has each process print its stacks
        process.wait(ENOUGH_S)
        stacks = (folder / "output").read_text()[-20_000:]
        raise UnexpectedEndError(f"it does not end\n{stacks}") from None
    if status not in expected:
        raise UnexpectedEndError(
            f"exit status {status}, not {expected}\n{(folder / 'output').read_text()[-3000:]}"
        )


# ---------------------------------------------------------------- programs that end by themselves

STATUS = {"exception": 1, "sys.exit": 3}
KILLED = ("Ctrl-C in a tool", "until killed", "SIGTERM, handler calls sys.exit")


def by_itself(name: str) -> End:
    def play(folder: Path) -> str:
        with program(folder, name) as process:
            ended(process, folder, STATUS.get(name, 0))
        return ""

    return play


for _name in PROGRAMS:
    if _name not in KILLED:
        ENDS[_name] = by_itself(_name)
if not importlib.util.find_spec("joblib"):
    del ENDS["joblib (loky)"]


# ---------------------------------------------------------------- signals


@end("Ctrl-C in a tool")
def interrupted(folder: Path) -> str:
    with program(folder, "Ctrl-C in a tool") as process:
        wait_until((folder / IN_A_TOOL).exists, process, folder, "the tool waits")
        process.send_signal(signal.SIGINT)
        (folder / IN_A_TOOL).unlink()
        ended(process, folder, 1, -signal.SIGINT)
    return ""


def killed_at_random(folder: Path, name: str, number: int, *expected: int) -> str:
    with program(folder, name) as process:
        wait_until(lambda: durable_in(folder / STORE) > 0, process, folder, "it plays")
        time.sleep(random.uniform(0.0, 0.5))
        process.send_signal(number)
        ended(process, folder, *expected)
    return "at a random moment of an endless loop of runs"


@end("SIGTERM")
def terminated(folder: Path) -> str:
    return killed_at_random(folder, "until killed", signal.SIGTERM, -signal.SIGTERM)


@end("kill -9")
def killed(folder: Path) -> str:
    return killed_at_random(folder, "until killed", signal.SIGKILL, -signal.SIGKILL)


@end("SIGTERM, handler calls sys.exit")
def exits_on_sigterm(folder: Path) -> str:
    killed_at_random(folder, "SIGTERM, handler calls sys.exit", signal.SIGTERM, 0)
    return ""


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


def served(
    folder: Path,
    command: list[str],
    *,
    signals: tuple[int, ...] = (signal.SIGTERM,),
    expected: tuple[int, ...] = (0,),
    load: bool = False,
    opened: bool = False,
    path: str = "/",
) -> str:
    """Ask a service that listens on the socket `s`, then end it; idle, or while it is asked.

    With `opened`, it is asked once more after its first run is on disk, as in a longer life.
    """
    address = folder / "s"
    answered = Counter[str]()

    def ask() -> bool:
        good = is_answered(address, path)
        answered["runs"] += good
        return good

    def ask_again_and_again(stop: threading.Event) -> None:
        while not stop.is_set() and ask():
            pass

    with started(folder, sys.executable, "-m", *command) as process:
        wait_until(ask, process, folder, "it answers")
        if opened:
            written = functools.partial(durable_in, folder / STORE)
            wait_until(lambda: written() > 0, process, folder, "a run is on disk")
        for _ in range(REQUESTS):
            ask()
        stop = threading.Event()
        clients = [threading.Thread(target=ask_again_and_again, args=(stop,)) for _ in range(8)]
        for one in clients if load else ():
            one.start()
        if load:
            wait_until(lambda: answered["runs"] >= 60, process, folder, "many are answered")
        for number in signals:
            process.send_signal(number)
        ended(process, folder, *expected)
        stop.set()
        for one in clients if load else ():
            one.join()
    return f"in mid-load, {len(clients)} clients" if load else ""


UVICORN = [
    "uvicorn", "--factory", "--uds", "s", "--log-level", "warning",
    "--timeout-worker-healthcheck", "600",  # s; by default it kills those that wait for a core
]  # fmt: skip
APP = "tests.faults.ending_services:asgi"
BY_SIGTERM = (0, -signal.SIGTERM)


def enter_uvicorn() -> None:
    for load in (False, True):
        when = "mid-load" if load else "idle"
        for workers in ([], ["--workers", "4"]):
            name = f"uvicorn{', 4 workers' if workers else ''}"

            def end_it(
                folder: Path,
                *,
                app: str = APP,
                load: bool = load,
                workers: list[str] = workers,
                opened: bool = True,
            ) -> str:
                return served(
                    folder,
                    [*UVICORN, app, *workers],
                    load=load,
                    opened=opened,
                    expected=BY_SIGTERM,
                )

            plain = f"{name}, {when}"
            ABRUPT.update({plain, f"{plain}, at once"})
            end(plain, *SERVICE)(end_it)
            if not load:
                end(f"{plain}, at once", *SERVICE)(functools.partial(end_it, opened=False))
            end(f"{name}, lifespan, {when}", *SERVICE)(
                functools.partial(end_it, app=f"{APP}_with_lifespan", opened=False)
            )


SERVICE = ("uvicorn", "starlette")
enter_uvicorn()


@end("uvicorn, lifespan, runs in threads, mid-load", *SERVICE)
def uvicorn_threads(folder: Path) -> str:
    app = f"{APP}_with_lifespan"
    return served(folder, [*UVICORN, app], load=True, expected=BY_SIGTERM, path="/thread")


GUNICORN = ["gunicorn", "--bind", "unix:s", "--log-level", "error", "-w", "2"]
WSGI = "tests.faults.ending_services:wsgi"


def enter_gunicorn() -> None:
    workers = {
        "sync": [WSGI],
        "gthread": ["-k", "gthread", "--threads", "4", WSGI],
        "sync, preload": ["--preload", WSGI],
    }
    for name, more in workers.items():
        for load in (False, True):
            for number in (signal.SIGTERM, signal.SIGQUIT):
                when = f"{number.name[3:]}{', mid-load' if load else ', idle'}"
                end(f"gunicorn {name}, {when}", "gunicorn")(
                    lambda folder, more=more, load=load, number=number: served(
                        folder, [*GUNICORN, *more], load=load, signals=(number,)
                    )
                )
        end(f"gunicorn {name}, max_requests", "gunicorn")(
            lambda folder, more=more: served(folder, [*GUNICORN, "--max-requests", "3", *more])
        )
    for kind, needed in {"uvicorn.workers.UvicornWorker": "uvicorn", "asgi": "gunicorn"}.items():
        for app, lifespan in {APP: "", f"{APP}_with_lifespan": ", lifespan"}.items():
            for load in (False, True):
                when = "mid-load" if load else "idle"
                name = f"gunicorn {kind.rpartition('.')[2]}{lifespan}, TERM, {when}"
                if needed == "uvicorn" and not lifespan:
                    ABRUPT.add(name)  # it ends as uvicorn does
                end(name, "gunicorn", "starlette", needed)(
                    lambda folder, app=app, kind=kind, load=load: served(
                        folder,
                        [*GUNICORN, "-k", kind, f"{app}()"],
                        load=load,
                        opened=not app.endswith("lifespan"),
                    )
                )


enter_gunicorn()


# ---------------------------------------------------------------- workers of other packages


def celery(folder: Path, *options: str, tasks: int = 8, then: Callable[[int], bool]) -> str:
    from tests.faults.ending_services import celery as celery_app

    for name in ("queue", "control"):
        (folder / name).mkdir()
    app = celery_app()
    options_of_broker = app.conf.broker_transport_options
    for name, value in options_of_broker.items():
        if isinstance(value, str):
            options_of_broker[name] = str(folder / value)
    command = [
        "celery", "-A", "tests.faults.ending_celery:app", "worker", "--pool", "prefork", "-c", "2",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "error", *options,
    ]  # fmt: skip
    with started(folder, sys.executable, "-m", *command) as process:
        for _ in range(tasks):
            app.send_task("play")
        wait_until(lambda: then(len(finished_in(folder))), process, folder, "tasks are done")
        process.send_signal(signal.SIGTERM)
        ended(process, folder, 0)
    return ""


@end("Celery prefork, TERM", "celery")
def celery_term(folder: Path) -> str:
    return celery(folder, then=lambda finished: finished == 8)


@end("Celery prefork, TERM, mid-load", "celery")
def celery_loaded(folder: Path) -> str:
    return celery(folder, tasks=200, then=lambda finished: finished >= 20)


@end("Celery prefork, max_tasks_per_child", "celery")
def celery_max_tasks(folder: Path) -> str:
    return celery(folder, "--max-tasks-per-child", "2", then=lambda finished: finished == 8)


@end("pytest-xdist", "xdist")
def xdist(folder: Path) -> str:
    test = "from tests.faults.ending_programs import play\ndef test(number): play()\n"
    cases = "import pytest\n" + test.replace(
        "def", "@pytest.mark.parametrize('number', range(6))\ndef"
    )
    (folder / "test_plays.py").write_text(cases)
    with started(
        folder, sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
        "--rootdir", ".", "test_plays.py",
    ) as process:  # fmt: skip
        ended(process, folder, 0)
    return ""


# ---------------------------------------------------------------- the account


def count_in(path: Path, *tables: str) -> int:
    """Rows of these tables together; 0 as long as the store is not made."""
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in tables
            if table in known
        ]
        return sum(counts)


def durable_in(path: Path) -> int:
    """Runs on disk, scored or not."""
    return count_in(path, "runs", "unscored")


def stored_in(folder: Path) -> Counter[str]:
    """Let the next process use the store; return how many traces each run has."""
    path = folder / STORE
    if not path.exists():
        return Counter()
    with handler("next", store=path) as watching:
        searching().invoke(ASK, {"callbacks": [watching]})
        until = time.monotonic() + ENOUGH_S
        while not watching.flush(ENOUGH_S) or (
            count_in(path, "unscored") and time.monotonic() < until
        ):
            time.sleep(0.01)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT run_id FROM runs WHERE domain != 'next'").fetchall()
    return Counter(run_id for (run_id,) in rows)


def play_end(name: str, folder: Path) -> Account:
    """Have one program end so, and draw up the account."""
    note = ENDS[name](folder)
    finished = set(finished_in(folder))
    stored = stored_in(folder)
    return Account(
        finished=len(finished),
        stored=len(finished & stored.keys()),
        lost=len(finished - stored.keys()),
        doubled=sum(count > 1 for count in stored.values()),
        note=note,
    )


def play_once(name: str) -> Account:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return play_end(name, Path(folder))
        except UnexpectedEndError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return Account(note="did not end as it was to")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what each way of ending loses.")
    parser.add_argument("--times", type=int, default=50, help="processes per way")
    parser.add_argument("--at-once", type=int, default=1, help="so many play side by side")
    parser.add_argument("--only", default="", help="part of a way's name")
    parser.add_argument("--embedder", action="store_true", help="with the embedding model")
    options = parser.parse_args()
    if options.embedder:
        os.environ["ENDINGS_EMBEDDER"] = "1"
    print("| way of ending | times | finished | stored | lost | doubled | s | note |")
    print(f"| --- |{' ---: |' * 6} --- |", flush=True)
    clean = True
    for name in (one for one in ENDS if options.only in one):
        total = Account()
        began = time.perf_counter()
        with ThreadPoolExecutor(options.at_once) as pool:
            for account in pool.map(play_once, [name] * options.times):
                total.add(account)
        clean = clean and not total.doubled and (name in ABRUPT or not total.lost)
        cells = [
            name, options.times, total.finished, total.stored, total.lost, total.doubled,
            f"{time.perf_counter() - began:.0f}", total.note,
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    sys.exit(not clean)


if __name__ == "__main__":
    main()
