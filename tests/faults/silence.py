"""Counts what leaves without configuration: `python -m tests.faults.silence`.

Where the system can (Linux, `unshare`), it runs in a network of its own and counts the packets on
every interface of it; everywhere, it counts the calls that reach for a network.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REACHING = {
    "socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "socket.gethostbyname", "socket.gethostbyaddr", "socket.bind",
}  # fmt: skip


def packets() -> int | None:
    """Packets received and sent on all interfaces; None where the system does not tell."""
    table = Path("/proc/net/dev")
    if not table.exists():
        return None
    rows = [line.split(":")[1].split() for line in table.read_text().splitlines()[2:]]
    return sum(int(row[1]) + int(row[9]) for row in rows)


def play(runs: int, configured: str | None) -> tuple[int, list[str]]:
    """Play runs that pass, visible to the network; return how many passed, and what was reached."""
    from kp_langchain import DomainPolicy
    from tests.agents import handler
    from tests.faults.ground import invoke

    reached: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in REACHING:
            reached.append(event)

    policy = DomainPolicy(threshold=0.0, visibility="network", twin_similarity=1.0)
    with tempfile.TemporaryDirectory() as folder:
        watching = handler(
            "finance", store=Path(folder, "traces.db"), policy=policy, registry=configured
        )
        sys.addaudithook(hook)
        for number in range(runs):
            invoke(watching, searches=number % 3 != 0)
        watching.send(300.0)
        return watching.stats()["kept"], reached


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what leaves without configuration.")
    parser.add_argument("--runs", type=int, default=1000, help="agent runs to play")
    parser.add_argument("--registry", help="configure this one, to see that counting works")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if not wanted.inside and shutil.which("unshare") and shutil.which("ip"):
        again = [sys.executable, "-m", "tests.faults.silence", "--inside", *sys.argv[1:]]
        up = 'ip link set lo up && exec "$@"'
        done = subprocess.run(["unshare", "-rn", "sh", "-c", up, "sh", *again], check=False)
        if done.returncode == 0:
            return
        print("no network of its own can be had; counting calls alone")
    before = packets()
    passed, reached = play(wanted.runs, wanted.registry)
    after = packets()
    counted = "not told" if before is None or after is None else after - before
    where = "in a network of its own" if wanted.inside else "on this machine, by all programs"
    print(f"runs {wanted.runs}, kept {passed}, registry {wanted.registry}")
    print(f"packets {where}: {counted}")
    print(f"calls that reach for a network: {len(reached)}")


if __name__ == "__main__":
    main()
