"""Contributions at the registry's own server, under its real limiter: eleven minutes.

`python -m tests.faults.real_registry` prints what came of 300 contributions, kills of the server
and of the sender, late verdicts, withdrawals and a wrong key. The environment variable
`KP_TEST_REGISTRY_COMMAND` says how to start the server; see `tests/real_registry.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from kp_langchain import DomainPolicy, Registry, TraceStore
from tests.faults.ground import Players
from tests.faults.processes import started
from tests.faults.scenarios import contributions
from tests.real_registry import COMMAND, RealRegistry

AGENT = "kp:agent:desk"
LONG_S = 3600.0


def players_of(store: TraceStore, registry: Registry, threshold: float) -> Players:
    """Play runs that score 0.42 once they repeat others, and 0.33 after a verdict less sure."""
    policy = DomainPolicy(threshold=threshold, visibility="network", twin_similarity=1.0)
    return Players(store, registry, {"policy": policy, "agent_id": AGENT})


def kill_senders(folder: Path, url: str, key: str, kills: int) -> None:
    """Let processes send, and kill each in the middle of it."""
    words = (
        "-m",
        "kp_langchain",
        "registry",
        "outbox",
        "send",
        "--timeout",
        "3600",
        "--database",
        "traces.db",
    )
    for _ in range(kills):
        with started(folder, *words, KP_REGISTRY_URL=url, KP_API_KEY=key):
            time.sleep(random.uniform(1.2, 2.2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Contribute to the registry's own server.")
    parser.add_argument("--contributions", type=int, default=300)
    parser.add_argument("--kills", type=int, default=10, help="of a sending process")
    parser.add_argument("--restarts", type=int, default=3, help="of the server, by kill -9")
    options = parser.parse_args()
    if not COMMAND:
        sys.exit("KP_TEST_REGISTRY_COMMAND does not say how to start the registry's server")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name, RealRegistry(Path(name)) as server:
        folder = Path(name)
        store = TraceStore(folder / "traces.db")
        secret = Registry(server.url).register(AGENT)
        registry = Registry(server.url, api_key=secret)
        lenient, strict = (players_of(store, registry, threshold) for threshold in (0.3, 0.35))
        while len(lenient.passed) + len(strict.passed) < options.contributions:
            for players in (lenient, strict):
                players.play(3)
                players.handler.flush()
        ids = [*lenient.passed, *strict.passed]
        send = lenient.handler.send

        kill_senders(folder, server.url, secret.get_secret_value(), options.kills)
        for _ in range(options.restarts):
            send(1.0)
            server.stop()
            send(0.5)
            server.start()
        is_done = send(LONG_S)
        sent = sum(state == "sent" for state in contributions(folder / "traces.db").values())
        there = sum(server.unit(one) is not None for one in ids)
        twice = server.contributions(AGENT) - len(ids)
        print(f"sent {sent} of {len(ids)}, nothing left: {is_done}; in the registry {there}, ")
        print(f"{twice} of them twice; {time.perf_counter() - began:.0f} s, 30 a minute allowed")

        for one in (*lenient.passed[:5], *strict.passed[1:6]):
            store.report_outcome(one, success=True, confidence=0.6)
        is_done = send(LONG_S)
        scores = {one: store.get(one).score for one in lenient.passed[:5]}
        units = {one: server.unit(one) or {"metadata": {}} for one in scores}
        agree = sum(units[one]["metadata"].get("quality_score") == scores[one] for one in scores)
        gone = sum(server.unit(one) is None for one in strict.passed[1:6])
        print(f"late verdicts: {agree} of 5 replaced, {gone} of 5 deleted, left: {not is_done}")

        wrong = players_of(store, Registry(server.url, api_key="kp_wrong"), 0.3)
        wrong.play(1)
        print(f"sent with a wrong key: {wrong.handler.send(5.0)}; ", end="")
        print(f"the right one lives: {registry.check().kind == 'done'}, sends: {send(LONG_S)}")
        store.close()


if __name__ == "__main__":
    main()
