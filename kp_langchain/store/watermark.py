"""`Watermark`: up to where a reader has seen the changes to a store."""

from __future__ import annotations

from typing import NamedTuple

DELETIONS = "deletions"
"""The name of the count of deletions."""


class Watermark(NamedTuple):
    """Up to where a reader has seen the changes to what is kept.

    Attributes:
        deletions: How often runs were deleted from the store.
        change: The number at which a next read begins; see `entry_queries.watermark`.
    """

    deletions: int
    change: int
