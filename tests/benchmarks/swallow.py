"""A server on loopback that takes whatever it is sent and answers that all is well.

It is a process of its own, so that its work is not counted as the handler's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import urlopen

# What LangSmith asks before it sends; this is how its service answers.
_INFO = {
    "version": "0.12.0",
    "instance_flags": {"zstd_compression_enabled": True},
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_971_520,
    },
}
_received: list[int] = []  # lengths of bodies


class _Swallow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _read_body(self) -> int:
        length = 0
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                length += len(self.rfile.read(size + 2)) - 2
            self.rfile.readline()
        else:
            length = len(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        return length

    def _take(self) -> None:
        _received.append(self._read_body())
        spans = self.path.endswith("/traces")
        answers = {"/info": _INFO, "/received": sum(_received)}
        body = b"" if spans else json.dumps(answers.get(self.path, {})).encode()
        self.send_response(200 if spans or self.command == "GET" else 202)
        self.send_header("Content-Type", "application/x-protobuf" if spans else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = _take  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Server:
    """The server, as its users see it."""

    address: str

    def received_bytes(self) -> int:
        """Bytes of all bodies so far."""
        with urlopen(f"{self.address}/received") as answer:  # noqa: S310 - our own address
            return int(answer.read())


@contextmanager
def swallowing() -> Iterator[Server]:
    """Run the server until the end of the block."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline().strip())
        finally:
            process.stdin.close()  # it ends with us, however we end
            process.wait(10)


def main() -> None:
    """Be the server until whoever started it goes away."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Swallow)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
