"""Two traces side by side, aligned by their tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kp_langchain.review.calls import TracedCall

_MOST_CALLS = 2000  # aligning so many takes two seconds
# So that no number of equal inputs outweighs one more pair of the same tool.
_SAME_TOOL, _SAME_INPUT = 10_000, 1


@dataclass(frozen=True, slots=True)
class AlignedCalls:
    """A tool call of one trace beside that of another.

    Attributes:
        left: The call of the first trace; None if that has no counterpart of `right`.
        right: The call of the second trace; None if that has no counterpart of `left`.
    """

    left: TracedCall | None
    right: TracedCall | None

    @property
    def is_same(self) -> bool:
        """Whether both call the same tool with the same input."""
        return bool(self.left and self.right and self.left.input == self.right.input)


def align(left: Sequence[TracedCall], right: Sequence[TracedCall]) -> list[AlignedCalls]:
    """Align the tool calls of two traces by their longest common subsequence.

    Calls of the same tool are counterparts. Of the alignments with most counterparts, one with most
    equal inputs is returned. Only the first 2,000 calls of a trace are aligned.

    Args:
        left: The calls of the first trace.
        right: The calls of the second trace.
    """
    best = _best_values(left[:_MOST_CALLS], right[:_MOST_CALLS])
    rows: list[AlignedCalls] = []
    at, beside = 0, 0
    while at < len(best) - 1 and beside < len(best[0]) - 1:
        value = _value(left[at], right[beside])
        if value and best[at][beside] == best[at + 1][beside + 1] + value:
            rows.append(AlignedCalls(left[at], right[beside]))
            at, beside = at + 1, beside + 1
        elif best[at][beside] == best[at + 1][beside]:
            rows.append(AlignedCalls(left[at], None))
            at += 1
        else:
            rows.append(AlignedCalls(None, right[beside]))
            beside += 1
    rows += [AlignedCalls(call, None) for call in left[at:]]
    return rows + [AlignedCalls(None, call) for call in right[beside:]]


def _best_values(left: Sequence[TracedCall], right: Sequence[TracedCall]) -> list[list[int]]:
    """Return the value of the best alignment of what follows each pair of positions."""
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for at in range(len(left) - 1, -1, -1):
        row, below = best[at], best[at + 1]
        for beside in range(len(right) - 1, -1, -1):
            value = _value(left[at], right[beside])
            paired = below[beside + 1] + value if value else 0
            row[beside] = max(paired, below[beside], row[beside + 1])
    return best


def _value(left: TracedCall, right: TracedCall) -> int:
    if left.tool != right.tool:
        return 0
    return _SAME_TOOL + (_SAME_INPUT if left.input == right.input else 0)
