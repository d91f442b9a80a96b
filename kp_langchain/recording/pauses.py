"""Runs that pause for a human: what the human is asked, answers and decides, and where they wait.

A graph that pauses ends its root run; the resumed run is a new root run with the same `thread_id`,
and often reaches another handler object, or another process. So what a paused run recorded waits
for it, redacted, in the store, or in memory where there is none. The run that resumes it is joined
to it when it has ended.

An answer may be a secret that nothing else marks. Answers are noted in the agent's thread, so only
the ends of questions and short answers are kept. Whether a question asks for a secret is decided on
the engine's thread.

LangGraph leaves the form of the value with which a run is resumed to the graph. This module reads
truth values, English words, and what langchain's middleware and the agent inbox send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.bounds import default_on_error, member
from kp_langchain.recording.calls import Call, RequestedCalls
from kp_langchain.recording.values import NOT_A_MODEL, as_text, content_text, role_and_content
from kp_langchain.run_keys import paused_run_key, stored_form
from kp_langchain.values import ANSWER_CHARS, ASKED_CHARS, MAPPING, MAX_ITEMS, members

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

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
_FIELDS = ("type", "action", "decision", "choice", "answer", "status", "approved")
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
        self.note_answered(self.question)

    def note(self, exchanges: Iterable[Exchange]) -> None:
        """Remember what was asked and answered."""
        for exchange in exchanges:
            if len(self.exchanges) < _MAX_EXCHANGES and exchange not in self.exchanges:
                self.exchanges.append(exchange)

    def note_answered(self, question: str) -> None:
        """Remember what was answered to the question of a pause."""
        # The tool that asked may return the answer.
        for is_step in (False, True) if question else ():
            self.note(Exchange(question, answer, is_step) for answer in self.answers)


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
    arguments: Any = member(interrupt, "args")
    interrupts = arguments[0] if arguments and isinstance(arguments[0], (list, tuple)) else ()
    values = (member(one, "value") for one in interrupts[:_MAX_ANSWERS])
    return _end_of("\n".join(as_text(value, _LONGEST_READ_CHARS) for value in values))


@default_on_error(())
def answers_in(command: object) -> tuple[str, ...]:
    """Return the short texts in the value with which a human resumes a graph.

    Args:
        command: LangGraph's `Command`.
    """
    return tuple(islice(_short_texts(member(command, "resume")), _MAX_ANSWERS))


def _short_texts(value: object) -> Iterator[str]:
    for _, item in members(value):
        if isinstance(item, str):
            if item and len(item) <= ANSWER_CHARS:
                yield str.__str__(item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) < 10**12:
            yield str(int(item))


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
    value = member(command, "resume")
    if isinstance(value, MAPPING) and _INTERRUPT_ID.fullmatch(str(next(iter(value), ""))):
        value = list(islice(value.values(), MAX_ITEMS))
    return _decision(value)


def _decision(value: object) -> HumanDecision:
    if isinstance(value, MAPPING):
        value = value.get("decisions", value)
    if isinstance(value, (list, tuple)):
        return _unanimous(map(_decision, value[:MAX_ITEMS]))
    if not isinstance(value, MAPPING):
        return _scalar_decision(value)
    return _unanimous(_scalar_decision(value[field]) for field in _FIELDS if field in value)


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


# ------------------------------------------------------------------ where paused runs wait

Body = dict[str, Any]
"""What a paused run recorded, redacted, as JSON-like values; see `paused_record`."""

# What is in no store, by the handler's store and the key there; the oldest first.
_waiting: dict[tuple[str, str], Body] = {}


@dataclass(frozen=True, slots=True)
class HandlerPauses:
    """The paused runs of one handler's domain and agent.

    Attributes:
        store: Where they wait; None to keep them in this process.
        scope: The handler's domain and agent.
        settings: Say how many wait, how long, and what is redacted besides what always is.
    """

    store: TraceStore | None
    scope: tuple[str, str | None]
    settings: Settings

    def put(self, thread_id: str, body: Body) -> int:
        """Keep what a paused run recorded, in place of an earlier one of its thread.

        If the store cannot be written, log that and keep it in this process, which alone can then
        resume the run.

        Returns:
            The number of others that were dropped from the store for it.
        """
        key = self._key(thread_id)
        if key is None:
            return 0
        _waiting.pop(key, None)
        days, most = self.settings.paused_days, self.settings.max_paused_runs
        if self.store is not None:
            try:
                now = datetime.now(UTC)
                return self.store.paused.put(key[1], body, paused_at=now, days=days, most=most)
            except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                self._warn_of_store(error, "written to", "only this process can resume it")
        _waiting[key] = body
        for oldest in list(_waiting)[:-most]:
            _waiting.pop(oldest, None)
        return 0

    def claim(self, thread_id: str) -> Body | None:
        """Remove and return what the run paused in a thread recorded.

        None also if the store cannot give it, which is logged.
        """
        key = self._key(thread_id)
        if key is None:
            return None
        body = _waiting.pop(key, None)
        if body is not None or self.store is None:
            return body
        try:
            return self.store.paused.claim(key[1])
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._warn_of_store(error, "read from", "the resumed run is scored without it")
            return None

    def _warn_of_store(self, error: Exception, action: str, consequence: str) -> None:
        location = None if self.store is None else self.store.location
        warn_once(
            f"pause {action}:{location}:{type(error).__name__}",
            "what a run recorded before it paused cannot be %s %s now (%s); %s",
            action,
            location,
            describe_error(error),
            consequence,
        )

    def _key(self, thread_id: str) -> tuple[str, str] | None:
        """Return where a run that paused in a thread waits: the store, and the key there."""
        thread = stored_form("thread", thread_id, self.settings.redaction)
        where = "" if self.store is None else str(self.store.location)
        return (where, paused_run_key(thread, *self.scope)) if thread else None


# ------------------------------------------------------------------ calls before and after a pause


def name_answers(calls: Sequence[Call], requests: RequestedCalls) -> None:
    """Complete the calls of a resumed run that were requested before the pause.

    Args:
        calls: The calls since the run was resumed; changed. One that was not requested leaves no
            step.
        requests: What had been requested when the run paused.
    """
    tools = [call for call in calls if call.kind == "tool"]
    names_without_id = [one.name for one in tools if one.name and one.tool_call_id is None]
    by_id = {one.call_id: one for one in requests}
    for call in tools:
        if call.name:
            continue
        request = by_id.get(call.key[1])  # type: ignore[index]
        if request is None:
            call.is_void = True
        elif request.name in names_without_id:  # a tool that did not know the id answered it
            names_without_id.remove(request.name)
            call.is_void = True
        else:
            call.name = request.name
            call.input = request.arguments if isinstance(request.arguments, dict) else {}


def note_rejections(calls: Sequence[Call]) -> None:
    """Mark failed calls as rejected if the tool had asked a human, who refused.

    Args:
        calls: The calls of the whole run; changed.
    """
    asked = [one for one in calls if one.kind == "tool" and one.is_void and not one.has_failed]
    ids, names = {one.tool_call_id for one in asked} - {None}, {one.name for one in asked}
    for call in calls:
        call_id = call.tool_call_id
        has_asked = call.name in names if call_id is None else call_id in ids
        if call.has_failed and call.is_after_rejection and has_asked:
            call.reject()
