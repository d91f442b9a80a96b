"""How much of a run is recorded at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MARGIN_CHARS: Final = 2048
"""Characters kept on each side of a cut until redaction, which needs to see whole secrets."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the recorder keeps at most.

    Attributes:
        text_chars: Characters of one step's text, and of one step's input; see `raw_text_chars`.
        run_chars: Characters of all texts of one run's steps. The texts of further steps are left
            out and counted. The objective and the answer are kept besides, each within
            `text_chars`.
        steps: Starts, ends and errors of calls of one run. What lies between the first half and
            the last half of them is dropped and counted.
        open_runs: Root runs that have not ended. For a new one beyond that, the one without an
            event for longest is abandoned.
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
