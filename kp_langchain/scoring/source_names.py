"""Where novelty and confidence came from: the words that a breakdown has for it."""

from __future__ import annotations

# Values of `ScoreBreakdown.novelty_source`; `embedding.no_embedding_reasons` has the others.
NEAREST = "nearest remembered trace"
REPEAT = "exact repeat"
EMPTY_CACHE = "empty cache"
MEMORY_FAILED = "memory failed"  # followed by a colon and the type of the error

TRACE_SOURCE = "trace"
"""The `ScoreBreakdown.confidence_source` of a confidence that the trace alone states."""
