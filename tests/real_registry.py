"""The public registry's own server, started on this machine for a test.

It is not part of this project. The environment says how to start it, in two variables:

- `KP_TEST_REGISTRY_COMMAND`: a shell command that serves the registry on 127.0.0.1 at the port in
  the variable `KP_PORT` until it is terminated. It is also given the server's own settings
  `KP_STORE_BACKEND=sqlite`, `KP_SQLITE_PATH`, and where a test wants idempotency `KP_REDIS_URL`.
  The server itself listens on all interfaces; to keep it on 127.0.0.1, let the command run a small
  file that imports its `app` and serves that: `Bun.serve({hostname: "127.0.0.1", port:
  Number(process.env.KP_PORT), fetch: app.fetch})`.
- `KP_TEST_REDIS_COMMAND`: the program `redis-server`, if it is not found by that name.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

COMMAND = os.environ.get("KP_TEST_REGISTRY_COMMAND", "")
REDIS = os.environ.get("KP_TEST_REDIS_COMMAND") or shutil.which("redis-server")
PATIENCE_S = 60.0


class RealRegistry:
    """The server on a port of its own, for a `with` block.

    Args:
        folder: Where its database lies.
        redis_url: Redis for its limits and its idempotency; None for neither.
    """

    def __init__(self, folder: Path, *, redis_url: str | None = None) -> None:
        self._port = free_port()
        self._environment = {
            **os.environ,
            "KP_PORT": str(self._port),
            "KP_STORE_BACKEND": "sqlite",
            "KP_SQLITE_PATH": str(folder / "registry.db"),
        }
        if redis_url is not None:
            self._environment["KP_REDIS_URL"] = redis_url
        self._log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", COMMAND],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for_port(self._port, self._process, self._log)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, with whatever it was doing."""
        if self._process is not None:
            os.killpg(self._process.pid, how)
            self._process.wait(PATIENCE_S)
            self._process = None

    def unit(self, trace_id: str) -> dict[str, Any] | None:
        """Return what anybody may read of a unit, or None."""
        content = self._get(f"/v1/knowledge/{trace_id}")
        return None if content is None else content["data"]["unit"]

    def contributions(self, agent_id: str) -> int:
        """Return how often it took something of an agent, beside the registration."""
        content = self._get(f"/v1/reputation/{agent_id}")
        assert content is not None
        record = content.get("data", content)
        return int(record["contributions"]) - 1

    def register(self, agent_id: str, scopes: list[str]) -> str:
        """Return a new key."""
        asked = {"agent_id": agent_id, "scopes": scopes, "tier": "free"}
        answer = httpx.post(f"{self.url}/v1/auth/register", json=asked, timeout=PATIENCE_S)
        return str(answer.raise_for_status().json()["data"]["api_key"])

    def _get(self, path: str) -> Any:
        # Anonymous readers are counted by this header, so that each question has its own limit.
        reader = {"X-Forwarded-For": f"{time.monotonic_ns()}"}
        answer = httpx.get(self.url + path, headers=reader, timeout=PATIENCE_S)
        return None if answer.status_code == 404 else answer.raise_for_status().json()


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis that keeps nothing; yields its URL."""
    assert REDIS is not None
    port = free_port()
    words = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    log = folder / "redis.log"
    with log.open("wb") as out, subprocess.Popen([REDIS, *words], stdout=out, stderr=out) as server:
        try:
            wait_for_port(port, server, log)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something accepts connections at a port of this machine."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"nothing listens at port {port}; its output: {log.read_text()[-2000:]}")
