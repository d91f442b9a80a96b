"""A run's task and its answer, and what a model answers: text, reasoning, a provider's tools.

A tool that a provider ran inside an answer is recorded as if the agent had run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from kp_langchain.recording.bounds import default_on_error, member, short_name
from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.provider_tools import (
    Part,
    generated_image_mark,
    grounding_in,
    output_gist,
    parts_of,
    role_of,
)
from kp_langchain.recording.requested_calls import record_requests
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.values import (
    NOT_A_MODEL,
    additional_kwargs,
    additional_text,
    as_input,
    block_text,
    content_text,
    gist,
    is_message,
    message_text,
    reasoning_parts,
    role_and_content,
)
from kp_langchain.values import MAX_ALL_ITEMS, MAX_ITEMS, clip, fields_of, join_texts

_NOT_ANSWERING = ("human", "user", "system", "developer")
_ROLES: dict[object, str] = {"user": "human", "assistant": "ai"}
_PARSED_KEYS = {"raw", "parsed", "parsing_error"}
_IMMUTABLE = (str, int, float, bool, type(None))
_LONGEST_WORD = 32  # of a name, such as a node's
_ANSWER_KEYS = ("output", "answer", "result", "response", "final_answer", "text", "content")
# The keys under which chains usually carry the task, the most telling first.
_TASK_KEYS = (
    "objective", "task", "question", "query", "input", "user_input", "request", "goal", "message",
    "prompt", "text",
)  # fmt: skip
_UNPARSED = "the arguments of the call cannot be parsed"
_NO_REASON = "failed"  # if a provider gives none


# ------------------------------------------------------------------ the task


@default_on_error("")
def objective_in(inputs: object, limit: int) -> str:
    """Return the task that a run's inputs state; "" if they state none.

    It is the last human message, else the text under a usual key (`input`, `question`, ...), else
    the only text among the inputs.

    Args:
        inputs: The inputs of the run, as LangChain hands them over.
        limit: Characters to keep.
    """
    if isinstance(inputs, str):
        return clip(inputs.strip(), limit)
    to_messages = getattr(inputs, "to_messages", None)  # a prompt value
    inputs = to_messages() if callable(to_messages) else inputs
    if isinstance(inputs, (list, tuple)) or is_message(inputs):
        return _last_human_text(inputs if isinstance(inputs, (list, tuple)) else [inputs], limit)
    fields = inputs if isinstance(inputs, dict) else fields_of(inputs)
    if fields is None:
        return ""
    for key in ("messages", *_TASK_KEYS):
        value = fields.get(key)
        text = value.strip() if isinstance(value, str) else _last_human_text(value, limit)
        if text:
            return clip(text, limit)
    items = islice(fields.values(), MAX_ITEMS)
    texts = [text for item in items if isinstance(item, str) and (text := item.strip())]
    return clip(texts[0], limit) if len(texts) == 1 else ""


def _last_human_text(messages: object, limit: int) -> str:
    """Return the text of the last human message in a list of messages in any of their forms."""
    if not isinstance(messages, (list, tuple)):
        return ""
    for message in islice(reversed(messages), MAX_ITEMS):
        role, content = role_and_content(message)
        if role in ("human", "user"):
            return content_text(content, limit).strip()
    return ""


# ------------------------------------------------------------------ the answer


@default_on_error(None)
def answer_in(outputs: object, limit: int, inputs: object = None) -> Any:
    """Return the `gist` of the answer that a run's outputs hold; "" if they hold none.

    Inputs that come back are no answer. None if nothing was returned, or only a tool call: the
    model's last text is then the answer.

    Args:
        outputs: What the run returned.
        limit: Characters to keep.
        inputs: What it was given, in the form of `last_items`.
    """
    if outputs is None:
        return None
    if is_message(outputs):
        return _last_message(outputs, limit) or (None if member(outputs, "tool_calls") else "")
    if isinstance(outputs, (list, tuple)) and any(map(_is_human, outputs[-MAX_ITEMS:])):
        return _last_answer(outputs, inputs, limit)
    if not isinstance(outputs, dict):
        return _value(outputs, limit)
    response = structured_response_in(outputs)
    if response is not None or _is_parsed(outputs):
        return gist(response, limit)
    inputs_by_key = inputs if isinstance(inputs, dict) and inputs is not outputs else {}
    messages = outputs.get("messages")
    if not isinstance(messages, (list, tuple)):
        messages = ()
    if answer := _last_answer(messages, inputs_by_key.get("messages", inputs), limit):
        return answer
    for key in _ANSWER_KEYS:
        if key in outputs and not _is_given(outputs[key], inputs_by_key.get(key)):
            return _value(outputs[key], limit)
    items = islice(outputs.items(), MAX_ITEMS)
    new_values = [value for key, value in items if not _is_given(value, inputs_by_key.get(key))]
    if not messages:
        return gist(outputs, limit) if new_values else ""
    # Beside messages only prose counts as an answer: a report does, a route does not.
    return _value(next(filter(_is_sentence, new_values), ""), limit)


def last_items(inputs: object) -> object:
    """Return a run's inputs with the last item of each list in place of the list.

    It is all that is read of them when the run has ended, and the caller may change a list. A
    mapping with very many keys stays as it is.
    """
    if type(inputs) is list:
        return inputs[-1:]
    if type(inputs) is dict and len(inputs) <= MAX_ITEMS:
        return {key: value[-1:] if type(value) is list else value for key, value in inputs.items()}
    return inputs


def _is_parsed(outputs: Mapping[Any, Any]) -> bool:
    """Return whether this is what `with_structured_output(include_raw=True)` returns."""
    return outputs.keys() >= _PARSED_KEYS


@default_on_error(None)
def structured_response_in(outputs: object) -> Any:
    """Return the structured response that a run's outputs hold; None if they hold none."""
    if not isinstance(outputs, dict):
        return None
    return outputs.get("parsed" if _is_parsed(outputs) else "structured_response")


