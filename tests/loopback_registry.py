"""A registry on the loopback interface: real HTTP, the protocol's rules, and faults on demand.

It behaves as the public server does: the limiter stands before authentication, so that a key it
does not know is anonymous and may write nothing; only the agent that contributed a unit may delete
it; a unit that comes again replaces the earlier one; and an answer below 500 to an idempotency key
is given again, refusals included.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Self
from urllib.parse import parse_qs, unquote

CONTEXT = "https://openknowledgepulse.org/schema/v1"
UNLIMITED = 10**6
ANONYMOUS_READS = 60

Misbehave = Callable[[int, str, str], str | bytes | None]
"""Given the request's number (from 0), method and path: None, the bytes to answer with in place of
anything else, or the name of a fault.

Before anything is stored: `500`, `503_retry_after`, `slow`, `reset_before`, `no_id`, `429`,
`429_retry_after`, `429_date`, `401`, `403`, `400`, `413`, `422`, `garbage`, `redirect_away`,
`redirect_here`, `echo`, `drip_headers`, `404`. After the unit was stored: `half`, `reset_after`,
`stored_no_id`, `huge`, `drip`, `bad_json`, `stored_500`.
"""

AFTER_STORING = {
    "half", "reset_after", "stored_no_id", "huge", "drip", "bad_json", "stored_500",
}  # fmt: skip


class LoopbackRegistry:
    """A registry in a thread of its own, for a `with` block.

    `units` are those it holds by id, `received` the bodies it took in order, repeats included, and
    `doubled` the ids of units that it took again although nothing in them had changed. `fragments`
    are what it finds before all units, whatever is searched, written into the answer as they are.

    Args:
        limit: Writes per window; None for no limit.
        read_limit: Reads and deletions per window; None for no limit.
        window_s: Length of a window in seconds: the shortened clock.
        hour_s: What counts as the hour in which three 429 revoke a key.
        keys: Keys it knows; None takes any.
        agents: Whose they are. Of a key that is not among these, the agent is not asked.
        replays: Whether it gives an answer again to an idempotency key that it knows.
        misbehave: Decides on a fault for each request.
        port: Port to listen on; 0 for a free one.
        tls: Speak TLS by this.
    """

    def __init__(
        self,
        *,
        limit: int | None = None,
        read_limit: int | None = None,
        window_s: float = 60.0,
        hour_s: float = 3600.0,
        keys: set[str] | None = None,
        agents: dict[str, str] | None = None,
        replays: bool = True,
        misbehave: Misbehave | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limit, self.read_limit = limit, read_limit
        self.window_s, self.hour_s = window_s, hour_s
        self.window_clock: Callable[[], float] = time.monotonic
        self.keys, self.agents, self.replays = keys, dict(agents or {}), replays
        self.reputation_suffices = True
        self.misbehave: Misbehave = misbehave or (lambda number, method, path: None)
        self.units: dict[str, dict[str, Any]] = {}
        self.fragments: list[str] = []
        self.received: list[bytes] = []
        self.doubled: list[str] = []
        self.answered: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str], int | None]] = []
        self.keys_seen: dict[int, str | None] = {}
        self.throttled_at: list[float] = []
        self.revoked = False
        self.release = threading.Event()
        self._port, self._tls = port, tls
        self._windows: dict[tuple[bool, bool], tuple[float, int]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()

    # ------------------------------------------------------------ running

    def __enter__(self) -> Self:
        ready = threading.Event()
        serve = self._serve(ready)
        self._thread = threading.Thread(target=asyncio.run, args=(serve,), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def count_429(self) -> int:
        return len(self.throttled_at)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(
            self._connected, "127.0.0.1", self._port, backlog=512, ssl=self._tls
        )
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        # What is being accepted when a server is closed is never closed.
        while accepting := asyncio.all_tasks() - self._tasks - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._one(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        number = len(self.requests)
        self.keys_seen[number] = headers.get("idempotency-key")
        fault = self.misbehave(number, method, path)
        self.requests.append((method, path, headers, None))
        status: int | None = None
        if isinstance(fault, bytes):
            writer.write(fault)
            await writer.drain()
        elif fault is not None and fault not in AFTER_STORING:
            status = await self._faulty(fault, path, headers, body, writer)
        else:
            status, fields, content = self._answer(method, path, headers, body)
            # Before the answer goes out, which its reader takes for the end of the request.
            self.requests[number] = (method, path, headers, status)
            if fault is not None and 200 <= status < 300:
                await self._spoilt(fault, status, fields, content, writer)
            else:
                await self._write(writer, status, fields, content)
        self.requests[number] = (method, path, headers, status)

    # ------------------------------------------------------------ the protocol

    def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if path == "/v1/auth/register":
            return self._register(body)
        key = headers.get("authorization", "").removeprefix("Bearer ")
        is_known = self._knows(key)
        is_allowed, fields = self._spend(writes=method == "POST", is_known=is_known)
        if not is_allowed:
            if is_known:
                self._throttle()
            return 429, fields, b'{"error": "Rate limit exceeded"}'
        if path == "/health":
            return 200, fields, b'{"status": "ok"}'
        if method == "POST" and path == "/v1/knowledge":
            status, more, content = self._take(headers, body)
            return status, fields | more, content
        if method == "GET" and path.partition("?")[0] == "/v1/knowledge":
            return 200, fields, self._search(path.partition("?")[2])
        status, content = self._about_unit(method, path, key, is_known=is_known)
        return status, fields, content

    def _knows(self, key: str) -> bool:
        return bool(key) and not self.revoked and (self.keys is None or key in self.keys)

    def _spend(self, *, writes: bool, is_known: bool) -> tuple[bool, dict[str, str]]:
        """Count a request in its window; whether it is within the limit, and the headers."""
        now = self.window_clock()
        if is_known:
            limit = self.limit if writes else self.read_limit
        else:
            limit = 0 if writes else ANONYMOUS_READS
        limit = UNLIMITED if limit is None else limit
        began, used = self._windows.get((writes, is_known), (-1e9, 0))
        if now - began >= self.window_s:
            began, used = now, 0
        is_allowed = used < limit
        used += is_allowed
        self._windows[writes, is_known] = (began, used)
        left_s = max(0.0, began + self.window_s - now)
        fields = {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(limit - used),
            "x-ratelimit-reset": f"{left_s:.3f}",
        }
        return is_allowed, fields if is_allowed else fields | {"retry-after": f"{left_s:.3f}"}

    def _throttle(self) -> None:
        now = time.monotonic()
        self.throttled_at.append(now)
        within = [at for at in self.throttled_at if now - at <= self.hour_s]
        self.revoked = self.revoked or len(within) >= 3

    def _register(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        asked = json.loads(body)
        key = f"kp_{uuid.uuid4().hex}"
        if self.keys is not None:
            self.keys.add(key)
        self.agents[key] = asked["agent_id"]
        data = {"api_key": key, "key_prefix": key[:11], "tier": asked["tier"]}
        return self._json_answer(201, {"data": data})

    def _take(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        key = headers.get("idempotency-key", "")
        issues = faults_of(headers, body)
        if not issues:
            self.received.append(body)
        if self.replays and key in self.answered:
            status, content = self.answered[key]
            return status, {"idempotency-replayed": "true"}, content
        self.answered[key] = self._answer_to_unit(body, issues)
        return (self.answered[key][0], {}, self.answered[key][1])

    def _answer_to_unit(self, body: bytes, issues: list[dict[str, str]]) -> tuple[int, bytes]:
        if not self.reputation_suffices:
            return 403, b'{"error": "Minimum KP-REP score of 0.1 required"}'
        if issues:
            return 400, json.dumps({"error": "Invalid KnowledgeUnit", "issues": issues}).encode()
        unit = json.loads(body)
        if self.units.get(unit["id"]) == unit:
            self.doubled.append(unit["id"])
        self.units[unit["id"]] = unit
        data = {"id": unit["id"], "unit": unit}
        return 201, json.dumps({"data": data, "quality_score": 0.7}).encode()

    def _about_unit(self, method: str, path: str, key: str, *, is_known: bool) -> tuple[int, bytes]:
        wanted = unquote(path.removeprefix("/v1/knowledge/"))
        if method == "DELETE" and not is_known:
            return 401, b'{"error": "Authentication required"}'
        if wanted not in self.units or method not in ("GET", "DELETE"):
            return 404, b'{"error": "Knowledge unit not found"}'
        unit = self.units[wanted]
        if method == "GET":
            return 200, json.dumps({"data": {"id": wanted, "unit": unit}}).encode()
        agent = self.agents.get(key)
        if agent is not None and unit["metadata"].get("agent_id") != agent:
            return 403, b'{"error": "Forbidden: can only delete your own contributions"}'
        del self.units[wanted]
        return 200, json.dumps({"deleted": True, "unit_id": wanted}).encode()

    def _search(self, query: str) -> bytes:
        parameters = {name: values[-1] for name, values in parse_qs(query).items()}
        types = parameters.get("types", "").split(",") if parameters.get("types") else None
        domain, text = parameters.get("domain", "").lower(), parameters.get("q", "").lower()
        least = float(parameters["min_quality"]) if "min_quality" in parameters else None
        matches = [
            unit
            for unit in self.units.values()
            if (types is None or unit["@type"] in types)
            and (not domain or unit["metadata"]["task_domain"].lower() == domain)
            and (least is None or unit["metadata"]["quality_score"] >= least)
            and text in json.dumps([unit.get("task"), unit.get("steps")]).lower()
        ]
        matches.sort(key=lambda unit: -unit["metadata"]["quality_score"])
        at = {"created_at": "2026-02-01T12:00:00.000Z", "updated_at": "2026-02-01T12:00:00.000Z"}
        entries = [
            *self.fragments,
            *(
                json.dumps({"id": unit["id"], "unit": unit, "visibility": "network", **at})
                for unit in matches
            ),
        ]
        offset, limit = int(parameters.get("offset", 0)), int(parameters.get("limit", 20))
        page = ", ".join(entries[offset : offset + limit])
        rest = f'"total": {len(entries)}, "offset": {offset}, "limit": {limit}'
        return f'{{"data": [{page}], {rest}}}'.encode("utf-8", "surrogatepass")

    def _json_answer(self, status: int, content: object) -> tuple[int, dict[str, str], bytes]:
        return status, {}, json.dumps(content).encode()

    # ------------------------------------------------------------ faults

    async def _faulty(
        self,
        fault: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> int | None:
        if fault == "slow":
            while not self.release.is_set() and not writer.transport.is_closing():
                await asyncio.sleep(0.01)
            return None
        if fault == "reset_before":
            self._reset(writer)
            return None
        if fault == "garbage":
            writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            await writer.drain()
            return None
        if fault == "drip_headers":
            writer.write(b"HTTP/1.1 201 Created\r\n")
            await self._drip(writer, b"x-drip: d\r\n")
            return None
        fields: dict[str, str] = {}
        content: dict[str, Any] = {"error": f"as asked: {fault}"}
        status = int(fault[:3]) if fault[:3].isdigit() else 201
        if fault.startswith("429"):
            self._throttle()
        if fault in ("503_retry_after", "429_retry_after"):
            fields["retry-after"] = "1"
        elif fault == "429_date":
            now = time.time()
            fields |= {"date": formatdate(now, usegmt=True)}
            fields |= {"retry-after": formatdate(now + 2, usegmt=True)}
        elif fault in ("400", "413", "422"):
            content["issues"] = [{"path": ["steps", 0, "type"], "message": "not one of ours"}]
        elif fault == "no_id":
            content = {"data": {}}
        elif fault == "redirect_away":
            status, fields = 307, {"location": "http://127.0.0.2:9/v1/knowledge?token=abc"}
        elif fault == "redirect_here":
            status, fields = 308, {"location": path}
        elif fault == "echo":
            status = 400
            said = f"{headers.get('authorization')} {body.decode()}"
            content = {"error": said, "issues": [{"path": said, "message": said}]}
        await self._write(writer, status, fields, json.dumps(content).encode())
        return status

    async def _spoilt(
        self,
        fault: str,
        status: int,
        fields: dict[str, str],
        content: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        if fault == "reset_after":
            self._reset(writer)
        elif fault == "half":
            head = f"HTTP/1.1 201 Created\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            writer.write(head + content[: len(content) // 2])
            await writer.drain()
        elif fault == "huge":
            writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 1000000000\r\n\r\n")
            while not writer.transport.is_closing():
                writer.write(b" " * 65536)
                await writer.drain()
        elif fault == "drip":
            writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 100000\r\n\r\n")
            await self._drip(writer, b" ")
        elif fault == "stored_no_id":
            await self._write(writer, status, fields, b'{"data": {"id": ""}}')
        elif fault == "stored_500":
            await self._write(writer, 500, fields, b"{}")
        else:  # bad_json
            await self._write(writer, status, fields, content[:-5])

    async def _drip(self, writer: asyncio.StreamWriter, drop: bytes) -> None:
        while not writer.transport.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def _write(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        fields: dict[str, str],
        content: bytes,
    ) -> None:
        lines = [f"HTTP/1.1 {status} As Asked", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        lines += ["content-type: application/json", "connection: close", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()


def faults_of(headers: dict[str, str], body: bytes) -> list[dict[str, str]]:
    """What a registry has to say against a contribution."""
    issues = []

    def need(ok: object, path: str, message: str) -> None:
        if not ok:
            issues.append({"path": path, "message": message})

    need(headers.get("kp-schema-version") == "v1", "KP-Schema-Version", "must be v1")
    digest = hashlib.sha256(body).hexdigest()
    need(headers.get("idempotency-key") == digest, "Idempotency-Key", "must be the body's SHA-256")
    try:
        unit = json.loads(body)
        metadata, outcome = unit["metadata"], unit["outcome"]
        need(unit["@context"] == CONTEXT, "@context", "unknown")
        need(unit["@type"] == "ReasoningTrace", "@type", "unknown")
        need(unit["id"].startswith("kp:trace:"), "id", "not a trace id")
        need(metadata["created_at"].endswith("Z"), "metadata.created_at", "must end in Z")
        need(metadata["task_domain"], "metadata.task_domain", "empty")
        need(0 <= metadata["quality_score"] <= 1, "metadata.quality_score", "out of range")
        need(metadata["visibility"] in ("org", "network"), "metadata.visibility", "private")
        need(unit["task"]["objective"], "task.objective", "empty")
        need(unit["steps"], "steps", "none")
        need(0 <= outcome["confidence"] <= 1, "outcome.confidence", "out of range")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        need(False, "", f"cannot be read: {error!r}")
    return issues
