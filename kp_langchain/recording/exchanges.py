"""What an assistant asks and a human answers: the answer may be a secret that nothing else marks.

This runs in the agent's thread, so only the ends of questions and short answers are kept. Whether a
question asks for a secret is decided on the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from kp_langchain.recording.calls import Call
from kp_langchain.recording.messages import NOT_A_MODEL, content_text, role_and_content
from kp_langchain.recording.plain_values import as_text
from kp_langchain.recording.safe_reads import MAPPING, attribute, default_on_error
from kp_langchain.redaction.limits import ANSWER_CHARS, ASKED_CHARS

MAX_EXCHANGES: Final = 50
"""The most exchanges that are kept of one run."""

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


@default_on_error(())
def newest_exchanges(messages: object) -> Iterable[Exchange]:
    """Return the last exchanges in the messages for a model, if the last message is a human's."""
    if not isinstance(messages, (list, tuple)) or len(messages) < 2:
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
