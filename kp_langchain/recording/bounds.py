"""Names, counts, and reads of a user's values that are bounded and never raise.

Everything that reads a user's value runs inside the user's agent. So no value is changed, and what
raises leaves a default.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.values import clip

if TYPE_CHECKING:
    from kp_langchain.config import Settings

NAME_CHARS: Final = 200
"""Characters kept of a name or id: of a run, tool, thread or checkpoint."""
MARGIN_CHARS: Final = 2048
"""Characters kept on each side of a cut until redaction, which needs to see whole secrets."""


def raw_text_chars(settings: Settings) -> int:
    """Return how much is kept of one text until it is redacted: a margin more beside each cut."""
    return settings.max_text_chars + 2 * MARGIN_CHARS


COUNTERS: Final = (
    "runs", "scored", "kept", "below_threshold", "twin", "cancelled", "abandoned",
    "handed_over", "paused", "empty", "dropped", "failed", "not_stored", "callback_errors",
    "outcome_errors", "redaction_errors", "on_scored_errors", "dropped_steps",
    "dropped_texts", "queued", "waiting_to_store", "over_budget", "verifier_errors",
    "verifier_timeouts", "verifiers_skipped", "by_verifiers", "rescored", "raised",
    "verdict_errors", "scorer_errors", "adopted", "continued", "scores_sent", "scores_failed",
    "scores_without_trace",
)  # fmt: skip
"""The names of the counters that `KPCallbackHandler.stats` explains."""


class Counters:
    """A count per name; `add` is exact under threads, and may be re-entered."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = ForkSafeLock()
        with _all_lock:
            _all_counters.add(self)

    def add(self, name: str, n: int = 1) -> None:
        """Add `n`, which may be negative, to the count called `name`."""
        with self._lock:
            self._counts[name] += n

    def report_failure(self, name: str, what: str, error: BaseException) -> None:
        """Count a failure, and warn of it once for each kind.

        Args:
            name: The name of the count.
            what: What failed, as the beginning of a sentence.
            error: The error.
        """
        self.add(name)
        warn_once(
            f"{name}:{what}:{type(error).__name__}",
            "%s (%s); counted under '%s'",
            what,
            describe_error(error),
            name,
        )

    def counts(self) -> dict[str, int]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)


def total(name: str) -> int:
    """Return the sum of the counts called `name` in this process."""
    with _all_lock:
        all_counters = list(_all_counters)
    return sum(counters.counts().get(name, 0) for counters in all_counters)


_all_counters: weakref.WeakSet[Counters] = weakref.WeakSet()
_all_lock = ForkSafeLock()

# ------------------------------------------------------------------ reads of a user's values

_Reader = TypeVar("_Reader", bound=Callable[..., Any])


def default_on_error(default: object) -> Callable[[_Reader], _Reader]:
    """Decorate a function that reads a user's value to return `default` if that raises."""

    def decorate(read: _Reader) -> _Reader:
        @wraps(read)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return read(*args, **kwargs)
            except Exception:  # noqa: BLE001 - the user's own value may do anything
                return default

        return cast("_Reader", call)

    return decorate


def member(value: object, name: str) -> Any:
    """Return the item of a dict, or the attribute of another object; None if there is none."""
    try:
        return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    except Exception:  # noqa: BLE001 - the user's own class may do anything
        return None


def short_name(name: object) -> str:
    """Return the name of a run or tool, cut to `NAME_CHARS`; "" for anything but a text."""
    if type(name) is str and len(name) <= NAME_CHARS:
        return name
    return clip(name, NAME_CHARS) if isinstance(name, str) else ""
