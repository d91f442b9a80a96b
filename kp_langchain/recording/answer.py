"""The answer that a run's outputs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from kp_langchain.recording.clipping import clip, join_texts
from kp_langchain.recording.content_blocks import spoken_text
from kp_langchain.recording.media import mark_of
from kp_langchain.recording.messages import (
    NOT_A_MODEL,
    additional_kwargs,
    additional_text,
    content_text,
    is_from_model,
    is_message,
    role_and_content,
)
from kp_langchain.recording.plain_values import gist
from kp_langchain.recording.provider_tools import generated_media, role_of
from kp_langchain.recording.reasoning import split_reasoning
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_ITEMS,
    attribute,
    default_on_error,
    list_items,
)

_NOT_ANSWERING = ("human", "user", "system", "developer")
_ROLES: dict[object, str] = {"user": "human", "assistant": "ai"}
_PARSED_KEYS = {"raw", "parsed", "parsing_error"}
_IMMUTABLE = (str, int, float, bool, type(None))
_LONGEST_WORD = 32  # of a name, such as a node's
_KEYS = ("output", "answer", "result", "response", "final_answer", "text", "content")


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
    for key in _KEYS:
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


def messages_since(inputs: object, messages: Sequence[Any]) -> list[Any]:
    """Return the messages that came after those that a run was given, the newest first.

    Args:
        inputs: The messages or the text that it was given; the last is the question. If they are
            something else, the last message of a user is.
        messages: All messages when the run ended.
    """
    question = inputs
    if isinstance(inputs, (list, tuple)):
        question = inputs[-1] if inputs else None
    is_known = role_and_content(question)[0] is not None
    since: list[Any] = []
    for message in islice(reversed(messages), MAX_ITEMS):
        if _is_same_message(message, question) if is_known else _is_of_user(message):
            break
        since.append(message)
    return since


def _is_of_user(message: object) -> bool:
    """Return whether no agent wrote a message: those of agents in the user's role have a name."""
    return role_and_content(message)[0] in _NOT_ANSWERING and not _field(message, "name")


def _is_same_message(one: object, other: object) -> bool:
    (role, content), (other_role, other_content) = map(role_and_content, (one, other))
    if _ROLES.get(role, role) != _ROLES.get(other_role, other_role):
        return False
    ids = _field(one, "id"), _field(other, "id")
    return bool(ids[0] == ids[1] if all(ids) else content == other_content)


def _field(message: object, name: str) -> Any:
    return message.get(name) if isinstance(message, MAPPING) else getattr(message, name, None)


def _is_human(value: object) -> bool:
    return getattr(value, "type", None) == "human"


def _is_given(value: object, given: object) -> bool:
    return type(value) in _IMMUTABLE and type(given) is type(value) and value == given


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and (len(value) > _LONGEST_WORD or len(value.split()) > 1)


def _value(value: object, limit: int) -> Any:
    # A parser returns a model's text as it is, reasoning included.
    return gist(_without_reasoning(value) if isinstance(value, str) else value, limit)


def _last_message(message: object, limit: int) -> Any:
    if is_message(message):
        return _message_answer(message, limit)
    role, content = role_and_content(message)
    if role is None:
        return gist(message, limit)
    text = content_text(content, limit)
    return text if role in NOT_A_MODEL else _without_reasoning(text)


def _message_answer(message: object, limit: int) -> str:
    """Return the text of a message without its reasoning, which alone is not an answer.

    Where the model had the provider run tools, what it says after the last of them is its answer.
    """
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    answer_of = _without_reasoning if is_from_model(message) else str
    if isinstance(content, str):
        text = clip(answer_of(content).strip(), limit)
        return join_texts(iter((text, additional_text(extra, limit))), limit) if extra else text
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, (list, tuple)) else []
    kinds = [block.get("type") if isinstance(block, MAPPING) else None for block in blocks]
    last = max((at for at, kind in enumerate(kinds, 1) if role_of(kind)), default=0)
    for part in (blocks[last:], blocks if last else ()):
        texts = (clip(answer_of(spoken_text(block)), limit) for block in part)
        if text := join_texts(texts, limit, separator="\n").strip():
            break
    text = join_texts(iter((text, additional_text(extra, limit))), limit)
    return text or _generated_media_marks([*blocks, *list_items(extra.get("tool_outputs"))], limit)


def _without_reasoning(text: str) -> str:
    return split_reasoning(text)[1]


def _generated_media_marks(blocks: list[Any], limit: int) -> str:
    """Return marks for the media that a provider's tool generated: an answer may be just that."""
    results = (one for one in blocks if isinstance(one, MAPPING) and one.get("result"))
    families = (
        generated_media(kind) for one in results if isinstance(kind := one.get("type"), str)
    )
    return join_texts((mark_of(family) for family in families if family), limit, separator="\n")
