"""What people read about one run: outcome, agreement and flags in words, and its claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.wording import (
    DONE,
    QUESTION,
    UNABLE,
    UNSURE,
    Text,
)
from kp_langchain.scoring.evidence import flag_meaning

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun

# The sources of a run that no verdict was given on.
_ASSUMED = (None, "default", "trace")
_ANSWER_CHARS = 10_000
_SOURCE_CHARS = 1_000_000
_TONES = (("done", DONE), ("unable", UNABLE), ("unsure", UNSURE))
# The numbers of a list, or of a step such as "Thought 3:", claim nothing.
_LIST_NUMBER = re.compile(r"^[ \t]*(?:[A-Z][a-z]+ )?\d{1,3}[.):](?= )", re.MULTILINE)
# One capitalised word alone may be a heading, a month, or the beginning of a sentence.
_NAME = re.compile(
    r"\b(?!(?:An?|And|Are|As|At|But|By|For|From|He|Here|If|In|Is|It|My|No|Not|On|Or|Our|Please|She|So|That|"
    r"The|There|These|They|This|To|We|With|Yes|You|Your) )[A-Z][a-z]+(?: [A-Z][a-z]+)+"
)
# Letters and digits together, such as GV1N64; 10AM and 500USD are numbers.
_ID = re.compile(r"\b(?!\d+[A-Z]+\b)(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z\d]{5,}\b")
_DECIMAL = re.compile(r"\d+\.\d+")


def outcome_text(run: StoredRun) -> str:
    """Return success and confidence of a run, and where they came from, in a few words."""
    word = "success" if run.success else "failure"
    confidence = f"confidence {run.confidence:.2f}"
    if run.confidence_source in _ASSUMED:
        return f"{word}, as the run ended; {confidence}, assumed, because no verdict states it"
    return f"{word}; {confidence}, from {run.confidence_source}"


def agreement_text(run: StoredRun) -> str | None:
    """Return how far a run agrees with others of its task; None if it was compared with none."""
    agreement = run.breakdown.agreement
    return None if agreement is None else agreement.text()


def flag_texts(run: StoredRun) -> Iterator[str]:
    """Yield each flag of a run with its meaning, and whether it is why the run does not pass."""
    for flag in run.breakdown.flags:
        vetoes = "; vetoes the run" if flag == run.veto else ""
        yield f"{flag}: {flag_meaning(flag)}{vetoes}"


def twin_text(run: StoredRun) -> str:
    """Return in what a twin and the kept run are alike: in what they say, or in the task alone."""
    similarity = run.similarity_to_twin
    return "a run of the same task" if similarity is None else f"similarity {similarity:.2f}"


def replaced_text(run: StoredRun) -> str:
    """Return why another run took the place of a run."""
    how = "repeats it or is of its task," if run.gate == "worth" else "repeats it"
    return f"which {how} and was surer"


# ------------------------------------------------------------------ claims of an answer


@dataclass(frozen=True, slots=True)
class Claims:
    """What the answer of a run claims.

    Attributes:
        tone: What its words sound like: `done`, `unable`, `unsure`, `asking back`.
        seen: Its ids, numbers and names that a tool's output has.
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
        parts = [f"sounds {', '.join(self.tone)}"] if self.tone else []
        if self.unseen:
            parts.append(f"in no output: {_listed(self.unseen, most)}")
        if self.seen:
            parts.append(f"in an output: {_listed(self.seen, most)}")
        return "; ".join(parts)


def claims_of(trace: ReasoningTrace) -> Claims:
    """Return what the answer of a trace claims."""
    result = _LIST_NUMBER.sub("", trace.outcome.result_summary[:_ANSWER_CHARS])
    answer = Text(result, _ANSWER_CHARS)
    outputs = "\n".join(step.content or "" for step in trace.steps if step.type == "observation")
    source, task = Text(outputs, _SOURCE_CHARS), Text(trace.task.objective, _ANSWER_CHARS)
    numbers = Text(_ID.sub(" ", answer.raw), _ANSWER_CHARS).numbers()
    candidates = dict.fromkeys([*_ID.findall(answer.raw), *numbers, *_NAME.findall(answer.raw)])
    new = [item for item in candidates if not _has(task, item)]  # what the task says is no claim
    tone = [word for word, signal in _TONES if signal.count(answer)]
    if QUESTION.count(Text(answer.raw.rstrip()[-1:], 1)):
        tone.append("asking back")
    return Claims(
        tone=tuple(tone),
        seen=tuple(item for item in new if _has(source, item)),
        unseen=tuple(item for item in new if not _has(source, item)),
    )


def _has(text: Text, item: str) -> bool:
    """Return whether a text has a name or id, or a number, maybe as part of a time or date."""
    if any(character.isalpha() for character in item):
        return all(word.lower() in text.vocabulary for word in item.split())
    if re.search(rf"(?<![\d.]){re.escape(item)}(?!\d|\.\d)", text.raw) is not None:
        return True
    # An amount may have been written with fewer decimals.
    return "." in item and any(float(one) == _decimal(item) for one in _DECIMAL.findall(text.raw))


def _decimal(number: str) -> float | None:
    return float(number) if _DECIMAL.fullmatch(number) else None


def _listed(items: Sequence[str], most: int) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
