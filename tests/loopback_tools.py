"""Servers on the loopback interface in place of tracing tools, and an address nobody listens at."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
Answer = Callable[["Request"], tuple[int, Any]]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Silent(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Loopback:
    """A server on loopback, for a `with` block."""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        # It looks so often, in seconds, whether it is to end.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class LoopbackTool(_Loopback):
    """A server that records what the clients of tracing tools send.

    For a `with` block; `requests` holds what was asked.

    Args:
        answer: Returns the status and the JSON value that answer a request; may be replaced.
    """

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Request] = []
        self.answer = answer

    def sent_to(self, path_end: str, method: str = "POST") -> list[Request]:
        return [r for r in self.requests if r.method == method and r.path.endswith(path_end)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tool = self

        class Handler(_Silent):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = Request(self.command, url.path, url.query, body)
                tool.requests.append(request)
                status, value = tool.answer(request)
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - named by the library

        return Handler


class LoopbackLangSmith(_Loopback):
    """LangSmith's feedback endpoint: real HTTP, pages, keys and faults.

    For a `with` block; `feedback` holds what was given, `asked` the query of each request.

    Args:
        key: The only key that may read.
        status: Answer everything with this instead.
        body: Answer with this instead of feedback.
        deaf: Answer each request with all there is, whatever page was asked for.
    """

    def __init__(
        self,
        *,
        key: str = "ls-key",
        status: int | None = None,
        body: bytes | None = None,
        deaf: bool = False,
    ) -> None:
        self.key, self.status, self.body, self.deaf = key, status, body, deaf
        self.feedback: list[dict[str, Any]] = []
        self.asked: list[dict[str, list[str]]] = []
        self.methods: set[str] = set()

    def give(
        self, run_id: str, score: Any = None, *, key: str = "correctness", **more: Any
    ) -> None:
        """Give feedback on a run, a minute after the last."""
        at = (BEGAN + timedelta(minutes=len(self.feedback))).isoformat()
        given = {
            "id": str(uuid.uuid4()),
            "created_at": at,
            "modified_at": at,
            "run_id": run_id,
            "trace_id": run_id,
            "key": key,
            "score": score,
            "value": None,
            "comment": None,
            "correction": None,
            "feedback_source": {"type": "app", "metadata": None},
        }
        self.feedback.append(given | more)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        langsmith = self

        class Handler(_Silent):
            def do_GET(self) -> None:
                langsmith.methods.add("GET")
                status, content = langsmith._answer(self.path, self.headers.get("x-api-key"))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.send_header("retry-after", "3600")
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self) -> None:
                langsmith.methods.add("POST")
                self.send_error(405)

            do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815 - named by the library

        return Handler

    def _answer(self, path: str, key: str | None) -> tuple[int, bytes]:
        url = urlsplit(path)
        query = parse_qs(url.query)
        self.asked.append(query)
        if self.status is not None:
            return self.status, b'{"detail": "as asked"}'
        if url.path != "/feedback":
            return 404, b'{"detail": "not found"}'
        if key != self.key:
            return 401, b'{"detail": "invalid token"}'
        if self.body is not None:
            return 200, self.body
        wanted, keys = set(query["run"]), set(query.get("key", ()))
        found = [
            one
            for one in self.feedback
            if self.deaf or (one["run_id"] in wanted and (not keys or one["key"] in keys))
        ]
        if not self.deaf:
            offset, limit = int(query["offset"][0]), int(query["limit"][0])
            found = found[offset : offset + limit]
        return 200, json.dumps(found).encode()


@contextmanager
def unheard_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as unheard:
        unheard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may follow
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]
