"""What a fleet of workers on one PostgreSQL keeps, while whatever can fail fails.

    python -m tests.benchmarks.fleet [--runs 20000] [--workers 8] [--standby-s 60]
    python -m tests.benchmarks.fleet --calm [--runs 5000] [--workers 2]

Each worker plays its share of the runs, ten a second; each task is played four times, by four
workers at about the same time. Meanwhile workers are killed and started again, all connections are
cut, the server is stopped at once and started again, and for a minute the workers reach a standby
that takes no writes. Between them and the server there is pgbouncer in transaction mode, if the
machine has one; without it there is no standby.

In the end each run must be stored once, and one run of each task must be kept. Before anything
fails, it is measured how long it takes until a run that one process recorded is found similar in
another one. Exit status 1 if anything is wrong.

With `--calm` nothing fails, and the workers play as fast as they can: the table has what a run
takes of the server, from which the guide computes what a fleet needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import psutil
import sqlalchemy as sa
from langchain_core.runnables import RunnableLambda

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer, TraceStore
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.scoring import process_scorer
from tests.agents import search
from tests.benchmarks.harness import ROOT, environment, machine, parser, table

_WAYS = 4  # how many workers play a task
_KEEP_ALL = DomainPolicy(threshold=0.0)
_RUN = RunnableLambda(lambda question: search.invoke({"q": question}))
_BEFORE_FAILURES, _AFTER_FAILURES = 0.1, 0.9  # shares of the runs
_PROBES = 300
_MORE_WAIT = 900  # of 1,000 at most


class SeededVectors:
    """Vectors of texts: equal for equal ones, and else not similar."""

    identity = EmbedderIdentity("seeded", "1", 0.0)

    def embed(self, texts: Sequence[str]) -> Any:
        """Return vectors, shape (len(texts), 384)."""
        seeds = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
        draws = [np.random.default_rng(int.from_bytes(seed)) for seed in seeds]
        return np.array([draw.standard_normal(384) for draw in draws], np.float32)


def _use_seeded_vectors() -> None:
    process_scorer._default_scorer = Scorer(embedder=SeededVectors())


# ------------------------------------------------------------------ a worker


def run_id_of(number: int) -> UUID:
    """Return the id of a run."""
    return uuid5(NAMESPACE_URL, str(number))


def work(url: str, name: str, runs: int, workers: int, rate: float, began_at: float) -> None:
    """Play the runs of one worker that are not stored yet, in the pace of all; write down figures.

    The file `begun.NAME` has the numbers of the runs that were begun, `figures.NAME` what a call
    took and what the handler counted.
    """
    _use_seeded_vectors()
    begun = Path(f"begun.{name}")
    known = set(begun.read_text().split()) if begun.exists() else set()
    calls_ms: list[float] = []
    most_waiting = 0
    with TraceStore(url) as store, begun.open("a") as notes:
        watching = KPCallbackHandler("fleet", store=store, policy=_KEEP_ALL)
        for at, number in enumerate(range(int(name), runs, workers)):
            if str(number) in known and _is_stored(store, number):
                continue
            time.sleep(max(0.0, began_at + at / rate - time.time()))
            print(number, file=notes, flush=True)
            began_s = time.perf_counter()
            config: Any = {"callbacks": [watching], "run_id": run_id_of(number)}
            _RUN.invoke(f"task {number // _WAYS}", config)
            calls_ms.append((time.perf_counter() - began_s) * 1e3)
            counts = watching.stats()
            most_waiting = max(most_waiting, counts["waiting_to_store"])
            while watching.stats()["waiting_to_store"] > _MORE_WAIT:
                time.sleep(0.1)
        while not watching.flush(600):
            time.sleep(0.5)
        counts = {one: count for one, count in watching.stats().items() if count}
    figures = {"calls_ms": calls_ms, "counts": counts, "most_waiting": most_waiting}
    Path(f"figures.{name}").write_text(json.dumps(figures))


def _is_stored(store: TraceStore, number: int) -> bool:
    while True:
        try:
            return store.journal.has_run(run_id_of(number))
        except Exception:
            time.sleep(0.5)


# ------------------------------------------------------------------ what fails


class Fleet:
    """Workers in processes of their own.

    Args:
        url: Their store.
        folder: Where they write.
        options: `runs` and `workers`.
    """

    def __init__(self, url: str, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._words = [
            str(one) for one in (options.runs, options.workers, options.rate, time.time())
        ]
        self._url = url
        self._lock = threading.Lock()
        self._processes = {str(at): self._start(str(at)) for at in range(options.workers)}
        self.kills = 0

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"output.{name}").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.fleet", "--work", self._url, name,
                 *self._words],
                cwd=self._folder, env=environment(self._folder), stdout=output, stderr=output,
            )  # fmt: skip

    def kill_one(self) -> None:
        """Kill a worker that is playing, and start it again."""
        with self._lock:
            playing = [name for name, one in self._processes.items() if one.poll() is None]
            if playing:
                name = random.choice(playing)
                self._processes[name].send_signal(signal.SIGKILL)
                self._processes[name].wait()
                self._processes[name] = self._start(name)
                self.kills += 1

    def begun(self) -> int:
        """Return how many runs were begun."""
        files = self._folder.glob("begun.*")
        return len({line for file in files for line in file.read_text().split()})

    def wait(self) -> list[int]:
        """Wait for the end of all; return their exit statuses."""
        return [one.wait() for one in self._processes.values()]

    def close(self) -> None:
        """End what is left."""
        for one in self._processes.values():
            one.kill()
            one.wait()

    def figures(self) -> list[dict[str, Any]]:
        """Return what the last life of each worker wrote down."""
        return [json.loads(file.read_text()) for file in sorted(self._folder.glob("figures.*"))]


def cut_connections(url: str) -> None:
    """End all sessions of a database but one's own."""
    with _connected(url) as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


