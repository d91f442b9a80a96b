"""A time limit for a whole HTTP request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kp_langchain.errors import DeadlineError

_PIECE_BYTES = 2**14


class Deadline:
    """Ends a request that takes too long as a whole, although each of its steps is in time.

    It needs no thread, because none can be started while the interpreter shuts down.

    Args:
        seconds: The time limit of the request.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Limit the reads and writes of a new connection; httpx calls this for each of its events.

        Args:
            event: The name of the event.
            info: Its details.
        """
        if not event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        stream = info["return_value"]
        read, write = stream.read, stream.write

        def read_in_time(max_bytes: int, timeout: float | None = None) -> bytes:
            content: bytes = read(max_bytes, self._left_s(timeout))
            return content

        def write_in_time(buffer: bytes, timeout: float | None = None) -> None:
            for start in range(0, len(buffer), _PIECE_BYTES):
                write(buffer[start : start + _PIECE_BYTES], self._left_s(timeout))

        stream.read, stream.write = read_in_time, write_in_time

    def _left_s(self, step_s: float | None) -> float:
        left_s = self._at - time.monotonic()
        if left_s <= 0.0:
            raise DeadlineError
        return left_s if step_s is None else min(step_s, left_s)
