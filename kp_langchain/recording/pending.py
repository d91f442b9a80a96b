"""What the kinds of pending writes have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters

MAX_BATCH = 32
"""The most rows of one transaction."""


def count_as_dropped(counters: Counters) -> None:
    """Count what waited for the store as not stored."""
    counters.add("waiting_to_store", -1)
    counters.add("not_stored")


def warn_of_failed_write(location: str, what: str, error: BaseException) -> None:
    """Warn, once per store, thing and kind of error, that a write failed and will be retried.

    Args:
        location: Where the store is, without a password.
        what: What was to be written, such as `a run`.
        error: Why it failed.
    """
    warn_once(
        f"write:{what}:{location}:{type(error).__name__}",
        "%s cannot be kept in %s now (%s); it waits in memory and is tried again",
        what,
        location,
        describe_error(error),
    )
