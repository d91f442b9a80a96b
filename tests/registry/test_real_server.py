"""The registry's own server: register, contribute, withdraw, late verdicts, keys, restarts.

The server is not part of this project. The environment says how to start it, in two variables:

- `KP_TEST_REGISTRY_COMMAND`: a shell command that serves the registry on 127.0.0.1 at the port in
  the variable `KP_PORT` until it is terminated. It is also given the server's own settings
  `KP_STORE_BACKEND=sqlite`, `KP_SQLITE_PATH`, and where a test wants idempotency `KP_REDIS_URL`.
  The server itself listens on all interfaces; to keep it on 127.0.0.1, let the command run a small
  file that imports its `app` and serves that: `Bun.serve({hostname: "127.0.0.1", port:
  Number(process.env.KP_PORT), fetch: app.fetch})`.
- `KP_TEST_REDIS_COMMAND`: the program `redis-server`, if it is not found by that name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from kp_langchain import DomainPolicy, KPCallbackHandler, Registry, TraceStore
from kp_langchain.registry.search import search
from kp_langchain.registry.sender import Sender
from tests.agents import ASK, handler, searching
from tests.commands import cli_apart
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_search import fill, objectives, unit
from tests.registry.test_sender import Sending, passed

COMMAND = os.environ.get("KP_TEST_REGISTRY_COMMAND", "")
REDIS = os.environ.get("KP_TEST_REDIS_COMMAND") or shutil.which("redis-server")
PATIENCE_S = 60.0
AGENT = "kp:agent:desk"
pytestmark = pytest.mark.skipif(
    not COMMAND, reason="KP_TEST_REGISTRY_COMMAND does not say how to start the registry's server"
)


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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealRegistry]:
    with RealRegistry(tmp_path) as server:
        yield server


@pytest.fixture
def settings(server: RealRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_REGISTRY_URL", server.url)
    monkeypatch.setenv("KP_DATABASE_URL", "runs.db")


def watch() -> KPCallbackHandler:
    policy = DomainPolicy(threshold=0.0, visibility="network", twin_similarity=1.0)
    return handler(policy=policy, store="runs.db")


def played(number: int) -> list[str]:
    """Play runs as the README says, with the settings alone; their traces."""
    watching = watch()
    for _ in range(number):
        searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.send(60.0)
    with TraceStore("runs.db") as store:
        return [run.trace_id for run in store.runs()][:number]


@pytest.mark.usefixtures("settings")
def test_who_follows_the_readme_can_withdraw(server: RealRegistry) -> None:
    assert cli_apart("registry", "register", "--agent-id", "desk").returncode == 0
    assert (
        f"{AGENT}, the agent of the key" in cli_apart("doctor", KP_EMBEDDING_MODEL="/none").stdout
    )
    first, second = played(2)
    for one in (first, second):
        unit = server.unit(one)
        assert unit is not None
        assert unit["metadata"]["agent_id"] == AGENT
    assert "is withdrawn" in cli_apart("registry", "withdraw", first).stdout
    assert server.unit(first) is None
    with TraceStore("runs.db") as store:
        policy_passes_all = store.report_outcome(second, success=False)
        assert [change.decision for change in policy_passes_all] == ["kept"]
    assert watch().send(60.0)
    unit = server.unit(second)
    assert unit is not None
    assert unit["metadata"]["success"] is False
    assert server.contributions(AGENT) == 3


def test_late_verdicts_change_and_withdraw(server: RealRegistry, tmp_path: Path) -> None:
    registry = Registry(server.url, api_key=server.register(AGENT, ["read", "write"]))
    with TraceStore(tmp_path / "traces.db") as store:
        stays, goes = passed(1, agent_id=AGENT, threshold=0.2), passed(2, agent_id=AGENT)
        store.add(*[stays, goes], registry=registry.url)
        sender = Sender(store, registry)
        assert sender.loop.drain(60.0)
        for one in (stays, goes):
            store.report_outcome(one.trace.id, success=False)
        assert sender.loop.drain(60.0)
        unit = server.unit(stays.trace.id)
        assert unit is not None
        assert unit["metadata"]["success"] is False
        assert unit["metadata"]["quality_score"] == store.get(stays.trace.id).score
        assert server.unit(goes.trace.id) is None
        store.report_outcome(goes.trace.id, success=True)
        assert sender.loop.drain(60.0)
        assert server.unit(goes.trace.id) is not None


def test_what_another_agent_sent_cannot_be_withdrawn_and_that_is_said(
    server: RealRegistry, tmp_path: Path
) -> None:
    registry = Registry(server.url, api_key=server.register(AGENT, ["read", "write"]))
    with TraceStore(tmp_path / "traces.db") as store:
        here = Sending(store, registry)
        (one,) = here.fill()
        here.drive()
        here.judge(one, success=False)
        here.clock.skip(1.0)
        assert here.turn() > 3000
        (left,) = store.outbox.to_withdraw()
        assert left.reason == (
            "403: may not be deleted: Forbidden: can only delete your own contributions"
        )


@pytest.mark.usefixtures("settings")
def test_a_wrong_key_is_told_by_one_request(server: RealRegistry) -> None:
    assert cli_apart("registry", "register", "--agent-id", "desk").returncode == 0
    told = cli_apart("doctor", KP_EMBEDDING_MODEL="/none").stdout
    assert "with a key, which it knows" in told
    with TraceStore("runs.db") as store:
        store.add(passed(agent_id=AGENT), registry=server.url)
        done = cli_apart("registry", "outbox", "send", KP_API_KEY="kp_wrong")
        assert (done.returncode, "it does not know the key" in done.stdout) == (1, True)
        wrong = Registry(server.url, api_key="kp_wrong")
        standing = store.outbox.standing(wrong.url, wrong.key_id)
        assert (standing.stopped, standing.throttled_at) == (True, ())
        done = cli_apart("doctor", KP_EMBEDDING_MODEL="/none", KP_API_KEY="kp_wrong")
        assert done.returncode == 1
        assert "it does not know the key" in done.stdout
        assert "Sent 1" in cli_apart("registry", "outbox", "send").stdout


@pytest.mark.parametrize("replays", [False, True], ids=["without Redis", "with Redis"])
def test_a_server_that_dies_gets_each_once(tmp_path: Path, replays: bool) -> None:
    if replays and REDIS is None:
        pytest.skip("there is no redis-server")
    if not replays:
        with RealRegistry(tmp_path) as server:
            die_and_come_back(server, tmp_path)
        return
    with redis(tmp_path) as redis_url, RealRegistry(tmp_path, redis_url=redis_url) as server:
        die_and_come_back(server, tmp_path)


def die_and_come_back(server: RealRegistry, folder: Path) -> None:
    registry = Registry(server.url, api_key=server.register(AGENT, ["read", "write"]))
    with TraceStore(folder / "traces.db") as store:
        runs = [passed(number, agent_id=AGENT) for number in range(25)]
        store.add(*runs, registry=registry.url)
        sender = Sender(store, registry)
        for _ in range(3):
            ends = threading.Thread(target=sender.loop.drain, args=(0.5,))
            ends.start()
            server.stop()
            ends.join()
            server.start()
        assert sender.loop.drain(300.0)
        assert all(server.unit(run.trace.id) for run in runs)
        assert server.contributions(AGENT) == len(runs)


@pytest.mark.skipif(REDIS is None, reason="there is no redis-server")
def test_a_mended_cause_does_not_run_into_a_refusal_of_yesterday(tmp_path: Path) -> None:
    with (
        redis(tmp_path) as redis_url,
        RealRegistry(tmp_path, redis_url=redis_url) as server,
        TraceStore(tmp_path / "traces.db") as store,
    ):
        reads = Registry(server.url, api_key=server.register(AGENT, ["read"]))
        here = Sending(store, reads)
        ids = here.fill(3, agent_id=AGENT)
        assert here.turn() > 3000
        standing = store.outbox.standing(reads.url, reads.key_id)
        assert "Write scope required" in standing.quiet_reason
        writes = Registry(server.url, api_key=server.register(AGENT, ["read", "write"]))
        Sending(store, writes).drive()
        assert all(server.unit(one) for one in ids)


@pytest.mark.usefixtures("settings")
def test_without_a_key_nothing_is_sent(server: RealRegistry) -> None:
    with TraceStore("runs.db") as store:
        store.add(passed(), registry=server.url)
        done = cli_apart("registry", "outbox", "send")
        assert (done.returncode, "there is no key for it" in done.stdout) == (1, True)
        assert store.outbox.counts()["pending"] == 1
        assert json.loads(cli_apart("registry", "outbox", "--json").stdout)["attempts"] == 0


def test_the_real_registry_is_searched_in_the_same_way(tmp_path: Path) -> None:
    with RealRegistry(tmp_path) as real, LoopbackRegistry() as loopback:
        registry = Registry(real.url, api_key=real.register("kp:agent:desk", ["read", "write"]))
        for number in range(28):  # its limit is 30 a minute
            one = unit(
                number, quality=1 - number / 100, domain="Finance" if number % 2 else "legal"
            )
            one["metadata"]["agent_id"] = "kp:agent:desk"
            body = json.dumps(one).encode()
            assert registry.contribute(body, sha256(body).hexdigest()).kind == "done"
            fill(loopback, one)
        for options in (
            {}, {"min_quality": 0.8}, {"limit": 3, "offset": 2}, {"q": "MONTH 1"}, {"offset": 99},
        ):  # fmt: skip
            with TraceStore(tmp_path / "traces.db") as store:
                mine, theirs = (
                    list(search(Registry(one.url), store.outbox, domain="finance", **options))
                    for one in (loopback, real)
                )
            assert objectives(mine) == objectives(theirs)
            assert [page.total for page in mine] == [page.total for page in theirs]
            assert [page.next_offset for page in mine] == [page.next_offset for page in theirs]
            assert all(page.answer.allowance.limit is not None for page in theirs)