@default_on_error(None)
def parsing_error_in(outputs: object) -> BaseException | None:
    """Return why a structured response could not be parsed; None if it could, or there is none."""
    error = outputs["parsing_error"] if isinstance(outputs, dict) and _is_parsed(outputs) else None
    return error if isinstance(error, BaseException) else None


def _last_answer(messages: Sequence[Any], inputs: object, limit: int) -> Any:
    """Return the last answer among the messages since the run's inputs; "" if there is none.

    Args:
        messages: All messages when the run ended.
        inputs: The messages or the text that the run was given; the last is the question. If they
            are something else, the last message of a user is.
        limit: Characters to keep.
    """
    question = inputs
    if isinstance(inputs, (list, tuple)):
        question = inputs[-1] if inputs else None
    is_known = role_and_content(question)[0] is not None
    for message in islice(reversed(messages), MAX_ITEMS):
        is_of_user = _is_of_user(message)
        if _is_same_message(message, question) if is_known else is_of_user:
            break
        if not is_of_user:
            return _last_message(message, limit)
    return ""


def _is_of_user(message: object) -> bool:
    """Return whether no agent wrote a message: those of agents in the user's role have a name."""
    return role_and_content(message)[0] in _NOT_ANSWERING and not member(message, "name")


def _is_same_message(one: object, other: object) -> bool:
    (role, content), (other_role, other_content) = map(role_and_content, (one, other))
    return _ROLES.get(role, role) == _ROLES.get(other_role, other_role) and bool(
        content == other_content
    )


def _is_human(value: object) -> bool:
    return getattr(value, "type", None) == "human"


def _is_given(value: object, input_value: object) -> bool:
    return type(value) in _IMMUTABLE and type(input_value) is type(value) and value == input_value


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and (len(value) > _LONGEST_WORD or len(value.split()) > 1)


def _value(value: object, limit: int) -> Any:
    # A parser returns a model's text as it is, reasoning included.
    return gist(_without_reasoning(value) if isinstance(value, str) else value, limit)


def _without_reasoning(text: str) -> str:
    """Return a model's text without the reasoning between tags."""
    return "".join(part for part, is_reasoning in reasoning_parts(text) if not is_reasoning).strip()


def _last_message(message: object, limit: int) -> Any:
    """Return the text of a message without its reasoning, which alone is not an answer.

    Where the model had the provider run tools, what it says after the last of them is its answer.
    """
    role, content = role_and_content(message)
    if role is None:
        return gist(message, limit)
    answer_of = str.strip if role in NOT_A_MODEL else _without_reasoning
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, (list, tuple)) else []
    last = max((at for at, one in enumerate(blocks, 1) if role_of(one)), default=0)
    text = clip(answer_of(content), limit) if isinstance(content, str) else ""
    for part in (blocks[last:], blocks):
        block_texts = (block_text(block, with_reasoning=False) for block in part if not text)
        texts = (clip(answer_of(words), limit) for words in block_texts)
        text = text or join_texts(texts, limit, separator="\n").strip()
    if extra := additional_kwargs(message):
        text = join_texts((text, additional_text(extra, limit)), limit)
    # An answer may be just the images that a provider's tool generated.
    return text or join_texts(map(generated_image_mark, blocks), limit, separator="\n")


# ------------------------------------------------------------------ why a model stopped

# Each provider writes its reason into the answer's `response_metadata` under a name of its own.
_REASON_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason")

