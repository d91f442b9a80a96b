"""`ShownTrace`: a kept trace that a run was shown as an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """A kept trace that a run was shown, or would have been if it had not been held out.

    Attributes:
        trace_id: The id of the kept trace.
        rank: Its place among those of the run, from 1.
        similarity: The similarity of its task to that of the run, 0 to 1.
        held_out: Whether the run was not shown it, so that such runs can be compared.
    """

    trace_id: str
    rank: int
    similarity: float
    held_out: bool = False

    def to_list(self) -> list[Any]:
        """Return it as JSON-like values."""
        return [self.trace_id, self.rank, self.similarity, self.held_out]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Self:
        """Return what `to_list` wrote."""
        trace_id, rank, similarity, held_out = values
        return cls(str(trace_id), int(rank), float(similarity), bool(held_out))
