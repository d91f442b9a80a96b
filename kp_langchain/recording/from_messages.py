"""A trace from a list of messages: what the handler would have recorded of the same run.

The messages are played to a recorder as the events of a run, so that there is one set of rules.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    ToolMessage,
    convert_to_messages,
)

from kp_langchain.agent_id import usable
from kp_langchain.config import DomainPolicy
from kp_langchain.recording.outcome import looks_successful, settle
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.redactor import Redactor
from kp_langchain.recording.run_record import Bounds, RunRecord, Start
from kp_langchain.recording.steps import build_steps
from kp_langchain.recording.trace_builder import build_trace
from kp_langchain.recording.verdict_reader import read_verdict
from kp_langchain.schema import ReasoningTrace


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
        agent_id: Who ran; written as `kp:agent:<id>`.
        policy: Visibility and privacy level; by default `DomainPolicy()`.

    Returns:
        The trace, not scored yet.

    Raises:
        ValueError: The messages hold no answer of a model, something in them cannot be read, or
            the agent's id cannot be written as it is.
    """
    if isinstance(messages, str):
        raise ValueError("messages is one text; give a list of messages")  # noqa: TRY004
    try:
        listed = convert_to_messages(list(messages))
    except (KeyError, TypeError, AttributeError, NotImplementedError, RecursionError) as error:
        raise ValueError(f"the messages cannot be read: {type(error).__name__}: {error}") from error
    record = _record(listed, objective)
    record.write_out()
    step_list = build_steps(record.timeline(), fatal="", answer=record.answer or "")
    if not step_list.steps:
        raise ValueError(
            f"{len(listed)} messages hold no model answer and no tool call: nothing to trace"
        )
    answer = step_list.last_thought if record.answer is None else record.answer
    looks = looks_successful(
        answer,
        ended_well=not step_list.stopped,
        unresolved_error=step_list.unresolved_error,
        ends_on_action=step_list.ends_on_action,
    )
    try:
        stated = read_verdict({"success": success, "confidence": confidence}, "caller")
    except ValueError as error:
        raise ValueError(f"success={success!r}, confidence={confidence!r}: {error}") from None
    return build_trace(
        record,
        step_list,
        domain=domain,
        agent_id=usable(agent_id) if agent_id else None,
        policy=policy or DomainPolicy(),
        verdict=settle(looks, verdicts=[] if stated is None else [stated]),
        answer=answer,
        redaction=Redactor(record.recorder.counters, record.recorder.bounds.text_chars),
    )


def _record(messages: list[BaseMessage], objective: str | None) -> RunRecord:
    ended: list[RunRecord] = []
    recorder = Recorder(
        Bounds(), ended.append, objective_of=None if objective is None else lambda _: objective
    )
    first, end = _extent(messages)
    root = uuid.uuid4()
    recorder.chain_started(Start(root), {"messages": messages[:first]})
    results = [one for one in messages if isinstance(one, ToolMessage)]
    for message in messages[first:end]:
        if not isinstance(message, AIMessage):
            continue
        answered = uuid.uuid4()
        recorder.model_started(Start(answered, root), ())
        recorder.model_answered(answered, message, "", message.response_metadata.get("logprobs"))
        for asked in _calls(message):
            result = next((one for one in results if one.tool_call_id == asked["id"]), None)
            if result is None:
                continue  # asked for, but never run
            results.remove(result)
            ran = uuid.uuid4()
            recorder.tool_started(
                Start(ran, root, asked["name"] or "tool"), _arguments(asked["args"]), asked["id"]
            )
            recorder.tool_answered(ran, result)
    recorder.chain_ended(root, {"messages": messages[:end]})
    if not ended:  # nothing but human messages: the caller is told
        return RunRecord(recorder, Start(root))
    return ended[0]


def _extent(messages: list[BaseMessage]) -> tuple[int, int]:
    """Where the run's own messages begin and end.

    Before them stands what it was given, a scripted greeting included, unless the agent went to
    work unasked; after them what nobody answered.
    """
    answers = [at for at, one in enumerate(messages) if isinstance(one, AIMessage)]
    asked = next((at for at, one in enumerate(messages) if isinstance(one, HumanMessage)), 0)
    unasked = any(isinstance(one, ToolMessage) or _calls(one) for one in messages[:asked])
    first = next((at for at in answers if at > asked and not unasked), min(answers, default=0))
    last = [at for at, one in enumerate(messages) if isinstance(one, (AIMessage, ToolMessage))]
    return first, max(last, default=-1) + 1


def _calls(message: BaseMessage) -> list[Any]:
    if not isinstance(message, AIMessage):
        return []
    return [*message.tool_calls, *message.invalid_tool_calls]


def _arguments(args: Any) -> Any:
    if not isinstance(args, str):
        return args
    try:
        return json.loads(args)
    except (ValueError, RecursionError):
        return args
