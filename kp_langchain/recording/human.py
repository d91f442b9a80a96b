"""What a human is asked and answers, and decides on a paused run.

An answer may be a secret that nothing else marks. This runs in the agent's thread, so only the ends
of questions and short answers are kept. Whether a question asks for a secret is decided on the
engine's thread.

LangGraph leaves the form of the value with which a run is resumed to the graph. This module reads
truth values, English words, and what langchain's middleware and the agent inbox send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from kp_langchain.recording.calls import Call
from kp_langchain.recording.messages import NOT_A_MODEL, content_text, role_and_content
from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, attribute, default_on_error
from kp_langchain.recording.values import as_text
from kp_langchain.redaction.limits import ANSWER_CHARS, ASKED_CHARS

HumanDecision = Literal["approved", "rejected", "unclear"]

_MAX_EXCHANGES: Final = 50
_LONGEST_READ_CHARS = 4000
_MAX_MESSAGES = 20
_MAX_ANSWERS = 20
_HUMAN = ("human", "user")
_ASKS_HUMAN = re.compile(
    r"(?:ask|prompt|query|request|get|contact|consult)?(?:_?from|_?the)?_?(?:human|user)"
    r"(?:_?(?:for_?)?(?:input|question|assistance|help|answer|feedback|response|info|information))?"
    r"|ask_?(?:for_?)?(?:input|question)",
    re.IGNORECASE,
)
_APPROVED = frozenset(
    "accept accepted allow allowed approve approved confirm confirmed continue edit edited ok okay "
    "proceed true y yes".split()
)
_REJECTED = frozenset(
    "abort aborted cancel cancelled decline declined denied deny disallow false ignore n no refuse "
    "refused reject rejected stop".split()
)
_FIELDS = ("type", "action", "decision", "choice", "answer", "status")
_MAX_WORD_CHARS = 20
_INTERRUPT_ID = re.compile("[0-9a-f]{32}")


class Exchange(NamedTuple):
    """A question, or its end, and what the human answered.

    Attributes:
        question: The end of the question.
        answer: The answer.
        is_step: Whether a tool asked, whose observation the answer is.
    """

    question: str
    answer: str
    is_step: bool = False


@dataclass(slots=True)
class HumanInput:
    """What a human has to do with a run.

    Attributes:
        question: Why the run paused, as the graph tells the human who is to decide; "" if it did
            not.
        answers: The texts with which a human resumed it.
        decision: What a human decided on the paused run; None where nobody was asked.
        exchanges: What was asked and answered, in the messages that models were given too.
    """

    question: str = ""
    answers: tuple[str, ...] = ()
    decision: HumanDecision | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def resume(self, command: object) -> None:
        """Note the value with which a run is resumed, by LangGraph's `Command`."""
        self.decision = decision_in(command)
        self.answers = answers_in(command)

    def note(self, exchanges: Iterable[Exchange]) -> None:
        """Remember what was asked and answered."""
        for exchange in exchanges:
            if len(self.exchanges) < _MAX_EXCHANGES and exchange not in self.exchanges:
                self.exchanges.append(exchange)

    def note_answered(self, earlier: HumanInput) -> None:
        """Remember what was answered to the question of a part before a pause."""
        answers, self.answers = self.answers, ()
        # The tool that asked may return the answer.
        for is_step in (False, True):
            self.note(Exchange(earlier.question, answer, is_step) for answer in answers)


@default_on_error(())
def newest_exchanges(messages: object) -> Iterable[Exchange]:
    """Return the last exchanges in the messages for a model, if the last message is a human's."""
    if not isinstance(messages, (list, tuple)) or len(messages) < 2:
        return ()
    if getattr(messages[-1], "type", None) == "tool":  # like most
        return ()
    is_answer = role_and_content(messages[-1])[0] in _HUMAN
    return exchanges_in(messages[-_MAX_MESSAGES:]) if is_answer else ()


@default_on_error(())
def exchanges_in(messages: Sequence[object]) -> Iterable[Exchange]:
    """Return what a model asked and a human then answered.

    Args:
        messages: The messages in any form that LangChain reads.
    """
    exchanges: list[Exchange] = []
    question: object = None
    for message in messages:
        role, content = role_and_content(message)
        if role in _HUMAN:
            if question and content and len(content) <= ANSWER_CHARS:  # type: ignore[arg-type]
                answer = content_text(content, ANSWER_CHARS)
                exchanges.append(Exchange(_end_of(question), answer))
        elif role not in NOT_A_MODEL:
            question = content
    return exchanges


