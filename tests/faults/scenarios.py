"""The faults, each as a scenario: `python -m tests.faults.scenarios` prints the table.

After each, the registry must hold what passed the gate, once each; the agents' results must be what
they are without the handler; and the counters must add up to the number of runs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kp_langchain import Registry, TraceStore
from kp_langchain.recording import worker
from tests.faults.ground import KEY, Account, Players, at_random, shortened_clock
from tests.loopback_registry import LoopbackRegistry, Misbehave
from tests.loopback_tools import unheard_port

SCENARIOS: dict[str, Callable[[int, Path], Account]] = {}
TIMEOUT_S = 0.5
ENOUGH_S = 300.0

Scenario = Callable[[int, Path], Account]


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def enter(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        return function

    return enter


def registry_at(server: LoopbackRegistry) -> Registry:
    return Registry(server.url, api_key=KEY, timeout_s=TIMEOUT_S)


def misbehaving(name: str, misbehave: Callable[[], Misbehave], *, replays: bool = True) -> None:
    """Enter a scenario in which only the registry is at fault."""

    def play(runs: int, folder: Path) -> Account:
        with LoopbackRegistry(
            keys={KEY}, hour_s=0.5, misbehave=misbehave(), replays=replays
        ) as server:
            players = Players(TraceStore(folder / "traces.db"), registry_at(server))
            players.play(runs)
            sent = players.handler.send(ENOUGH_S)
            return players.account(server, note="" if sent else "not all was sent in time")

    scenario(name)(play)


def storm() -> Misbehave:
    """Nothing but 500 for the first while, then every third."""

    def misbehave(number: int, method: str, path: str) -> str | None:
        return "500" if number < 20 or number % 3 == 0 else None

    return misbehave


misbehaving("registry in order", lambda: lambda number, method, path: None)
misbehaving("500 storm", storm)
misbehaving("503 with Retry-After", lambda: at_random(1, 0.005, "503_retry_after"))
misbehaving("slow to answer", lambda: at_random(2, 0.02, "slow"))
misbehaving("reset before storing", lambda: at_random(3, 0.3, "reset_before"))
misbehaving("stored, then reset", lambda: at_random(4, 0.3, "reset_after"))
misbehaving(
    "stored, then reset, without replays", lambda: at_random(18, 0.3, "reset_after"), replays=False
)
misbehaving("half an answer", lambda: at_random(5, 0.3, "half", "bad_json"))
misbehaving("stored, then 500", lambda: at_random(6, 0.3, "stored_500"))
misbehaving("201 without an id", lambda: at_random(7, 0.3, "no_id", "stored_no_id"))
misbehaving("endless answers", lambda: at_random(8, 0.02, "huge", "drip", "drip_headers"))
misbehaving("not HTTP, elsewhere", lambda: at_random(9, 0.05, "garbage", "redirect_away", "404"))
misbehaving("429", lambda: at_random(10, 0.01, "429"))
misbehaving("429 with Retry-After", lambda: at_random(11, 0.002, "429_retry_after", "429_date"))
misbehaving(
    "all at once",
    lambda: at_random(12, 0.4, "500", "reset_before", "reset_after", "half", "no_id", "garbage"),
)


@scenario("key revoked after a while, then a new key")
def key_revoked(runs: int, folder: Path) -> Account:
    with LoopbackRegistry(keys={KEY}) as server:
        store = TraceStore(folder / "traces.db")
        players = Players(store, registry_at(server))
        players.play(runs // 2)
        players.handler.send(ENOUGH_S)
        assert server.keys is not None
        server.keys.clear()
        players.play(runs - runs // 2)
        players.handler.flush(ENOUGH_S)
        refused = sum(status == 429 for *_, status in server.requests)
        server.keys.add("kp_new")
        late = Players(store, Registry(server.url, api_key="kp_new", timeout_s=TIMEOUT_S))
        late.handler.send(ENOUGH_S)
        return players.account(server, note=f"{refused} requests with the revoked key")


@scenario("registry dead at first")
def dead_server(runs: int, folder: Path) -> Account:
    with unheard_port() as port:
        registry = Registry(f"http://127.0.0.1:{port}", api_key=KEY, timeout_s=TIMEOUT_S)
        players = Players(TraceStore(folder / "traces.db"), registry)
        players.play(runs)
        players.handler.send(0.1)
        with LoopbackRegistry(keys={KEY}, port=port) as server:
            players.handler.send(ENOUGH_S)
            return players.account(server)


@scenario("disk full for a while")
def disk_full(runs: int, folder: Path) -> Account:
    """The limit on the size of files stands in for the disk's."""
    with LoopbackRegistry(keys={KEY}) as server:
        players = Players(TraceStore(folder / "traces.db"), registry_at(server))
        players.play(runs // 3)
        players.handler.flush(ENOUGH_S)
        full = (folder / "traces.db-wal").stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
        try:
            players.play(runs // 3)
            players.handler.flush(ENOUGH_S)
            waited = players.handler.stats()["waiting_to_store"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        players.play(runs - 2 * (runs // 3))
        settle(players)
        return players.account(server, note=f"{waited} waited in memory")


@scenario("file locked for a while")
def locked_file(runs: int, folder: Path) -> Account:
    with LoopbackRegistry(keys={KEY}) as server:
        players = Players(TraceStore(folder / "traces.db"), registry_at(server))
        players.play(1)
        players.handler.flush(ENOUGH_S)
        holder = sqlite3.connect(folder / "traces.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        players.play(runs - 1)
        players.handler.flush(ENOUGH_S)
        waited = players.handler.stats()["waiting_to_store"]
        holder.execute("ROLLBACK")
        holder.close()
        settle(players)
        return players.account(server, note=f"{waited} waited in memory")


def broken_file(content: bytes | None, mode: int = 0o600) -> Scenario:
    """A file that is no database, until somebody takes it away."""

    def play(runs: int, folder: Path) -> Account:
        path = folder / "traces.db"
        with LoopbackRegistry(keys={KEY}) as server:
            if content is None:  # a real one, cut off in the middle
                with TraceStore(path) as store:
                    store.count()
                path.write_bytes(path.read_bytes()[:5000])
                for beside in ("-wal", "-shm"):
                    path.with_name(path.name + beside).unlink(missing_ok=True)
            else:
                path.write_bytes(content)
            players = Players(TraceStore(path), registry_at(server))
            players.play(runs)
            players.handler.flush(ENOUGH_S)
            waited = players.handler.stats()["waiting_to_store"]
            for one in folder.glob("traces.db*"):
                one.unlink()
            settle(players)
            return players.account(server, note=f"{waited} waited in memory")

    return play


scenario("file corrupted")(broken_file(random.Random(13).randbytes(40_000)))
scenario("file truncated")(broken_file(None))


@scenario("file cannot be opened for a while")
def read_only(runs: int, folder: Path) -> Account:
    """A folder takes the file's place: not even root can write to it."""
    path = folder / "traces.db"
    path.mkdir()
    with LoopbackRegistry(keys={KEY}) as server:
        players = Players(TraceStore(path), registry_at(server))
        players.play(runs)
        players.handler.flush(ENOUGH_S)
        waited = players.handler.stats()["waiting_to_store"]
        path.rmdir()
        settle(players)
        return players.account(server, note=f"{waited} waited in memory")


@scenario("the worker's jobs die")
def dying_jobs(runs: int, folder: Path) -> Account:
    with LoopbackRegistry(keys={KEY}) as server:
        players = Players(TraceStore(folder / "traces.db"), registry_at(server))
        for number in range(runs):
            if number % 5 == 0:
                worker.intake.submit(lambda: sys.exit("a job that ends its thread"))
            players.play(1)
        settle(players)
        return players.account(server)


@scenario("two processes on one file")
def two_processes(runs: int, folder: Path) -> Account:
    path = folder / "traces.db"
    with TraceStore(path) as store:
        store.count()
    with LoopbackRegistry(keys={KEY}, misbehave=at_random(14, 0.1, "reset_after")) as server:
        half = runs // 2
        children = [in_child(folder, server, half, name) for name in ("one", "two")]
        outcomes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return whole_account(path, server, 2 * half, sum(code != 0 for code in outcomes))


@scenario("fork after start")
def forks(runs: int, folder: Path) -> Account:
    """Children record with the handler that their parent had already used."""
    path = folder / "traces.db"
    with LoopbackRegistry(keys={KEY}) as server:
        players = Players(TraceStore(path), registry_at(server))
        share = max(1, runs // 10)
        failed = 0
        for _ in range(5):
            players.play(share)
            child = os.fork()
            if child == 0:
                players.errors = 0
                players.play(share)
                settle(players)
                os._exit(1 if players.errors else 0)
            failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        settle(players)
        return whole_account(path, server, 10 * share, failed + players.errors)


@scenario("exit with work queued")
def exits(runs: int, folder: Path) -> Account:
    """Short processes that just end; what each left is the next one's."""
    path = folder / "traces.db"
    with LoopbackRegistry(keys={KEY}, misbehave=at_random(15, 0.2, "slow")) as server:
        share = 20
        failed = 0
        for number in range(max(1, runs // share)):
            child = in_child(folder, server, share, f"exit {number}", wait=False)
            failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        return whole_account(path, server, share * max(1, runs // share), failed)


@scenario("kill -9 at random moments")
def kills(runs: int, folder: Path) -> Account:
    """As many kills as a tenth of the runs, each in the middle of an endless loop of them.

    A third comes a moment after a number of requests, and a third after a number of stored runs,
    so that there are some on a slow machine, too; the rest hits wherever the time finds a child.
    """
    path = folder / "traces.db"

    def stored() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])

    drawn = random.Random(16)
    moments = max(2, runs // 10)
    with TraceStore(path) as store:  # also loads what every child would spend its life loading
        store.count()
    with LoopbackRegistry(
        keys={KEY}, misbehave=at_random(17, 0.1, "reset_after", "stored_500")
    ) as server:
        for number in range(moments):
            count = (lambda: len(server.requests), stored, None)[number % 3]
            enough = drawn.randint(1, 12) + (count() if count else 0)
            child = in_child(folder, server, 10**9, f"kill {number}")
            try:
                while count and count() < enough:
                    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
                    time.sleep(0.001)
                time.sleep(drawn.uniform(0.0, 0.02) if count else drawn.uniform(0.02, 0.3))
            finally:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        account = whole_account(path, server, 0, 0)
        account.note = f"{moments} kills"
        return account


def in_child(
    folder: Path, server: LoopbackRegistry, runs: int, name: str, *, wait: bool = True
) -> int:
    """Play runs in a forked child that ends as a process does, exit hooks included."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        players = Players(TraceStore(folder / "traces.db"), registry_at(server))
        players.play(runs)
        if wait:
            settle(players)
        else:
            players.handler.flush(ENOUGH_S)  # what is left to send stays, what is to store does not
            worker.finish(0.3)
        code = 1 if players.errors else 0
    finally:
        os._exit(code)


def settle(players: Players) -> None:
    """Give the store a few chances, as a process that goes on would."""
    for _ in range(200):
        if players.handler.flush(ENOUGH_S):
            break
        time.sleep(0.02)
    players.handler.send(ENOUGH_S)


def whole_account(path: Path, server: LoopbackRegistry, runs: int, errors: int) -> Account:
    """The account of a store that several processes wrote: its outbox is what passed."""
    server.misbehave = lambda number, method, path: None
    with TraceStore(path) as store:
        players = Players(store, registry_at(server))
        players.handler.send(ENOUGH_S)
        passed = {run.trace_id for run in store.runs(decision="contributed", limit=None)}
        entered = {one.trace_id for one in store.outbox.entries(limit=None)}
        counts = store.outbox.counts()
        stored = store.count()
    arrived = set(server.units)
    return Account(
        runs=runs or stored,
        agent_errors=errors,
        passed=len(passed),
        arrived=len(arrived & passed),
        lost=len(passed - arrived) + len(passed ^ entered),
        doubled=len(server.doubled),
        strangers=len(arrived - passed),
        miscounted=abs((runs or stored) - stored) + counts["pending"] + counts["dead"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the table of faults.")
    parser.add_argument("--runs", type=int, default=1000, help="agent runs per scenario")
    parser.add_argument("--kills", type=int, default=500, help="how many kill -9")
    parser.add_argument("--only", default="", help="part of a scenario's name")
    wanted = parser.parse_args()
    heads = (
        "scenario | runs | passed | arrived | lost | doubled | strangers | agent errors | "
        "miscounted | s | note"
    )
    print(f"| {heads} |\n| --- |{' ---: |' * 9} --- |")
    total = 0
    bad = 0
    # No thread may run before the children are forked, or they would begin in its middle.
    ordered = sorted(SCENARIOS, key=lambda name: "process" not in name and "kill" not in name)
    for name in (one for one in ordered if wanted.only in one):
        runs = 10 * wanted.kills if "kill" in name else wanted.runs
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, shortened_clock():
            one = SCENARIOS[name](runs, Path(folder))
        total += one.runs
        bad += not one.clean
        cells = [
            name, one.runs, one.passed, one.arrived, one.lost, one.doubled, one.strangers,
            one.agent_errors, one.miscounted, f"{time.perf_counter() - began:.0f}", one.note,
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n{total} runs, {bad} scenarios not clean")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
