"""Where the success and the confidence of a run came from, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.store import StoredRun

# The sources of a run that no verdict was given on.
_ASSUMED = (None, "default", "trace")


def outcome_text(run: StoredRun) -> str:
    """Return success and confidence of a run, and where they came from, in a few words."""
    word = "success" if run.success else "failure"
    confidence = f"confidence {run.confidence:.2f}"
    if run.confidence_source in _ASSUMED:
        return f"{word}, as the run ended; {confidence}, assumed, because no verdict states it"
    return f"{word}; {confidence}, from {run.confidence_source}"
