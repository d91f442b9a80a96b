"""Where the novelty of a score comes from: all values of `ScoreBreakdown.novelty_source`.

Each is also the reason why a text has no embedding (`Embedding.problem`), if that is the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Measured.
NEAREST = "nearest remembered trace"
REPEAT = "exact repeat"
# Not measured, so neutral.
EMPTY_CACHE = "empty cache"
LEFT_OUT = "remembered traces left out"
NO_EMBEDDER = "no embedder"
NOT_INSTALLED = "embeddings extra not installed"
STILL_LOADING = "embedding model still loading"
UNREADABLE = "unreadable"
# These are followed by a colon and the type of the error.
EMBEDDER_FAILED = "embedder failed"
MEMORY_FAILED = "memory failed"
SCORER_FAILED = "scorer failed"

_NOT_LOADED = "model not loaded"
_REASONS: Mapping[str, str] = MappingProxyType(
    {
        EMPTY_CACHE: "nothing to compare with",
        LEFT_OUT: "all that is remembered was shown to the run or is of the same run",
        STILL_LOADING: _NOT_LOADED,
        f"{EMBEDDER_FAILED}: ModelLoadError": _NOT_LOADED,
        UNREADABLE: "language the model cannot read",
    }
)


def is_measured(source: str) -> bool:
    """Return whether a trace was compared with a remembered one."""
    return source in (NEAREST, REPEAT)


def reason(source: str) -> str:
    """Return in words why novelty was not measured, or its source if that says it already."""
    return _REASONS.get(source, source)


def why_neutral(source: str) -> str:
    """Return what the breakdown says beside a novelty that was not measured."""
    words = source if reason(source) == _NOT_LOADED else reason(source)
    return f"neutral, {words}"