def _end_of(content: object) -> str:
    text = content if isinstance(content, str) else content_text(content, _LONGEST_READ_CHARS)
    return text[-ASKED_CHARS:]


@default_on_error("")
def question_in(interrupt: object) -> str:
    """Return what LangGraph's exception says of why a graph waits for a human."""
    arguments: Any = attribute(interrupt, "args")
    interrupts = arguments[0] if arguments and isinstance(arguments[0], (list, tuple)) else ()
    values = (attribute(one, "value") for one in interrupts[:_MAX_ANSWERS])
    return _end_of("\n".join(as_text(value, _LONGEST_READ_CHARS) for value in values))


@default_on_error(())
def answers_in(command: object) -> tuple[str, ...]:
    """Return the short texts in the value with which a human resumes a graph.

    Args:
        command: LangGraph's `Command`.
    """
    return tuple(islice(_short_texts(attribute(command, "resume"), 0), _MAX_ANSWERS))


def _short_texts(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if value and len(value) <= ANSWER_CHARS:
            yield str.__str__(value)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12:
        yield str(int(value))
    elif depth < 3 and isinstance(value, (*MAPPING, list, tuple)):
        items = value.values() if isinstance(value, MAPPING) else value
        for item in islice(items, _MAX_ANSWERS):
            yield from _short_texts(item, depth + 1)


def exchange_by_tool(call: Call) -> Iterator[Exchange]:
    """Yield the question that a tool puts to a human, by its name, with the answer."""
    if call.kind != "tool" or not isinstance(call.text, str) or len(call.text) > ANSWER_CHARS:
        return
    texts = [value for value in (call.input or {}).values() if isinstance(value, str)]
    if len(texts) == 1 and call.text and _ASKS_HUMAN.fullmatch(call.name):
        yield Exchange(_end_of(texts[0]), call.text, is_step=True)


@default_on_error("unclear")
def decision_in(command: object) -> HumanDecision:
    """Return what a human decided.

    Args:
        command: LangGraph's `Command` with which a run is resumed.

    Returns:
        "unclear" if the value does not show it, or some calls were approved and others were not.
    """
    value = attribute(command, "resume")
    if isinstance(value, MAPPING) and _names_interrupts(value):
        return _unanimous(map(_decision, islice(value.values(), MAX_ITEMS)))
    return _decision(value)


def _names_interrupts(value: Mapping[Any, Any]) -> bool:
    key = next(iter(value), None)
    return isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) is not None


def _decision(value: object) -> HumanDecision:
    if isinstance(value, MAPPING):
        value = value.get("decisions", value)
    if isinstance(value, (list, tuple)):
        return _unanimous(map(_one_decision, value[:MAX_ITEMS]))
    return _one_decision(value)


def _one_decision(value: object) -> HumanDecision:
    if not isinstance(value, MAPPING):
        return _scalar_decision(value)
    decisions = [_scalar_decision(value[field]) for field in _FIELDS if field in value]
    decisions += [_scalar_decision(value[word]) for word in _APPROVED if word in value]
    decisions += [_OPPOSITE[_scalar_decision(value[word])] for word in _REJECTED if word in value]
    return _unanimous(decisions)


def _scalar_decision(value: object) -> HumanDecision:
    if isinstance(value, bool):
        return "approved" if value else "rejected"
    if not isinstance(value, str):
        return "unclear"
    word = re.split("[,.;:!]", value[:_MAX_WORD_CHARS], maxsplit=1)[0].strip().lower()
    return "approved" if word in _APPROVED else "rejected" if word in _REJECTED else "unclear"


def _unanimous(decisions: Iterable[HumanDecision]) -> HumanDecision:
    """Return the decision that all agree on; "unclear" if they differ or there are none."""
    distinct = set(decisions)
    return distinct.pop() if len(distinct) == 1 else "unclear"


_OPPOSITE: dict[HumanDecision, HumanDecision] = {
    "approved": "rejected",
    "rejected": "approved",
    "unclear": "unclear",
}
