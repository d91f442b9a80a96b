"""`Example`: a kept trace that was found for a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.gate.run import ShownTrace
from kp_langchain.recall.few_shot import FewShot, compose_few_shot

if TYPE_CHECKING:
    from kp_langchain.recall.ranking import Trust
    from kp_langchain.schema import ReasoningTrace


@dataclass(frozen=True, slots=True)
class Example:
    """A kept trace that was found for a task.

    Attributes:
        trace: The trace.
        trace_id: Its id, as `StoredRun` has it.
        rank: Its place among those found, from 1.
        similarity: The similarity of the two tasks, 0 to 1.
        trust: Where its success comes from: a `verdict`, an `own` run, a `registry`.
        credit: By how much more runs succeeded that were shown it, -1 to 1; 0 if none were.
    """

    trace: ReasoningTrace
    trace_id: str
    rank: int
    similarity: float
    trust: Trust
    credit: float

    def as_text(self, *, max_tokens: int, with_outputs: bool) -> str:
        """Return it as an example for a prompt, with its rank for its number.

        Args:
            max_tokens: As for `to_few_shot`.
            with_outputs: As for `to_few_shot`.
        """
        return compose_few_shot(
            self.trace,
            trust=self.trust,
            max_tokens=max_tokens,
            with_outputs=with_outputs,
            first_number=self.rank,
        ).text

    def as_shown(self, *, held_out: bool = False) -> ShownTrace:
        """Return what the recall log has of it.

        Args:
            held_out: Whether the run is not shown it.
        """
        return ShownTrace(self.trace_id, self.rank, self.similarity, held_out)


@dataclass(frozen=True, slots=True)
class Examples:
    """What a search found for a task.

    Attributes:
        found: The examples, the best first; empty if none is good enough.
        floor: The similarity that was asked for, 0 to 1.
        reason: Why there are none, in words; empty if there are some.
        is_complete: Whether all kept traces of the domain were searched.
    """

    found: tuple[Example, ...] = ()
    floor: float = 0.0
    reason: str = ""
    is_complete: bool = True

    def compose(self, *, max_tokens: int = 800, with_outputs: bool = False) -> FewShot:
        """Return the examples as the text of a prompt, and which of them are shown.

        Args:
            max_tokens: As for `to_few_shot`.
            with_outputs: As for `to_few_shot`.
        """
        return compose_few_shot(
            [one.trace for one in self.found],
            trust=[one.trust for one in self.found],
            max_tokens=max_tokens,
            with_outputs=with_outputs,
        )
