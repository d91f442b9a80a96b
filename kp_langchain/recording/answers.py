"""What a run was asked and what it answered, by its inputs and outputs, and why a model stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kp_langchain.recording.messages import (
    NOT_A_MODEL,
    additional_kwargs,
    additional_text,
    block_text,
    content_text,
    is_message,
    mark_of,
    role_and_content,
    unwrap,
    without_reasoning,
)
from kp_langchain.recording.provider_tools import generated_media, role_of
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_ITEMS,
    attribute,
    clip,
    default_on_error,
    field,
    join_texts,
    list_items,
    member,
)
from kp_langchain.recording.values import fields_of, gist

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
    fields = inputs if isinstance(inputs, MAPPING) else fields_of(inputs)
    if fields is None:
        return ""
    if text := _last_human_text(fields.get("messages"), limit):
        return text
    for key in _TASK_KEYS:
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

    What the run was given is no answer. None where nothing was returned, or only a tool call: then
    what the model said last is the answer.

    Args:
        outputs: What the run returned.
        limit: Characters to keep.
        inputs: What it was given, in the form of `last_items`.
    """
    if outputs is None:
        return None
    if is_message(outputs):
        return _last_message(outputs, limit) or (None if attribute(outputs, "tool_calls") else "")
    if isinstance(outputs, (list, tuple)) and any(map(_is_human, outputs[-MAX_ITEMS:])):
        return _last_answer(outputs, inputs, limit)
    if not isinstance(outputs, MAPPING):
        return _value(outputs, limit)
    response = structured_response_in(outputs)
    if response is not None or _is_parsed(outputs):
        return gist(response, limit)
    given = inputs if isinstance(inputs, MAPPING) and inputs is not outputs else {}
    messages = outputs.get("messages")
    if not isinstance(messages, (list, tuple)):
        messages = ()
    if answer := _last_answer(messages, given.get("messages", inputs), limit):
        return answer
    for key in _ANSWER_KEYS:
        if key in outputs and not _is_given(outputs[key], given.get(key)):
            return _value(outputs[key], limit)
    items = islice(outputs.items(), MAX_ITEMS)
    new = [key for key, value in items if not _is_given(value, given.get(key))]
    if not messages:
        return gist(outputs, limit) if new else ""
    # A report, but no route: other values are how a state with messages gets to its answer.
    texts = {key: outputs[key] for key in new if _is_sentence(outputs[key])}
    report = next(iter(texts.values())) if len(texts) == 1 else texts
    return _value(report, limit) if texts else ""


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
    if not isinstance(outputs, MAPPING):
        return None
    return outputs.get("parsed" if _is_parsed(outputs) else "structured_response")


@default_on_error(None)
def parsing_error_in(outputs: object) -> BaseException | None:
    """Return why a structured response could not be parsed; None if it could, or there is none."""
    if not isinstance(outputs, MAPPING) or not _is_parsed(outputs):
        return None
    error = outputs["parsing_error"]
    return error if isinstance(error, BaseException) else None


def _last_answer(messages: Sequence[Any], inputs: object, limit: int) -> Any:
    """Return the last answer among the messages since the run's inputs; "" if there is none."""
    for message in messages_since(inputs, messages):
        if not _is_of_user(message):
            return _last_message(message, limit)
    return ""


def messages_since(inputs: object, messages: Sequence[Any]) -> Iterator[Any]:
    """Yield the messages that came after those that a run was given, the newest first.

    Args:
        inputs: The messages or the text that it was given; the last is the question. If they are
            something else, the last message of a user is.
        messages: All messages when the run ended.
    """
    question = inputs
    if isinstance(inputs, (list, tuple)):
        question = inputs[-1] if inputs else None
    is_known = role_and_content(question)[0] is not None
    for message in islice(reversed(messages), MAX_ITEMS):
        if _is_same_message(message, question) if is_known else _is_of_user(message):
            break
        yield message


def _is_of_user(message: object) -> bool:
    """Return whether no agent wrote a message: those of agents in the user's role have a name."""
    return role_and_content(message)[0] in _NOT_ANSWERING and not member(message, "name")


def _is_same_message(one: object, other: object) -> bool:
    (role, content), (other_role, other_content) = map(role_and_content, (one, other))
    if _ROLES.get(role, role) != _ROLES.get(other_role, other_role):
        return False
    ids = member(one, "id"), member(other, "id")
    return bool(ids[0] == ids[1] if all(ids) else content == other_content)


def _is_human(value: object) -> bool:
    return getattr(value, "type", None) == "human"


