"""Growing pauses between tries of what keeps failing."""

from __future__ import annotations

import random
import time

from kp_langchain.errors import LateError

# A dead server costs 10 s a try, which what waits behind it would wait for.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row: twice as long each time.

    Half of it is random, so that processes that failed together do not try again together.
    Source: exponential backoff with equal jitter, M. Brooker 2015,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    Args:
        failures: The number of failures in a row.
        first_s: The longest wait after the first one, in seconds.
        longest_s: The longest wait after any, in seconds.
    """
    longest = min(longest_s, first_s * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


class Backoff:
    """When to try again: after a second at most, then after pauses that grow up to a minute.

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

    def check(self) -> None:
        """Raise `LateError` while it is too early to try again."""
        if self.is_pausing:
            raise LateError("the store failed a moment ago")

    def note_failure(self) -> None:
        """Begin a pause."""
        self.failures += 1
        pause = pause_s(self.failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._due_at = time.monotonic() + pause

    def note_success(self) -> None:
        """Forget the failures."""
        self.failures = 0

    def end_pause(self) -> None:
        """Allow the next try now, however little time has passed since the last failure."""
        self._due_at = float("-inf")
