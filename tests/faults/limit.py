"""1,000 contributions under the free tier's limit: `python -m tests.faults.limit`.

The registry counts 30 writes a window, as the free tier does a minute, with a window of 0.6 s;
three 429 within its hour would revoke the key.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from kp_langchain import Registry, TraceStore
from tests.faults.clock import shortened_clock
from tests.faults.ground import KEY, Players
from tests.loopback_registry import LoopbackRegistry

FREE_TIER = 30


def contribute(number: int, folder: Path, window_s: float) -> tuple[LoopbackRegistry, Players]:
    """Play runs until `number` passed, and send them all."""
    with (
        shortened_clock(),
        LoopbackRegistry(
            keys={KEY}, limit=FREE_TIER, window_s=window_s, hour_s=60 * window_s
        ) as server,
    ):
        registry = Registry(server.url, api_key=KEY)
        players = Players(TraceStore(folder / "traces.db"), registry)
        while len(players.passed) < number:
            players.play(1)
            if players.played % 3 == 0:
                players.handler.flush()
        players.handler.send(600.0)
    return server, players


def main() -> None:
    parser = argparse.ArgumentParser(description="Contribute under a rate limit.")
    parser.add_argument("--contributions", type=int, default=1000)
    parser.add_argument("--window", type=float, default=0.6, help="seconds; a minute really")
    wanted = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        server, players = contribute(wanted.contributions, Path(folder), wanted.window)
    seconds = time.perf_counter() - began
    print(f"passed {len(players.passed)}, in the registry {len(server.units)}")
    print(f"requests {len(server.requests)}, of them answered with 429: {server.count_429}")
    print(f"key revoked: {server.revoked}")
    print(f"{seconds:.1f} s = {seconds / wanted.window:.0f} windows; {FREE_TIER} a window allowed")


if __name__ == "__main__":
    main()
