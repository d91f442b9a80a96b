"""What the records of one recorder share."""

from __future__ import annotations

from dataclasses import dataclass

from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.counters import Counters


@dataclass(frozen=True, slots=True, eq=False)
class RecordOwner:
    """The recorder that a record belongs to, as far as the record needs it.

    Each recorder has its own: two records belong to one recorder if their owner is the same object.

    Attributes:
        bounds: How much of each run is recorded at most.
        counters: Counts the fates of runs.
        scope: Recorders of equal scope may resume each other's paused runs.
        namespace_keys: The names in the metadata under which a namespace is.
    """

    bounds: Bounds
    counters: Counters
    scope: object = None
    namespace_keys: tuple[str, ...] = ()
