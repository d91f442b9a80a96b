"""A trace from a list of messages: what the handler would have recorded of the same run.

The messages are replayed to a recorder as the events of a run, so both follow one set of rules.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    ToolMessage,
    convert_to_messages,
)
from pydantic import ValidationError

from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.gate.judge import choose_outcome
from kp_langchain.recording.bounds import Counters
from kp_langchain.recording.langchain_context import Start
from kp_langchain.recording.outcome import read_verdict
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.redactor import Redactor
from kp_langchain.recording.run_builder import build_trace
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.steps import StepList, build_steps
from kp_langchain.run_keys import check_agent_id
from kp_langchain.schema import ReasoningTrace
from kp_langchain.text import first_fault, json_or_text
from kp_langchain.verdict import Verdict


def trace_from_messages(
    messages: Iterable[MessageLikeRepresentation],
    *,
    domain: str = "default",
    objective: str | None = None,
    success: bool | None = None,
    confidence: float | None = None,
    agent_id: str | None = None,
    policy: DomainPolicy | None = None,
) -> ReasoningTrace:
    """Build the redacted trace of a run from its messages.

    Args:
        messages: The conversation in order, as LangChain messages or in any form LangChain reads
            (OpenAI dictionaries, `(role, text)` pairs). Tool results follow the answer that
            asked for them.
        domain: The trace's domain.
        objective: The task; by default the last human message before the first answer.
        success: Whether the run succeeded; by default judged as the handler would.
        confidence: 0 to 1; by default 0.8 for a success and 0.2 for a failure.
        agent_id: The agent that ran; written as `kp:agent:<id>`.
        policy: Visibility and privacy level; by default `DomainPolicy()`.

    Returns:
        The redacted trace, without a score.

    Raises:
        ValueError: The messages hold no answer of a model, something in them cannot be read,
            `success` or `confidence` cannot be used, or the agent's id cannot be written as it is.
    """
    message_list = read_messages(messages)
    record = _record(message_list, objective)
    record.write_out()
    step_list = build_steps(record.timeline, fatal="", answer=record.answer or "")
    if not step_list.steps:
        raise ValueError(
            f"{len(message_list)} messages hold no model answer and no tool call: nothing to trace"
        )
    answer = step_list.last_thought if record.answer is None else record.answer
    verdict = _verdict(step_list, answer, success, confidence)
    policy = policy or DomainPolicy()
    redaction = Redactor(record.counters, record.settings.max_text_chars)
    redaction.learn(record.parts(), policy.privacy_level, record.answers())
    return build_trace(
        record,
        step_list,
        domain=domain,
        agent_id=check_agent_id(agent_id) if agent_id else None,
        policy=policy,
        verdict=verdict,
        answer=answer,
        redaction=redaction,
    )


def _verdict(
    step_list: StepList, answer: str, success: bool | None, confidence: float | None
) -> Verdict:
    """Return the caller's verdict; what it leaves open is judged as the handler would."""
    default_success = step_list.looks_successful(answer, ended_well=step_list.ends_well(answer))
    try:
        verdict = read_verdict({"success": success, "confidence": confidence}, "caller")
    except ValueError as error:
        raise ValueError(f"success={success!r}, confidence={confidence!r}: {error}") from None
    return choose_outcome(default_success, [] if verdict is None else [verdict])


def _record(messages: list[BaseMessage], objective: str | None) -> RunRecord:
    """Return what a recorder records of the messages."""
    records: list[RunRecord] = []
    objective_of = None if objective is None else lambda _: objective
    # The bounds are the defaults, whatever the environment says.
    settings = Settings.model_construct()
    recorder = Recorder(settings, Counters(), records.append, objective_of=objective_of)
    root = uuid.uuid4()
    replay_messages(messages, recorder, Start(root))
    # If there is none, there are only human messages, for which the caller raises.
    return records[0] if records else RunRecord(settings, recorder.counters, Start(root))


