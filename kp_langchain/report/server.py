"""Serves the page to a browser on this machine, and takes verdicts from it.

Other programs and pages must not reach it: it listens on the loopback address alone, its address
has a random token, and requests of another host name or origin are refused.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from kp_langchain.errors import KPError, UnknownRunError
from kp_langchain.verdict import Verdict

_HOST = "127.0.0.1"
_MOST_BODY_BYTES = 65_536
_TIMEOUT_S = 30.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

StoreVerdict = Callable[[str, Verdict], list[dict[str, Any]]]
"""Stores a verdict on a trace id, and returns the records of the runs that it changed."""


class ReportServer(ThreadingHTTPServer):
    """A server of one page.

    Args:
        make_page: Returns the page as it is now.
        store_verdict: Stores a verdict. It is called for one verdict at a time.
        port: The port; 0 for any that is free.

    Raises:
        KPError: The port cannot be used.
    """

    request_queue_size = 64
    daemon_threads = True  # a browser that keeps a connection open must not delay the end

    def __init__(
        self, make_page: Callable[[], str], store_verdict: StoreVerdict, *, port: int = 0
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self._make_page, self._store_verdict, self._lock = make_page, store_verdict, Lock()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise KPError(f"port {port} cannot be used: {error.strerror}") from error

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The values of the header Host that the page may be asked for with."""
        return f"{_HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def page(self) -> str:
        """Return the page as it is now."""
        with self._lock:
            return self._make_page()

    def store(self, trace_id: str, verdict: Verdict) -> list[dict[str, Any]]:
        """Store a verdict, and return the records of the runs that it changed."""
        with self._lock:
            return self._store_verdict(trace_id, verdict)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection; report anything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _RefusedError(Exception):
    """A request that is not answered as it asks."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = _TIMEOUT_S
    server_version, sys_version = "kp-langchain", ""

    def do_GET(self) -> None:
        """Answer with the page."""
        try:
            self._check(path="")
            self._answer(HTTPStatus.OK, self.server.page(), "text/html; charset=utf-8")
        except (KPError, _RefusedError) as error:
            self._refuse(error)

    def do_POST(self) -> None:
        """Store a verdict, and answer with what it changed."""
        try:
            self._check(path="verdicts", needs_origin=True)
            trace_id, verdict = _read_verdict(self._body())
            reply = json.dumps({"runs": self.server.store(trace_id, verdict)})
            self._answer(HTTPStatus.OK, reply, "application/json")
        except (KPError, _RefusedError) as error:
            self._refuse(error)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Print nothing: the address has the token."""

    def _check(self, *, path: str, needs_origin: bool = False) -> None:
        """Refuse a request unless its host, origin, token and path are right."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "the host is not this server")
        own_origin = f"http://{hosts[0].lower()}"
        if (needs_origin and not origins) or any(one != own_origin for one in origins):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "the request comes from another page")
        token, _, rest = self.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "the address has not the right token")
        if rest != path:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _body(self) -> bytes:
        if self.headers.get_content_type() != "application/json":
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "state the length of the body")
        if len(length) > len(str(_MOST_BODY_BYTES)) or int(length) > _MOST_BODY_BYTES:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_MOST_BODY_BYTES} bytes"
            )
        return self.rfile.read(int(length))

    def _refuse(self, error: Exception) -> None:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        if isinstance(error, _RefusedError):
            status = error.status
        elif isinstance(error, UnknownRunError):
            status = HTTPStatus.NOT_FOUND
        self.close_connection = True
        self._answer(status, json.dumps({"error": str(error)}), "application/json")

    def _answer(self, status: HTTPStatus, text: str, content_type: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _read_verdict(body: bytes) -> tuple[str, Verdict]:
    """Return the trace id and the verdict that a request states."""
    try:
        values = json.loads(body)
        trace_id, success, note = values["trace_id"], values["success"], values.get("note")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "send trace_id and success as JSON") from None
    if not (isinstance(trace_id, str) and trace_id and isinstance(success, bool)):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "trace_id is text, and success true or false")
    if not (note is None or isinstance(note, str)):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "note is text")
    return trace_id, Verdict(success, note=note or None, source="label")
