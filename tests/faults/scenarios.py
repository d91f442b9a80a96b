"""The faults, each as a scenario: `python -m tests.faults.scenarios` prints the table.

After each, the registry must hold what passed the gate, once each; the agents' results must be what
they are without the handler; and the counters must add up to the number of runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from kp_langchain import FinishedRun, Registry, TraceStore
from tests import programs
from tests.faults.ground import KEY, TIMEOUT_S, Account, Players, has_passed
from tests.faults.processes import ENOUGH_S, ended, shortened_clock, started, wait_until
from tests.loopback_registry import LoopbackRegistry, Misbehave
from tests.loopback_tools import unheard_port

STORE = "traces.db"
Scenario = Callable[[int, Path], Account]
Fault = Callable[[Path], AbstractContextManager[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def enter(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        return function

    return enter


def registry_at(server: LoopbackRegistry, key: str = KEY) -> Registry:
    return Registry(server.url, api_key=key, timeout_s=TIMEOUT_S)


def players_of(folder: Path, server: LoopbackRegistry, **options: Any) -> Players:
    return Players(TraceStore(folder / STORE), registry_at(server), options)


# ---------------------------------------------------------------- the registry


def at_random(seed: int, share: float, *faults: str) -> Misbehave:
    """Misbehave in a share of the contributions, each time with one of `faults`."""
    drawn = random.Random(seed)

    def misbehave(number: int, method: str, path: str) -> str | None:
        hit = method == "POST" and drawn.random() < share
        return drawn.choice(faults) if hit else None

    return misbehave


def storm(number: int, method: str, path: str) -> str | None:
    """Nothing but 500 for the first while, then every third."""
    return "500" if number < 20 or number % 3 == 0 else None


def in_order(number: int, method: str, path: str) -> str | None:
    return None


def misbehaving(name: str, misbehave: Callable[[], Misbehave], **how: Any) -> None:
    """Enter a scenario in which only the registry is at fault, or sets a limit."""

    @scenario(name)
    def play(runs: int, folder: Path) -> Account:
        options = {"keys": {KEY}, "hour_s": 0.5, "misbehave": misbehave()} | how
        with LoopbackRegistry(**options) as server:
            players = players_of(folder, server)
            players.play(runs)
            players.handler.send(ENOUGH_S)
            account = players.account(server)
            if server.limit is not None:
                account.miscounted += server.count_429 + server.revoked
            return account


misbehaving("registry in order", lambda: in_order)
misbehaving("500 storm", lambda: storm)
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
# As the free tier counts in a minute. Three 429 in its hour would revoke the key; none must come.
misbehaving("30 writes a window", lambda: in_order, limit=30, window_s=0.3, hour_s=18.0)


@scenario("key revoked after a while, then a new key")
def key_revoked(runs: int, folder: Path) -> Account:
    keys = {KEY}
    with LoopbackRegistry(keys=keys) as server:
        players = players_of(folder, server)
        players.play(runs // 2)
        players.handler.send(ENOUGH_S)
        keys.clear()
        players.play(runs - runs // 2)
        players.handler.flush(ENOUGH_S)
        keys.add("kp_new")
        Players(folder / STORE, registry_at(server, "kp_new")).handler.send(ENOUGH_S)
        return players.account(server)


@scenario("registry dead at first")
def dead_server(runs: int, folder: Path) -> Account:
    with unheard_port() as port:
        registry = Registry(f"http://127.0.0.1:{port}", api_key=KEY, timeout_s=TIMEOUT_S)
        players = Players(TraceStore(folder / STORE), registry)
        players.play(runs)
        players.handler.send(0.1)
        with LoopbackRegistry(keys={KEY}, port=port) as server:
            players.handler.send(ENOUGH_S)
            return players.account(server)


# ---------------------------------------------------------------- the store


def for_a_while(name: str, *, of_used: bool) -> Callable[[Fault], Fault]:
    """Enter a scenario in which the store's file is at fault for a third of the runs.

    Args:
        name: Its name.
        of_used: Whether the file is in use before that.
    """

    def enter(fault: Fault) -> Fault:
        @scenario(name)
        def play(runs: int, folder: Path) -> Account:
            with LoopbackRegistry(keys={KEY}) as server:
                players = players_of(folder, server)
                if of_used:
                    players.play(runs // 3)
                    players.handler.flush(ENOUGH_S)
                with fault(folder / STORE):
                    players.play(runs // 3)
                    players.handler.flush(ENOUGH_S)
                players.play(runs // 3)
                players.settle()
                return players.account(server)

        return fault

    return enter


@for_a_while("disk full for a while", of_used=True)
@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """The limit on the size of files stands in for the disk's."""
    full = path.with_name(f"{path.name}-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@for_a_while("file locked for a while", of_used=True)
@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield
    holder.execute("ROLLBACK")
    holder.close()


@for_a_while("file corrupted, then taken away", of_used=False)
@contextmanager
def corrupted_file(path: Path) -> Iterator[None]:
    path.write_bytes(random.Random(13).randbytes(40_000))
    yield
    take_away(path)


def take_away(path: Path) -> None:
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()


# ---------------------------------------------------------------- threads and processes


@scenario("a function of the user ends its thread")
def ended_threads(runs: int, folder: Path) -> Account:
    numbers = itertools.count()

    def outcome(_: FinishedRun) -> None:
        if next(numbers) % 5 == 0:
            sys.exit("as a program ends, not a thread")

    with LoopbackRegistry(keys={KEY}) as server:
        players = players_of(folder, server, outcome=outcome)
        players.play(runs)
        players.settle()
        return players.account(server)


@scenario("two processes on one file")
def two_processes(runs: int, folder: Path) -> Account:
    with LoopbackRegistry(keys={KEY}, misbehave=at_random(14, 0.1, "reset_after")) as server:
        half = runs // 2
        with apart(folder, server, half, "one") as one, apart(folder, server, half, "two") as two:
            ended(one, folder / "one", 0)
            ended(two, folder / "two", 0)
        return whole_account(folder, server, 2 * half)


@scenario("fork after start")
def forks(runs: int, folder: Path) -> Account:
    """Children record with the handler that their parent had already used."""
    with LoopbackRegistry(keys={KEY}) as server:
        players = players_of(folder, server)
        share = max(1, runs // 10)
        failed = 0
        for _ in range(5):
            players.play(share)
            child = os.fork()
            if child == 0:
                players.errors = 0
                players.play(share)
                players.settle()
                os._exit(1 if players.errors else 0)
            failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        players.settle()
        return whole_account(folder, server, 10 * share, failed + players.errors)


@scenario("exit with work queued")
def exits(runs: int, folder: Path) -> Account:
    """Short processes that just end; what each left is the next one's."""
    share = 20
    names = [f"exit {number}" for number in range(max(1, runs // share))]
    with LoopbackRegistry(keys={KEY}, misbehave=at_random(15, 0.2, "slow")) as server:
        for name in names:
            with apart(folder, server, share, name) as playing:
                ended(playing, folder / name, 0)
        return whole_account(folder, server, share * len(names))


@scenario("kill -9 at random moments")
def kills(runs: int, folder: Path) -> Account:
    """As many kills as a tenth of the runs, each in the middle of an endless loop of them.

    Half of them come a moment after a number of requests, and half after a number of stored runs.
    """
    drawn = random.Random(16)
    faults = at_random(17, 0.1, "reset_after", "stored_500")
    with (
        LoopbackRegistry(keys={KEY}, misbehave=faults) as server,
        TraceStore(folder / STORE) as store,
    ):
        for number in range(max(2, runs // 10)):
            count = (lambda: len(server.requests), store.count)[number % 2]
            enough = drawn.randint(1, 12) + count()
            name = f"kill {number}"
            with apart(folder, server, 10**9, name) as playing:
                wait_until(lambda: count() >= enough, "it plays", folder / name, playing)  # noqa: B023
                time.sleep(drawn.uniform(0.0, 0.02))
                playing.kill()
        return whole_account(folder, server)


def apart(
    folder: Path, server: LoopbackRegistry, runs: int, name: str
) -> AbstractContextManager[programs.Program]:
    """Play runs in a process of its own, which waits for no answer of the registry at its end."""
    words = ("-m", "tests.faults.ground", STORE, server.url, str(runs))
    return started(folder, *words, output=name, KP_EXIT_TIMEOUT_S="0.3")


def whole_account(
    folder: Path, server: LoopbackRegistry, runs: int | None = None, errors: int = 0
) -> Account:
    """The account of a store that several processes wrote: its outbox is what passed."""
    server.misbehave = in_order
    with TraceStore(folder / STORE) as store:
        Players(store, registry_at(server)).handler.send(ENOUGH_S)
        passed = {run.trace_id for run in store.runs(limit=None) if has_passed(run)}
        stored = store.count()
    outbox = contributions(folder / STORE)
    arrived = set(server.units)
    return Account(
        runs=stored if runs is None else runs,
        agent_errors=errors,
        passed=len(passed),
        arrived=len(arrived & passed),
        lost=len(passed - arrived) + len(passed ^ outbox.keys()),
        doubled=len(server.doubled),
        strangers=len(arrived - passed),
        miscounted=abs((stored if runs is None else runs) - stored)
        + sum(state in {"pending", "dead"} for state in outbox.values()),
    )


def contributions(path: Path) -> dict[str, str]:
    """Return the state of each contribution by trace id, as the command line lists them."""
    words = (
        "-m",
        "kp_langchain",
        "registry",
        "outbox",
        "--database",
        str(path),
        "--json",
        "--limit",
        "999999",
    )
    done = programs.run(*words)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {line["trace_id"]: line["state"] for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the table of faults.")
    parser.add_argument("--runs", type=int, default=1000, help="agent runs per scenario")
    parser.add_argument("--kills", type=int, default=500, help="how many kill -9")
    parser.add_argument("--only", default="", help="part of a scenario's name")
    options = parser.parse_args()
    heads = (
        "scenario | runs | passed | arrived | lost | doubled | strangers | agent errors | "
        "miscounted | s"
    )
    print(f"| {heads} |\n| --- |{' ---: |' * 9}")
    bad = 0
    for name in (one for one in SCENARIOS if options.only in one):
        runs = 10 * options.kills if "kill" in name else options.runs
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, shortened_clock():
            one = SCENARIOS[name](runs, Path(folder))
        bad += not one.clean
        cells = [
            name, one.runs, one.passed, one.arrived, one.lost, one.doubled, one.strangers,
            one.agent_errors, one.miscounted, f"{time.perf_counter() - began:.0f}",
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n{bad} scenarios not clean")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
