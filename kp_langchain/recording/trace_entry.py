"""What a scorer says of a trace that others are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain.scoring.novelty_memory import MemoryEntry
from kp_langchain.scoring.repeats import fingerprint
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.scoring.trace_text import embedded_text

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace


def entry_of(scorer: object, trace: ReasoningTrace) -> MemoryEntry:
    """Return a trace's text and vector as others are compared with it.

    Args:
        scorer: The scorer that has just scored the trace, on this thread. One that is no `Scorer`
            has no vector that is known to be usable, so only the same text is recognised.
        trace: The trace.
    """
    if isinstance(scorer, Scorer):
        try:
            entry: object = scorer.entry(trace)
        except Exception:  # noqa: BLE001 - a subclass of the user's; the run is scored
            entry = None
        if isinstance(entry, MemoryEntry):
            return entry
    return MemoryEntry(trace.id, fingerprint(embedded_text(trace)))
