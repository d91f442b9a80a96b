"""What is kept at most, what the records of one recorder share, and reads within these bounds.

Everything that reads a user's value runs inside the user's agent. So no value is changed, and what
raises leaves a default. A container may be endless, so only its first items are read. A text is
cut to a bound: both ends stay, and a mark between them counts what is left out.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kp_langchain._forksafe import ForkSafeLock

if TYPE_CHECKING:
    from kp_langchain.config import Settings

MAX_ITEMS: Final = 200
"""Items that are read of one container."""
MAX_ALL_ITEMS: Final = 1000
"""Items that are read of one value, those of nested containers included."""
MAX_DEPTH: Final = 8
"""Levels of nesting that are read of one value."""
MAPPING: Final = (dict, Mapping)
"""For `isinstance`: `dict` first, because asking the abstract class costs ten times as much."""
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
    "scorer_errors", "adopted", "continued", "scores_sent", "scores_failed", "scores_dropped",
    "scores_without_trace", "scores_queued",
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
        namespace_keys: The names in the metadata under which a namespace is.
        is_live: Whether the events come from runs around this code, whose ids LangChain's context
            names; False for runs that are played again.
        keeps_output: Whether a record holds on to what the root run returned.
        objective_of: The user's function that reads the objective from a root run's inputs, before
            the usual places are searched; returns "" if it finds none. Must not raise.
    """

    bounds: Bounds
    counters: Counters
    namespace_keys: tuple[str, ...] = ()
    is_live: bool = False
    keeps_output: bool = False
    objective_of: Callable[[Any], str] | None = None


_all_counters: weakref.WeakSet[Counters] = weakref.WeakSet()
_all_lock = ForkSafeLock()

# ------------------------------------------------------------------ reads of a user's values

_LEFT_OUT = "characters left out] ..."
_MARK = re.compile(r"\.\.\. \[(\d{1,15}) " + re.escape(_LEFT_OUT))
_MARK_CHARS = 50
_TYPE_CHARS = 100
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


def clip(text: str, limit: int, *, margin: int = 0) -> str:
    """Return `text` cut to `limit` characters: both ends stay, a mark between counts the rest.

    A task may be stated at the end of a long prompt, and the last lines of a long output often say
    how it went. A text that was cut before is cut at the same place. An instance of a subclass of
    `str` becomes a plain `str`.

    Args:
        text: The text.
        limit: Characters to keep, the mark included. If the mark alone is longer, it is returned.
        margin: Characters to leave out on each side of every earlier cut, even where the text is
            within the limit, because a fragment of a secret may stand there.
    """
    if type(text) is not str:
        text = str.__str__(text)
    if margin and _LEFT_OUT in text:
        text = _without_margins(text, margin)
    return text if len(text) <= limit else _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    """Return a text without its middle, or without what surrounds the earlier cut that is there."""
    size = len(text)
    start = stop = size // 2
    hidden = 0
    if mark := _mark_near(text, start, limit):
        start, stop = mark.span()
        hidden = int(mark[1]) - (stop - start)
    head, tail, note = 0, 0, ""
    for _ in range(3):  # a longer mark leaves out more, which it has to count
        room = max(0, limit - len(note))
        head = min(start, max(room - room // 2, room - (size - stop)))
        tail = min(size - stop, room - head)
        note = _mark(size - head - tail + hidden)
    return f"{text[:head]}{note}{text[size - tail :]}"


def _mark_near(text: str, middle: int, reach: int) -> re.Match[str] | None:
    """Return the mark of an earlier cut that is nearest to the middle of a text."""
    start, stop = max(0, middle - reach - _MARK_CHARS), middle + reach + _MARK_CHARS
    if text.find(_LEFT_OUT, start, stop) < 0:  # a hundred times as fast as the expression
        return None
    marks = _MARK.finditer(text, start, stop)
    return min(marks, key=lambda one: abs(one.start() + one.end() - 2 * middle), default=None)


def _without_margins(text: str, margin: int) -> str:
    """Leave out `margin` characters on each side of every mark, since any of them may be ours."""
    first, *others = _MARK.split(text)  # texts, and between them what each mark counts
    out = first[: max(0, len(first) - margin)]
    left_out = len(first) - len(out)
    while others:
        count, part, *others = others
        kept = part[margin : max(margin, len(part) - margin) if others else None]
        left_out += int(count) + len(part) - len(kept)
        if kept or not others:
            out, left_out = f"{out}{_mark(left_out)}{kept}", 0
    return out


def _mark(left_out: int) -> str:
    return f"... [{left_out} {_LEFT_OUT}"


def join_texts(texts: Iterable[str], limit: int, separator: str = "\n\n") -> str:
    """Join texts of at most `limit` characters each, and cut the whole to `limit`."""
    text = separator.join(filter(None, texts))
    return text if len(text) <= limit else _cut(text, limit)


def clean(text: str) -> str:
    """Replace what UTF-8 or a database cannot hold: lone surrogates and NUL."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def short_name(name: object) -> str:
    """Return the name of a run or tool, cut to `NAME_CHARS`; "" for anything but a text."""
    if type(name) is str and len(name) <= NAME_CHARS:
        return name
    return clip(name, NAME_CHARS) if isinstance(name, str) else ""


def type_name(value: object) -> str:
    """Return the name of a value's type in angle brackets, for a value that cannot be read."""
    return f"<{clip(type(value).__name__, _TYPE_CHARS)}>"
