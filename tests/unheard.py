"""An address at which nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unheard_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as unheard:
        unheard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may follow
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]
