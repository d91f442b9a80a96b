"""What the records of one recorder share: their owner, and the most that is recorded of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kp_langchain.recording.counters import Counters

MARGIN_CHARS: Final = 2048
"""Characters kept on each side of a cut until redaction, which needs to see whole secrets."""


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

    @property
    def raw_text_chars(self) -> int:
        """Characters kept of one text or input until it is redacted: two margins more."""
        return self.text_chars + 2 * MARGIN_CHARS


@dataclass(frozen=True, slots=True, eq=False)
class RecordOwner:
    """The recorder that a record belongs to, as far as the record needs it.

    Each recorder has its own: two records belong to one recorder if their owner is the same object.

    Attributes:
        bounds: How much of each run is recorded at most.
        counters: Counts the fates of runs.
        scope: Recorders of equal scope may resume each other's paused runs.
        namespace_keys: The names in the metadata under which a namespace is.
    """

    bounds: Bounds
    counters: Counters
    scope: object = None
    namespace_keys: tuple[str, ...] = ()
