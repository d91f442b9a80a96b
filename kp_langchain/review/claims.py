"""What an answer claims, and which of its numbers and names stand in what the tools returned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.word_lists import DONE, UNABLE, UNSURE, Text

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_ANSWER_CHARS = 10_000
_SOURCE_CHARS = 1_000_000
_LIST_NUMBER = re.compile(r"^[ \t]*(?:[A-Z][a-z]+ )?\d{1,3}[.):](?= )", re.MULTILINE)
_TONES = (
    ("is done", DONE),
    ("was not able", UNABLE),
    ("is not sure", UNSURE),
)


@dataclass(frozen=True, slots=True)
class Claims:
    """What the answer of a run claims.

    Attributes:
        tone: What its words say: `is done`, `was not able`, `is not sure`.
        seen: Its numbers and names that a tool's output has.
        unseen: Those that neither an output nor the task has.
    """

    tone: tuple[str, ...]
    seen: tuple[str, ...]
    unseen: tuple[str, ...]

    def text(self, most: int) -> str:
        """Return them in a few words; "" for none.

        Args:
            most: Name at most so many numbers and names of each kind.
        """
        parts = [f"it {' and '.join(self.tone)}"] if self.tone else []
        if self.unseen:
            parts.append(f"in no output: {_listed(self.unseen, most)}")
        if self.seen:
            parts.append(f"in an output: {_listed(self.seen, most)}")
        return "; ".join(parts)


def claims_of(trace: ReasoningTrace) -> Claims:
    """Return what the answer of a trace claims."""
    # The numbers of a list, or of a step such as "Thought 3:", claim nothing.
    result = _LIST_NUMBER.sub("", trace.outcome.result_summary[:_ANSWER_CHARS])
    answer = Text(result, _ANSWER_CHARS)
    outputs = "\n".join(step.content or "" for step in trace.steps if step.type == "observation")
    source, task = Text(outputs, _SOURCE_CHARS), Text(trace.task.objective, _ANSWER_CHARS)
    names = (name for name in answer.names() if _is_name(name, answer.raw))
    stated = dict.fromkeys([*answer.numbers(), *names])
    new = [item for item in stated if not _has(task, item)]  # the task claims nothing
    return Claims(
        tone=tuple(words for words, signal in _TONES if signal.count(answer)),
        seen=tuple(item for item in new if _has(source, item)),
        unseen=tuple(item for item in new if not _has(source, item)),
    )


def _has(text: Text, item: str) -> bool:
    """Return whether a text has a word, or a number that may be part of a longer time or date."""
    if not item[0].isdigit():
        return item.lower() in text.vocabulary
    return re.search(rf"(?<!\d){re.escape(item)}(?!\d)", text.raw) is not None


def _is_name(word: str, text: str) -> bool:
    """Return whether a capitalised word stands anywhere but at the beginning of a sentence."""
    at = text.find(word)
    while at >= 0:
        before = text[:at].rstrip(" \"'“(*_`")
        if before and before[-1] not in ".!?:\n-•#":
            return True
        at = text.find(word, at + 1)
    return False


def _listed(items: Sequence[str], most: int) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
