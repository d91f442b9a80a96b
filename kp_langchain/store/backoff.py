"""`Backoff`: growing pauses between tries of what keeps failing."""

from __future__ import annotations

import time

# A dead server costs 10 s a try, which what waits behind it would wait for.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Backoff:
    """When to try again: after 1 s, then after pauses that double up to a minute.

    Attributes:
        failures: The number of failures in a row.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._due_at = float("-inf")  # by the monotonic clock

    @property
    def is_pausing(self) -> bool:
        """Whether it is too early to try again."""
        return self.failures > 0 and time.monotonic() < self._due_at

    @property
    def pause_left_s(self) -> float:
        """The seconds until it is time to try again."""
        return max(0.0, self._due_at - time.monotonic())

    def note_failure(self) -> None:
        """Begin a pause."""
        self.failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10), _LONGEST_PAUSE_S)
        self._due_at = time.monotonic() + pause_s

    def note_success(self) -> None:
        """Forget the failures."""
        self.failures = 0

    def end_pause(self) -> None:
        """Allow the next try now, however little time has passed since the last failure."""
        self._due_at = float("-inf")
