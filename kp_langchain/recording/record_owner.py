"""What the records of one recorder have in common, and hold on to."""

from __future__ import annotations

from dataclasses import dataclass

from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.counters import Counters


@dataclass(frozen=True, slots=True, eq=False)
class RecordOwner:
    """The recorder that a record belongs to, as far as the record needs it.

    Each recorder has one of its own: two records are of one recorder if their owner is the same
    object.

    Attributes:
        bounds: What is kept at most of each record.
        counters: Where the fates of runs are counted.
        scope: Recorders of equal scope may resume each other's paused runs.
    """

    bounds: Bounds
    counters: Counters
    scope: object = None
