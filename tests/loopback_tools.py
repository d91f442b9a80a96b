"""Servers on the loopback interface in place of tracing tools, and an address nobody listens at."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

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


class LoopbackTool:
    """A server that records what the clients of tracing tools send.

    For a `with` block; `requests` holds what was asked.

    Args:
        answer: Returns the status and the JSON value that answer a request; may be replaced.
    """

    def __init__(self, answer: Answer) -> None:
        self.requests: list[Request] = []
        self.answer = answer

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

    def sent_to(self, path_end: str, method: str = "POST") -> list[Request]:
        return [r for r in self.requests if r.method == method and r.path.endswith(path_end)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tool = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

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


def spans_in_memory() -> tuple[Any, Any]:
    """Return an exporter of OpenTelemetry that keeps spans, and a provider that gives it all."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


@contextmanager
def unheard_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as unheard:
        unheard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may follow
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]