def _connected(url: str) -> Any:
    engine = sa.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )
    return engine.begin()


# ------------------------------------------------------------------ what is measured


def seconds_until_seen(url: str, count: int) -> list[float]:
    """Return how long after its end a run of one process is found similar in another one.

    The two share nothing but the database.
    """
    _use_seeded_vectors()
    waits = []
    with TraceStore(url) as one, TraceStore(url) as other:
        memory = other.novelty_memory()
        comparing = Scorer(embedder=SeededVectors(), cache=memory)
        watching = KPCallbackHandler("probe", store=one, policy=_KEEP_ALL)
        for number in range(count):
            _RUN.invoke(f"probe {number}", {"callbacks": [watching]})
            ended = time.perf_counter()
            scored = watching.last(60)
            assert scored is not None
            while comparing.score(scored.trace).novelty.value > 0.5:
                time.sleep(0.002)
            waits.append(time.perf_counter() - ended)
            time.sleep(random.uniform(0.0, 0.05))
    return waits


def account(url: str) -> dict[str, int]:
    """Return what the store has of the fleet's runs."""
    questions = {
        "runs": "SELECT count(*) FROM runs WHERE domain = 'fleet'",
        "different": "SELECT count(DISTINCT run_id) FROM runs WHERE domain = 'fleet'",
        "not judged": "SELECT count(*) FROM runs WHERE state <> 'judged'",
        "kept": "SELECT count(*) FROM runs WHERE domain = 'fleet' AND decision = 'kept'",
        "tasks kept": "SELECT count(DISTINCT objective) FROM runs "
        "WHERE domain = 'fleet' AND decision = 'kept'",
    }
    with _connected(url) as connection:
        return {name: connection.scalar(sa.text(one)) for name, one in questions.items()}


