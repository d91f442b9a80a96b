"""Contributions at the registry's own server, under its real limiter: eleven minutes.

`python -m tests.faults.real_registry` prints what came of registering, 300 contributions, kills of
the server and of the sender, late verdicts, withdrawals and a wrong key. The environment variable
`KP_TEST_REGISTRY_COMMAND` says how to start the server; see `tests/real_registry.py`.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kp_langchain import Registry, TraceStore
from kp_langchain.registry.sender import Sender
from tests.real_registry import COMMAND, RealRegistry
from tests.registry.test_sender import passed

AGENT = "kp:agent:desk"
SENDS = """
import sys
from kp_langchain import Registry, TraceStore
from kp_langchain.registry.sender import Sender
Sender(TraceStore(sys.argv[1]), Registry(sys.argv[2], api_key=sys.stdin.readline())).drain(3600)
"""


def drain(store: TraceStore, registry: Registry, seconds: float = 3600.0) -> bool:
    """Send like a program that calls `handler.send` in a loop."""
    return Sender(store, registry).drain(seconds)


def kill_senders(path: Path, url: str, key: str, kills: int) -> None:
    """Let processes send, and kill each in the middle of it."""
    drawn = random.Random(19)
    for _ in range(kills):
        words = [sys.executable, "-W", "ignore", "-c", SENDS, str(path), url]
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(key)
            process.stdin.close()
            time.sleep(drawn.uniform(1.2, 2.2))
            process.send_signal(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description="Contribute to the registry's own server.")
    parser.add_argument("--contributions", type=int, default=300)
    parser.add_argument("--kills", type=int, default=10, help="of a sending process")
    parser.add_argument("--restarts", type=int, default=3, help="of the server, by kill -9")
    wanted = parser.parse_args()
    if not COMMAND:
        sys.exit("KP_TEST_REGISTRY_COMMAND does not say how to start the registry's server")
    number = wanted.contributions
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, RealRegistry(Path(folder)) as server:
        path = Path(folder) / "traces.db"
        store = TraceStore(path)
        secret = Registry(server.url).register(AGENT)
        registry = Registry(server.url, api_key=secret)
        runs = [passed(n, agent_id=AGENT, threshold=0.2 + 0.4 * (n % 2)) for n in range(number)]
        store.add_many(runs, registry=registry.url)
        ids = [run.trace.id for run in runs]

        kill_senders(path, server.url, secret.get_secret_value(), wanted.kills)
        for _ in range(wanted.restarts):
            drain(store, registry, 1.0)
            server.stop()
            drain(store, registry, 0.5)
            server.start()
        done = drain(store, registry)
        there = sum(server.unit(one) is not None for one in ids)
        took = server.contributions(AGENT)
        print(f"sent {store.outbox.counts()['sent']} of {number}, nothing left: {done}")
        print(f"in the registry {there}; taken by it {took}, so {took - number} of them twice")
        print(f"{time.perf_counter() - began:.0f} s, 30 a minute allowed")

        judged = ids[:10]
        for one in judged:
            store.report_outcome(one, success=False)
        passing = [one for one in judged if store.get(one).decision == "contributed"]
        done = drain(store, registry)
        units = {one: server.unit(one) for one in judged}
        agree = sum(
            units[one] is not None
            and units[one]["metadata"]["quality_score"] == store.get(one).score
            for one in passing
        )
        gone = sum(units[one] is None for one in judged if one not in passing)
        print(f"late verdicts: {agree} of {len(passing)} that still pass were replaced, ", end="")
        print(f"{gone} of {len(judged) - len(passing)} that do not were deleted, left: {not done}")

        standing = store.outbox.standing(registry.url, registry.key_id)
        print(f"answered with 429: {len(standing.throttled_at)}; key lives: ", end="")
        print(registry.check().kind == "done")
        wrong = Registry(server.url, api_key="kp_wrong")
        store.add(passed(number, agent_id=AGENT), registry=wrong.url)
        drain(store, wrong, 5.0)
        standing = store.outbox.standing(wrong.url, wrong.key_id)
        print(f"wrong key: stopped {standing.stopped}, counted as 429: ", end="")
        print(f"{len(standing.throttled_at)}; {standing.quiet_reason}")
        print(f"then with the right one: {drain(store, registry)}")
        store.close()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