# Their ends in lower case. A streamed answer may hold the reasons of its chunks, one after the
# other.
_EARLY_REASONS = (
    # The answer was cut off.
    "length", "max_tokens", "max_output_tokens", "token_limit", "timeout", "truncated",
    "context_window_exceeded", "pause_turn", "abort", "cancelled",
    # It was refused or withheld.
    "refusal", "content_filter", "content_filtered", "content-filter", "guardrail_intervened",
    "safety", "recitation", "language", "blocklist", "prohibited_content", "spii",
    # It is malformed.
    "malformed_function_call", "malformed_tool_use", "malformed_response", "unexpected_tool_call",
    "error", "other",
)  # fmt: skip
_EARLY_STATUS = ("incomplete", "failed", "cancelled")  # of OpenAI's Responses
_MAX_REASON_CHARS = 1000


@default_on_error(False)
def ended_early(metadata: object) -> bool:
    """Return whether an answer was cut off, refused, withheld or malformed.

    Args:
        metadata: The answer's `response_metadata`, or LangChain's `generation_info`.
    """
    if not isinstance(metadata, dict) or not metadata:
        return False
    for name in _REASON_FIELDS:
        reason = metadata.get(name)
        if isinstance(reason, str) and len(reason) <= _MAX_REASON_CHARS and _ends_badly(reason):
            return True
    if metadata.get("status") in _EARLY_STATUS:
        return True
    # Of Google, where it refused the question itself.
    block_reason = member(metadata.get("prompt_feedback"), "block_reason")
    return bool(block_reason and "UNSPECIFIED" not in str(block_reason))


@lru_cache(maxsize=100)
def _ends_badly(reason: str) -> bool:
    return reason.rpartition(".")[2].lower().endswith(_EARLY_REASONS)


@default_on_error("")
def refusal_in(message: object) -> str:
    """Return the words in which a model of OpenAI's refused; "" if it did not."""
    refusal = additional_kwargs(message).get("refusal")
    content = member(message, "content")
    if not refusal and isinstance(content, list):
        refusals = (one for one in content[:MAX_ITEMS] if member(one, "type") == "refusal")
        refusal = member(next(refusals, None), "refusal")
    return refusal if isinstance(refusal, str) else ""


# ------------------------------------------------------------------ what a model answers


def record_model_answer(root: RunRecord, call: Call, message: object) -> bool:
    """Record what a model answered, and the tool calls that it made or asks for.

    Args:
        root: The run; changed.
        call: The call of the model; changed.
        message: The answer.

    Returns:
        Whether it asks for tool calls.
    """
    content, metadata = member(message, "content"), member(message, "response_metadata")
    call.is_incomplete = call.is_incomplete or ended_early(metadata)
    last = call
    if type(content) is str and not additional_kwargs(message) and not grounding_in(metadata):
        call.text = root.read(clip, content)  # tags around reasoning go when it is written out
    else:
        refusal = clip(refusal_in(message), root.raw_text_chars)
        call.is_incomplete = call.is_incomplete or bool(refusal)
        if parts := parts_of(content, metadata, root.raw_text_chars):
            last = _record_parts(root, call, parts)
        else:
            call.text = root.read(message_text, message)
        last.refusal = refusal
    return record_requests(root, last, message)


def _record_parts(root: RunRecord, answer: Call, parts: Sequence[Part]) -> Call:
    """Record the parts of a model's answer, as if an agent had run the provider's tools.

    Args:
        root: The run; changed.
        answer: The model's call, which gets the first text as its own; changed.
        parts: The parts in order.

    Returns:
        The last call that began.
    """
    last = answer
    newest: Call | None = None
    calls: dict[str, Call] = {}  # those without a result yet, by each of their ids
    for at, part in enumerate(parts):
        if part.role == "result":
            # Google's results name no call: they belong to the last one.
            open_calls = (calls.pop(one, None) for one in part.ids)
            call = next(filter(None, open_calls), None) if part.ids else newest
            call = call or _new_call(answer, "tool", part.name)
            call.has_failed = part.has_failed
            text = root.read(output_gist, part.value)
            root.timeline.add(call.set_result(text or _NO_REASON * part.has_failed), call)
        elif part.role == "call":
            newest = last = _new_call(answer, "tool", part.name)
            last.is_incomplete = answer.is_incomplete or part.is_approval_request
            last.input = root.read(as_input, part.value)
            last.mcp_server = short_name(part.mcp_server) or None
            calls |= dict.fromkeys(part.ids, last)
            root.timeline.add("start", last)
        else:
            if at:
                last = _new_call(answer, "model", answer.name)
                root.timeline.add("start", last)
            last.text = root.read(clip, part.value)
    if root.last_call is answer:
        root.last_call = last
    return last


def _new_call(answer: Call, kind: CallKind, name: str) -> Call:
    call = Call(kind, short_name(name), object())  # a unique key: these calls are never retried
    call.has_ended, call.is_incomplete = True, answer.is_incomplete
    return call
