"""Calls the user's functions with a time limit, and counts and reports what fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kp_langchain._logging import describe_error, warn_once

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.worker import Worker

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UserFunctions:
    """Calls the user's functions for one handler.

    Attributes:
        lane: The worker on which they are called.
        time_limit_s: Longest wait for one call, in seconds.
        counters: Counts what fails.
    """

    lane: Worker
    time_limit_s: float
    counters: Counters

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function from a job of the lane.

        Raises:
            LateError: It takes longer than the limit, and is abandoned.
            BaseException: Whatever it raises.
        """
        return self.lane.call(function, self.time_limit_s)

    def report_failure(self, counter: str, what: str, error: BaseException) -> None:
        """Count a failure, and warn of it once for each kind.

        Args:
            counter: The count in `stats`.
            what: What failed, as the beginning of a sentence.
            error: The error.
        """
        self.counters.add(counter)
        warn_once(
            f"{counter}:{what}:{type(error).__name__}",
            "%s (%s); counted under '%s'",
            what,
            describe_error(error),
            counter,
        )