def replay_messages(
    messages: list[BaseMessage],
    recorder: Recorder,
    start: Start,
    on_started: Callable[[], object] = lambda: None,
) -> None:
    """Send a conversation to a recorder, as the events of a run.

    Args:
        messages: The conversation.
        recorder: Where the events go.
        start: The start of the run.
        on_started: Called when the run has begun.
    """
    first, end = _extent(messages)
    root = start.run_id
    recorder.chain_started(start, {"messages": messages[:first]})
    recorder.conversation_seen(root, messages)
    on_started()
    results = [one for one in messages if isinstance(one, ToolMessage)]
    for message in messages[first:end]:
        if not isinstance(message, AIMessage):
            continue
        model = uuid.uuid4()
        recorder.model_started(Start(model, root), ())
        recorder.model_answered(model, message)
        for call in _calls(message):
            result = next((one for one in results if one.tool_call_id == call["id"]), None)
            if result is None:
                continue  # requested, but never run
            results.remove(result)
            tool = uuid.uuid4()
            recorder.tool_started(
                Start(tool, root, call["name"] or "tool"), json_or_text(call["args"]), call["id"]
            )
            recorder.tool_answered(tool, result)
    recorder.chain_ended(root, {"messages": messages[:end]})


def _extent(messages: list[BaseMessage]) -> tuple[int, int]:
    """Return where the run's own messages begin and end.

    Before them are its inputs, a scripted greeting included; after them are messages that nobody
    answered.
    """
    answers = [at for at, one in enumerate(messages) if isinstance(one, AIMessage)]
    question = next((at for at, one in enumerate(messages) if isinstance(one, HumanMessage)), 0)
    first = next((at for at in answers if at > question), min(answers, default=0))
    last = [at for at, one in enumerate(messages) if isinstance(one, (AIMessage, ToolMessage))]
    return first, max(last, default=-1) + 1


def _calls(message: BaseMessage) -> list[Any]:
    if not isinstance(message, AIMessage):
        return []
    return [*message.tool_calls, *message.invalid_tool_calls]


# ------------------------------------------------------------------ messages in other forms

_ASSISTANT = ("assistant", "ai")


def read_messages(messages: Iterable[MessageLikeRepresentation]) -> list[BaseMessage]:
    """Return messages in any form that LangChain reads as messages.

    Raises:
        ValueError: Something in them cannot be read.
    """
    if isinstance(messages, str):
        raise ValueError("messages is one text; give a list of messages")  # noqa: TRY004
    read: list[BaseMessage] = []
    try:
        for message in messages:
            read.append(_read_message(message))  # noqa: PERF401 - the error names the number
    except Exception as error:  # LangChain raises errors of any kind
        # The error's own text may quote what was said.
        why = first_fault(error) if isinstance(error, ValidationError) else type(error).__name__
        raise ValueError(
            f"the messages cannot be read, at number {len(read) + 1} ({why}); each needs a role "
            "and content, and each tool call a name"
        ) from error
    return read


def _read_message(message: Any) -> BaseMessage:
    """Return a message in any form as LangChain's.

    LangChain's own conversion raises if the arguments of a call are empty or cut off.
    """
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls or message.get("role") not in _ASSISTANT:
        return convert_to_messages([message])[0]
    own = {**message, "tool_calls": None, "content": content_of(message)}
    fields = tool_call_fields(calls)
    names = [call["name"] for call in (*fields["tool_calls"], *fields["invalid_tool_calls"])]
    if len(names) < len(calls) or not all(names):
        raise ValueError("a tool call without a name")
    return convert_to_messages([own])[0].model_copy(update=fields)


def tool_call_fields(calls: Any) -> dict[str, list[dict[str, Any]]]:
    """Return `tool_calls` and `invalid_tool_calls` for an `AIMessage`.

    Args:
        calls: Requests in OpenAI's form or in LangChain's.
    """
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        if not isinstance(function, dict):
            function = call
        names = {"name": _text(function, "name") or "", "id": _text(call, "id")}
        arguments = json_or_text(function.get("arguments", function.get("args")) or {})
        if isinstance(arguments, dict):
            good.append({**names, "args": arguments, "type": "tool_call"})
        else:
            unread = {"args": str(arguments), "error": None, "type": "invalid_tool_call"}
            bad.append({**names, **unread})
    return {"tool_calls": good, "invalid_tool_calls": bad}


def content_of(holder: Mapping[str, Any]) -> Any:
    """Return the content of a message or block in a form that LangChain's messages can have."""
    content = holder.get("content")
    if isinstance(content, list) and all(isinstance(part, str | dict) for part in content):
        return content
    return content if isinstance(content, str) else "" if content is None else str(content)


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    value = holder.get(key)
    return value if isinstance(value, str) else None
