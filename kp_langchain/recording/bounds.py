"""What is kept at most, what the records of one recorder share, and reads within these bounds.

Everything that reads a user's value runs inside the user's agent. So no value is changed, and what
raises leaves a default.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.values import clip

if TYPE_CHECKING:
    from kp_langchain.config import Settings

NAME_CHARS: Final = 200
"""Characters kept of a name or id: of a run, tool, thread or checkpoint."""
MARGIN_CHARS: Final = 2048
"""Characters kept on each side of a cut until redaction, which needs to see whole secrets."""

COUNTERS: Final = (
    "runs", "scored", "kept", "below_threshold", "twin", "cancelled", "abandoned",
    "handed_over", "paused", "empty", "dropped", "failed", "not_stored", "callback_errors",
    "outcome_errors", "redaction_errors", "on_scored_errors", "dropped_steps",
    "dropped_texts", "queued", "waiting_to_store", "over_budget", "verifier_errors",
    "verifier_timeouts", "verifiers_skipped", "by_verifiers", "rescored", "verdict_errors",
    "scorer_errors", "adopted", "continued", "scores_sent", "scores_failed",
    "scores_without_trace",
)  # fmt: skip
"""The names of the counters that `KPCallbackHandler.stats` explains."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that the recorder keeps.

    Attributes:
        text_chars: Characters of one step's text, and of one step's input; see `raw_text_chars`.
        run_chars: Characters of all texts of one run's steps. The texts of further steps are left
            out and counted. The objective and the answer do not count; each is kept within
            `text_chars`.
        steps: Starts, ends and errors of calls of one run. `Timeline` drops the middle of a longer
            run and counts it.
        open_runs: Root runs open at once. A further one makes the run without an event for longest
            count as abandoned.
        run_timeout_s: Seconds without an event after which a run is abandoned.
    """

    text_chars: int = 4000
    run_chars: int = 200_000
    steps: int = 1000
    open_runs: int = 1000
    run_timeout_s: float = 3600.0

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """Return the bounds of the settings."""
        return cls(
            text_chars=settings.max_text_chars,
            run_chars=settings.max_run_chars,
            steps=settings.max_steps,
            open_runs=settings.max_open_runs,
            run_timeout_s=settings.run_timeout_s,
        )

    @property
    def raw_text_chars(self) -> int:
        """Characters kept of one text or input until it is redacted: two margins more."""
        return self.text_chars + 2 * MARGIN_CHARS


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

    def counts(self) -> dict[str, int]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)


def total(name: str) -> int:
    """Return the sum of the counts called `name` in this process."""
    with _all_lock:
        all_counters = list(_all_counters)
    return sum(counters.counts().get(name, 0) for counters in all_counters)


@dataclass(frozen=True, slots=True, eq=False)
class RecordOwner:
    """The recorder that a record belongs to, as far as the record needs it.

    Each recorder has its own: two records belong to one recorder if their owner is the same object.

    Attributes:
        bounds: How much of each run is recorded at most.
        counters: Counts the fates of runs.
        is_live: Whether the events come from runs around this code, whose ids LangChain's context
            names; False for runs that are played again.
        keeps_output: Whether a record holds on to what the root run returned.
        objective_of: The user's function that reads the objective from a root run's inputs, before
            the usual places are searched.
    """

    bounds: Bounds
    counters: Counters
    is_live: bool = False
    keeps_output: bool = False
    objective_of: Callable[[Any], str | None] | None = None


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