def _is_given(value: object, given: object) -> bool:
    return type(value) in _IMMUTABLE and type(given) is type(value) and value == given


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and (len(value) > _LONGEST_WORD or len(value.split()) > 1)


def _value(value: object, limit: int) -> Any:
    # A parser returns a model's text as it is, reasoning included.
    return gist(without_reasoning(value) if isinstance(value, str) else value, limit)


def _last_message(message: object, limit: int) -> Any:
    """Return the text of a message without its reasoning, which alone is not an answer.

    Where the model had the provider run tools, what it says after the last of them is its answer.
    """
    role, content = role_and_content(message)
    if role is None:
        return gist(message, limit)
    extra = additional_kwargs(message)
    answer_of = str if role in NOT_A_MODEL else without_reasoning
    if isinstance(content, str):
        text = clip(answer_of(content).strip(), limit)
        return join_texts((text, additional_text(extra, limit)), limit) if extra else text
    text = ""
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, (list, tuple)) else []
    last = max((at for at, one in enumerate(blocks, 1) if role_of(one)), default=0)
    for part in (blocks[last:], blocks if last else ()):
        spoken = (block_text(block, with_reasoning=False) for block in part)
        texts = (clip(answer_of(text), limit) for text in spoken)
        if text := join_texts(texts, limit, separator="\n").strip():
            break
    text = join_texts((text, additional_text(extra, limit)), limit)
    return text or _generated_media_marks([*blocks, *list_items(extra.get("tool_outputs"))], limit)


def _generated_media_marks(blocks: list[Any], limit: int) -> str:
    """Return marks for the media that a provider's tool generated: an answer may be just that."""
    families = (generated_media(one) for one in blocks if field(one, "result"))
    return join_texts((mark_of(family) for family in families if family), limit, separator="\n")


# ------------------------------------------------------------------ why a model stopped

# Each provider writes its reason into the answer's `response_metadata` under a name of its own.
_REASON_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason")

# Their ends in lower case. A streamed answer may hold the reasons of its chunks, one after the
# other.
_EARLY_REASONS = (
    # The answer was cut off.
    "length", "max_tokens", "max_output_tokens", "error_limit", "token_limit", "time_limit",
    "timeout", "truncated", "context_window_exceeded", "pause_turn", "abort",
    "insufficient_system_resource", "cancelled", "user_cancel",
    # It was refused or withheld.
    "refusal", "content_filter", "content_filtered", "content-filter", "guardrail_intervened",
    "safety", "recitation", "language", "blocklist", "prohibited_content", "spii",
    "content_policy_violation", "sensitive", "no_image", "error_toxic",
    # It is malformed.
    "malformed_function_call", "malformed_tool_use", "malformed_model_output",
    "malformed_response", "unexpected_tool_call", "too_many_tool_calls", "error", "other",
)  # fmt: skip
_EARLY_STATUS = frozenset({"incomplete", "failed", "cancelled"})  # of OpenAI's Responses
_MAX_REASON_CHARS = 1000


@default_on_error(False)
def ended_early(metadata: object) -> bool:
    """Return whether an answer was cut off, refused, withheld or malformed.

    Args:
        metadata: The answer's `response_metadata`, or LangChain's `generation_info`.
    """
    if not isinstance(metadata, MAPPING) or not metadata:
        return False
    return (
        any(_ends_badly(metadata.get(name)) for name in _REASON_FIELDS)
        or bool(field(metadata.get("incomplete_details"), "reason"))
        or metadata.get("status") in _EARLY_STATUS
        or _is_blocked(field(metadata.get("prompt_feedback"), "block_reason"))
    )


def _ends_badly(reason: object) -> bool:
    if reason is None or reason == "stop":  # like most
        return False
    return (
        isinstance(reason, str)
        and len(reason) <= _MAX_REASON_CHARS
        and reason.rpartition(".")[2].lower().endswith(_EARLY_REASONS)
    )


def _is_blocked(reason: object) -> bool:
    """Return whether Google refused the question itself."""
    return reason not in (None, "", 0) and "UNSPECIFIED" not in str(reason)


@default_on_error("")
def refusal_in(message: object) -> str:
    """Return the words in which a model of OpenAI's refused; "" if it did not."""
    refusal = field(attribute(message, "additional_kwargs"), "refusal")
    content = attribute(message, "content")
    if not refusal and isinstance(content, (list, tuple)):
        blocks = map(unwrap, content[:MAX_ITEMS])
        refusals = (field(one, "refusal") for one in blocks if field(one, "type") == "refusal")
        refusal = next(refusals, None)
    return refusal if isinstance(refusal, str) else ""
