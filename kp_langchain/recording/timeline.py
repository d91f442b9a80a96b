"""`Timeline`: what happened in a run, in order; the middle of a very long run is dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kp_langchain.recording.calls import Call, Mark


class Timeline:
    """The first and the last marks of a run: starts, ends and errors of calls.

    Args:
        max_marks: The most marks to keep.

    Attributes:
        dropped: The number of marks that were dropped from the middle.
    """

    __slots__ = ("_first", "_last", "_max_first", "dropped")

    def __init__(self, max_marks: int) -> None:
        max_last = max_marks // 2
        self._max_first = max_marks - max_last
        self._first: list[tuple[Mark, Call]] = []
        self._last: deque[tuple[Mark, Call]] = deque(maxlen=max_last)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._last)

    def __iter__(self) -> Iterator[tuple[Mark, Call]]:
        yield from self._first
        yield from self._last

    def add(self, mark: Mark, call: Call) -> None:
        """Add a start, end or error of `call`."""
        if len(self._first) < self._max_first:
            self._first.append((mark, call))
            return
        if len(self._last) == self._last.maxlen:
            self.dropped += 1
        self._last.append((mark, call))

    def joined_to(self, earlier: Timeline) -> Timeline:
        """Return a timeline of `earlier` and then this one, of as many marks as `earlier` keeps."""
        joined = Timeline(earlier._max_first + (earlier._last.maxlen or 0))
        joined.dropped = earlier.dropped + self.dropped
        for mark, call in (*earlier, *self):
            joined.add(mark, call)
        return joined
