"""Where novelty and confidence came from: the words that a breakdown has for it."""

from __future__ import annotations

# Values of `ScoreBreakdown.novelty_source`; the others are those of `embedding.problems`.
NEAREST = "nearest remembered trace"
REPEAT = "exact repeat"
EMPTY_CACHE = "empty cache"

TRACE_SOURCE = "trace"
"""The `ScoreBreakdown.confidence_source` of a confidence that the trace alone states."""