def play(options: argparse.Namespace, stack: ExitStack) -> bool:
    """Play everything, and print the tables; return whether all is right."""
    from tests.postgres import Pooler, running_server, running_standby, start, stop_at_once

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kp-fleet-")))
    server = stack.enter_context(running_server(folder / "lock", "max_connections = 200"))
    url = server.get_uri()
    TraceStore(url).count()  # which makes the tables
    program = shutil.which("pgbouncer")
    pooler = None
    if program is not None:
        beside = Path(tempfile.mkdtemp(prefix="kp-pooler-"))
        stack.callback(shutil.rmtree, beside)
        pooler = Pooler(program, beside, server, options.sessions)
        stack.callback(pooler.close)
    fleet_url = url if pooler is None else pooler.url()
    done_s: list[tuple[str, float]] = []

    def until(share: float) -> None:
        while fleet.begun() < share * options.runs and not all_ended():
            time.sleep(0.2)

    def all_ended() -> bool:
        return all(one.poll() is not None for one in fleet._processes.values())

    def restart() -> None:
        stop_at_once(server)
        time.sleep(3)
        start(server)

    def fail_over() -> None:
        if pooler is None:
            return
        with running_standby(server) as standby:
            pooler.switch(standby)
            cut_connections(url)
            time.sleep(options.standby_s)
            pooler.switch(server)

    began = time.perf_counter()
    fleet = Fleet(fleet_url, folder, options)
    stack.callback(fleet.close)
    until(_BEFORE_FAILURES)
    waits = seconds_until_seen(fleet_url, _PROBES)
    failures: list[tuple[str, Callable[[], None]]] = [
        *[("kill", fleet.kill_one)] * 12,
        *[("cut", lambda: cut_connections(url))] * 4,
        *[("restart", restart)] * 2,
        ("standby", fail_over),
    ]
    random.shuffle(failures)
    step = (_AFTER_FAILURES - fleet.begun() / options.runs) / len(failures)
    for name, fail in failures:
        until(fleet.begun() / options.runs + step)
        at = time.perf_counter()
        fail()
        done_s.append((name, time.perf_counter() - at))
    statuses = fleet.wait()
    took_s = time.perf_counter() - began
    _settle(url)
    found = account(url)
    tasks = -(-options.runs // _WAYS)
    is_right = statuses == [0] * options.workers and found == {
        "runs": options.runs, "different": options.runs, "not judged": 0,
        "kept": tasks, "tasks kept": tasks,
    }  # fmt: skip
    between = "pgbouncer between" if pooler is not None else "no pooler"
    _print(options, fleet, found, waits, took_s, between, [name for name, _ in done_s])
    return is_right


def measure(options: argparse.Namespace, stack: ExitStack) -> bool:
    """Play with nothing in the way, and print what a run takes of the server."""
    from tests.postgres import running_server

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kp-fleet-")))
    server = stack.enter_context(running_server(folder / "lock", "max_connections = 200"))
    url = server.get_uri()
    TraceStore(url).count()
    before, cpu_before = _server_figures(url), _cpu_s(server)
    began = time.perf_counter()
    fleet = Fleet(url, folder, options)
    stack.callback(fleet.close)
    statuses = fleet.wait()
    took_s = time.perf_counter() - began
    time.sleep(2)  # until the server has counted all
    after, cpu_s = _server_figures(url), _cpu_s(server) - cpu_before
    rows: list[tuple[str, object]] = [
        ("runs a second", f"{options.runs / took_s:,.0f}"),
        *(
            (f"{name} of a run", f"{(after[name] - before.get(name, 0)) / options.runs:,.1f}")
            for name in after
        ),
        ("CPU of the server, ms of a run", f"{1e3 * cpu_s / options.runs:.2f}"),
    ]
    print(machine(), end="\n\n")
    print(table(f"{options.workers} workers on one PostgreSQL, nothing fails", ("", ""), rows))
    return statuses == [0] * options.workers


def _server_figures(url: str) -> dict[str, int]:
    questions = {
        "transactions": "SELECT xact_commit FROM pg_stat_database "
        "WHERE datname = current_database()",
        "bytes of the log": "SELECT (pg_current_wal_lsn() - '0/0')::bigint",
        "bytes of tables and indexes": "SELECT sum(pg_total_relation_size(oid))::bigint "
        "FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
    }
    with _connected(url) as connection:
        figures = {name: connection.scalar(sa.text(one)) for name, one in questions.items()}
        sizes = sa.text(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 2 DESC LIMIT 5"
        )
        return figures | {f"bytes of {name}": size for name, size in connection.execute(sizes)}


def _cpu_s(server: Any) -> float:
    """Return the seconds of CPU that a server and its processes have taken so far."""
    process = psutil.Process(server.get_pid())
    times = process.cpu_times()  # with those of the processes that have ended
    seconds = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        of_child = child.cpu_times()
        seconds += of_child.user + of_child.system
    return float(seconds)


def _settle(url: str) -> None:
    """Take over what killed workers left; their leases last 30 s."""
    _use_seeded_vectors()
    with TraceStore(url) as store:
        watching = KPCallbackHandler("settling", store=store, policy=_KEEP_ALL)
        while store.journal.waiting():
            _RUN.invoke("settle", {"callbacks": [watching]})
            watching.flush(60)
            time.sleep(1)


def _print(
    options: argparse.Namespace, fleet: Fleet, found: dict[str, int], waits: Sequence[float],
    took_s: float, between: str, failures: Sequence[str],
) -> None:  # fmt: skip
    figures = fleet.figures()
    calls = sorted(ms for one in figures for ms in one["calls_ms"])
    lost = {
        name: sum(one["counts"].get(name, 0) for one in figures)
        for name in ("dropped", "not_stored", "failed")
    }
    most = max(one["most_waiting"] for one in figures)
    happened = ", ".join(f"{failures.count(name)} {name}" for name in sorted(set(failures)))
    rows: list[tuple[str, object]] = [
        ("runs played", f"{options.runs:,} in {took_s:,.0f} s"),
        ("what failed", happened),
        *found.items(),
        *lost.items(),
        ("most that waited for the store in a worker", most),
        ("a call, ms: p50, p99, longest", _spread(calls, 1.0)),
        ("seen by another process after, ms: p50, p99, longest", _spread(sorted(waits), 1e3)),
    ]
    print(machine(), end="\n\n")
    print(table(f"{options.workers} workers on one PostgreSQL, {between}", ("", ""), rows))


def _spread(values: Sequence[float], factor: float) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return ", ".join(f"{factor * one:,.1f}" for one in (cuts[49], cuts[98], values[-1]))


def main() -> None:
    """Read the command line, and play."""
    reading = parser("tests.benchmarks.fleet", __doc__)
    reading.add_argument("--calm", action="store_true", help="nothing fails")
    reading.add_argument("--runs", type=int)
    reading.add_argument("--workers", type=int)
    reading.add_argument("--rate", type=float, help="runs a second of a worker")
    reading.add_argument("--sessions", type=int, default=4, help="of pgbouncer at the server")
    reading.add_argument("--standby-s", type=float, default=60.0)
    reading.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    options = reading.parse_args()
    if options.work:
        url, name, runs, workers, rate, began_at = options.work
        work(url, name, int(runs), int(workers), float(rate), float(began_at))
        return
    defaults = (5_000, 2, 1e6) if options.calm else (20_000, 8, 10.0)
    for name, default in zip(("runs", "workers", "rate"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, default)
    os.chdir(ROOT)
    with ExitStack() as stack:
        sys.exit(not (measure if options.calm else play)(options, stack))


if __name__ == "__main__":
    main()
