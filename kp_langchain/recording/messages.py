"""Text and plain JSON out of whatever LangChain hands over: bounded, never raising, no deep copies.

Everything here runs inside the user's agent, on values that belong to the user. So nothing is
changed, nothing is kept by reference, and nothing costs more than its bound: a tool output of
five megabytes is cut before it is looked at, and of a mapping without end the first items are read.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableSequence,
    Sequence,
    Set,
    ValuesView,
)
from functools import wraps
from itertools import islice
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

from kp_langchain._host_exceptions import raised_by_host
from kp_langchain.recording.content_blocks import block_text as _block_text
from kp_langchain.recording.content_blocks import is_content, reasoning_text, said_text
from kp_langchain.recording.media import data_mark, mark_of
from kp_langchain.recording.provider_tools import generated_media, role_of
from kp_langchain.recording.reasoning import reasoning_parts, split_reasoning

Given = ParamSpec("Given")
Value = TypeVar("Value")

MAX_ITEMS = 200
MAX_ALL_ITEMS = 1000  # of a value, with what stands in its items
MAPPING = (dict, Mapping)  # dict first: asking the abstract class costs ten times as much
_SEQUENCE = (list, tuple, Set, MutableSequence, ValuesView)
_STRUCTURE = (*MAPPING, *_SEQUENCE, int, float)
_OTHERS = frozenset({"human", "user", "tool", "system", "function"})
_NO_COMMAND = (dict, list, str, type(None))
_FIELDS = ("model_fields", "__dataclass_fields__", "__attrs_attrs__")
_SMALL = (str, int, float, type(None))
_WRITES_ALL = (BaseException.__str__, KeyError.__str__)  # whatever the exception was given
_BYTES = (bytes, bytearray, memoryview)
_LEFT_OUT = "characters left out] ..."
_MARK = re.compile(r"\.\.\. \[(\d{1,15}) " + re.escape(_LEFT_OUT))
MAX_DEPTH = 8
_KEY_CHARS = 200
_NUMBER_CHARS = 8  # what a number, a truth value or nothing counts for
_ITEM_CHARS = 2  # what stands between two items
_EXACT_INTEGERS = 2**53  # JSON's readers may keep a number in a float
_WRITTEN_BITS = 2048  # Python writes no more than 640 digits where it is told to be strict

# The keys under which chains usually carry the task, most telling first.
OBJECTIVE_KEYS = (
    "objective", "task", "question", "query", "input", "user_input", "request", "goal", "message",
    "prompt", "text",
)  # fmt: skip
ANSWER_KEYS = ("output", "answer", "result", "response", "final_answer", "text", "content")


def contained(
    otherwise: object,
) -> Callable[[Callable[Given, Value]], Callable[Given, Value]]:
    """Make a function that reads a user's value return `otherwise` where that raises."""

    def decorate(read: Callable[Given, Value]) -> Callable[Given, Value]:
        @wraps(read)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Value:
            try:
                return read(*args, **kwargs)
            except BaseException as error:
                if raised_by_host(error):
                    raise
                return cast("Value", otherwise)

        return call

    return decorate


def clip(text: str, limit: int, *, margin: int = 0) -> str:
    """Return `text`, cut to `limit` characters: both ends stay, a mark between counts the rest.

    A task may be stated at the end of a long prompt, and a long output's last lines often say how
    it went. A text that was cut before is cut at the same place. A text of a kind of its own
    becomes a plain one.

    Args:
        text: The text.
        limit: Characters to keep, the mark included; where it has no room, the mark alone is kept.
        margin: Characters to leave out on each side of every earlier cut, also where the text is
            within the limit: what a cut made of a secret may stand there.
    """
    if type(text) is not str:
        text = str.__str__(text)
    if margin:
        text = _without_margins(text, margin)
    if len(text) <= limit:
        return text
    size, middle = len(text), len(text) // 2
    marks = _marks(text, limit)
    start = stop = middle
    if marks:  # the one of our own cut is the nearest to the middle, if the text has several
        mark = min(marks, key=lambda one: abs(one.start() + one.end() - size))
        start, stop = mark.start(), mark.end()
    head, tail, note = 0, 0, ""
    for _ in range(3):  # the longer the mark, the more it has to count
        room = max(0, limit - len(note))
        head = min(start, max(room - room // 2, room - (size - stop)))
        tail = min(size - stop, room - head)
        inside = (one for one in marks if head <= one.start() and one.end() <= size - tail)
        note = _mark(size - head - tail + sum(map(_more_than_shown, inside)))
    return f"{text[:head]}{note}{text[size - tail :]}"


def _without_margins(text: str, margin: int) -> str:
    """Leave out `margin` characters on each side of every mark: which one is ours, none tells."""
    parts: list[str] = []
    kept_from, start, stop, hidden = 0, 0, 0, 0
    for mark in _MARK.finditer(text) if _LEFT_OUT in text else ():
        if not hidden or mark.start() - margin > stop:
            if hidden:
                parts += (text[kept_from:start], _mark(hidden + stop - start))
                kept_from = stop
            start, hidden = max(kept_from, mark.start() - margin), 0
        stop = min(len(text), mark.end() + margin)
        hidden += _more_than_shown(mark)
    if stop:
        parts += (text[kept_from:start], _mark(hidden + stop - start))
    return "".join([*parts, text[stop:]]) if stop else text


def _mark(left_out: int) -> str:
    return f"... [{left_out} {_LEFT_OUT}"


def _more_than_shown(mark: re.Match[str]) -> int:
    return int(mark[1]) - len(mark[0])


def _whole_size(text: str) -> int:
    """How long a text was before it was cut."""
    return len(text) + sum(map(_more_than_shown, _MARK.finditer(text)))


def _marks(text: str, reach: int) -> list[re.Match[str]]:
    """The marks of earlier cuts, no further than `reach` characters from the middle."""
    start, stop = max(0, len(text) // 2 - reach - 50), len(text) // 2 + reach + 50
    if text.find(_LEFT_OUT, start, stop) < 0:  # a hundred times as fast
        return []
    return list(_MARK.finditer(text, start, stop))


def clean(text: str) -> str:
    """Replace what UTF-8 or a database cannot hold: lone surrogates and NUL."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text


def describe(value: object, limit: int) -> str:
    """`str(value)` cut to `limit`; the type's name where `str` fails."""
    try:
        return clip(str(value), limit)
    except BaseException as error:  # somebody else's __str__, which may do anything
        if raised_by_host(error):
            raise
        return _kind(value)


def _kind(value: object) -> str:
    return f"<{clip(type(value).__name__, 100)}>"


def error_text(error: object, limit: int) -> str:
    """`TypeName: message` of an exception, cut to `limit`."""
    said = as_text(error, limit)
    name = clip(type(error).__name__, _KEY_CHARS)
    return clip(f"{name}: {said}" if said else name, limit)


def plain(value: object, limit: int) -> Any:
    """Copy `value` into JSON-like form with at most about `limit` characters of text.

    Mappings become dicts, sequences and sets lists, numbers stay; other objects become text.
    Cycles end at `MAX_DEPTH`, long containers at `MAX_ITEMS`. A mapping becomes a dict also where
    there is no room for its items, or where it cannot be read.
    """
    return _plain(value, [limit, MAX_ALL_ITEMS], 0)


def as_input(inputs: object, limit: int) -> dict[str, Any]:
    """Return a tool's input in the form of `plain`, as a dict."""
    shape = plain(inputs, limit)
    return shape if isinstance(shape, dict) else {"input": shape}


def text_size(value: object) -> int:
    """About how many characters a text or a value of `plain` holds, without writing it out."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        inner = sum(map(len, value)) + sum(map(text_size, value.values()))
    elif isinstance(value, list):
        inner = sum(map(text_size, value))
    else:
        return _NUMBER_CHARS
    return inner + _ITEM_CHARS * len(value)


def _plain(value: object, room: list[int], depth: int) -> Any:
    """See `plain`; `room` is for how many more characters and items there is."""
    room[1] -= 1
    if type(value) is str:  # what most are
        text = clip(value, max(room[0], 0))
        room[0] -= len(text)
        return text
    try:
        return _readable(value, room, depth)
    except BaseException as error:  # somebody else's value, which may do anything
        if raised_by_host(error):
            raise
        return _kind(value)


def _readable(value: object, room: list[int], depth: int) -> Any:
    if value is None or value is True or value is False:
        room[0] -= _NUMBER_CHARS
        return value
    if isinstance(value, str):
        text = clip(value, max(room[0], 0))
    elif isinstance(value, (int, float)):
        number = _number(value)
        if not isinstance(number, str):
            room[0] -= _NUMBER_CHARS
            return number
        text = clip(number, max(room[0], 0))
    elif isinstance(value, _BYTES):
        text = _bytes(value)
    elif depth and (depth >= MAX_DEPTH or room[0] <= 0 or room[1] <= 0):
        text = "..."
    elif depth and type(value) is dict and (mark := data_mark(value)):
        text = mark
    elif isinstance(value, MAPPING):
        return _plain_mapping(value, room, depth)
    elif isinstance(value, _SEQUENCE):
        return _plain_sequence(value, room, depth)
    else:
        text = as_text(value, max(room[0], 0), depth + 1)
    room[0] -= len(text)
    return text


def _plain_mapping(value: Mapping[Any, Any], room: list[int], depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    try:
        for key, item in islice(value.items(), MAX_ITEMS + 1):
            if len(out) >= MAX_ITEMS or room[0] <= 0 or room[1] <= 0:
                out["..."] = _more(value, len(out))
                break
            name = clip(key if isinstance(key, str) else _key(key), _KEY_CHARS)
            if name in out:
                name = f"{name} ({len(out)})"
            room[0] -= len(name) + _ITEM_CHARS
            out[name] = _plain(item, room, depth + 1)
    except BaseException as error:  # somebody else's mapping, which may do anything
        if raised_by_host(error):
            raise
        out["..."] = _kind(value)
    return out


def _plain_sequence(value: Iterable[Any], room: list[int], depth: int) -> list[Any]:
    out: list[Any] = []
    try:
        for item in islice(value, MAX_ITEMS + 1):
            if len(out) >= MAX_ITEMS or room[0] <= 0 or room[1] <= 0:
                out.append(f"... {_more(value, len(out))}")
                break
            room[0] -= _ITEM_CHARS
            out.append(_plain(item, room, depth + 1))
    except BaseException as error:  # somebody else's sequence, which may do anything
        if raised_by_host(error):
            raise
        out.append(_kind(value))
    return out


def _more(value: object, shown: int) -> str:
    """How many items are not shown, where that can be believed."""
    if isinstance(value, (dict, list, tuple, set, frozenset)) and len(value) > shown:
        return f"{len(value) - shown} more"
    return "more"


def _key(key: object) -> str:
    """The key of a mapping as text, where it is none."""
    if key is None or isinstance(key, bool):
        return str(key)
    if isinstance(key, (int, float)):
        return str(_number(key))
    return as_text(key, 100)


def _number(value: int | float) -> int | float | str:
    """Python's own number for one of any kind; as text where JSON's readers would spoil it."""
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else str(number)
    integer = int.__int__(value)
    if -_EXACT_INTEGERS <= integer <= _EXACT_INTEGERS:
        return integer
    bits = integer.bit_length()
    return str(integer) if bits <= _WRITTEN_BITS else f"<integer of {bits} bits>"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f"<{value.nbytes if isinstance(value, memoryview) else len(value)} bytes>"


def _fields(value: object) -> Mapping[str, object] | None:
    """The fields of an object that would write out all of them, by reference; None for others.

    Those of pydantic, dataclasses and attrs, namespaces, and LangGraph's `Send`.
    """
    if isinstance(value, type):
        return None
    cls = type(value)
    names = next((found for name in _FIELDS if (found := getattr(cls, name, None))), None)
    if cls.__name__ == "Send" and hasattr(cls, "__slots__"):
        names = cls.__slots__
    if names is None and not isinstance(value, SimpleNamespace):
        return None
    found = getattr(value, "__dict__", None)
    if found is None:  # it keeps them in slots
        listed = (getattr(name, "name", name) for name in islice(names or (), MAX_ITEMS))
        found = {name: getattr(value, name, None) for name in listed}
    return found if isinstance(found, Mapping) else None


def as_text(value: object, limit: int, depth: int = 0) -> str:
    """The text a reader would want of a tool's output or a run's result, cut to `limit`."""
    return written(gist(value, limit, depth), limit)


def written(gist: Any, limit: int) -> str:
    """What `gist` returned as text: structures are compact JSON."""
    return gist if isinstance(gist, str) else clip(_json(gist), limit)


def gist(value: object, limit: int, depth: int = 0) -> Any:
    """What a reader would want of a tool's output or a run's result, cut to `limit` characters.

    Messages give their text, documents their page content, commands the messages they carry,
    structures themselves in the form of `plain`, for `written` to write out when there is time.
    """
    if value is None:
        return ""
    try:
        return clip(value, limit) if isinstance(value, str) else _gist(value, limit, depth)
    except BaseException as error:  # somebody else's value, which may do anything
        if raised_by_host(error):
            raise
        return _kind(value)


def _gist(value: object, limit: int, depth: int) -> Any:
    if isinstance(value, _BYTES):
        return clip(_bytes(value), limit)
    if isinstance(value, BaseException):
        if type(value).__str__ not in _WRITES_ALL or all(type(one) in _SMALL for one in value.args):
            return describe(value, limit)
        return gist(value.args, limit, depth)
    if is_message(value):
        return message_text(value, limit) or _data_in(value, limit, depth)
    page = getattr(value, "page_content", None)
    if isinstance(page, str):
        return clip(page, limit)
    if found := messages_in(value):
        return _joined((message_text(message, limit) for message in found), limit)
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "page_content"):
        return _joined((as_text(item, limit) for item in value[:MAX_ITEMS]), limit)
    if isinstance(value, (list, tuple)) and _are_blocks(value[:MAX_ITEMS]):
        return content_text(value, limit)
    if type(value) is dict and (mark := data_mark(value)):
        return mark
    fields = _fields(value)
    if fields is not None or isinstance(value, _STRUCTURE):
        if depth >= MAX_DEPTH:
            return "..."
        shape = _plain(value if fields is None else fields, [limit, MAX_ALL_ITEMS], depth)
        return clip(shape, limit) if isinstance(shape, str) else shape
    return describe(value, limit)


def _data_in(message: object, limit: int, depth: int) -> Any:
    """The content of a tool's message that holds data and no text."""
    content = getattr(message, "content", None)
    if getattr(message, "type", None) != "tool" or not content or is_content(content[0]):
        return ""
    return _plain(content, [limit, MAX_ALL_ITEMS], depth)


def _json(shape: object) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(", ", ": "))


def _joined(texts: Iterator[str], limit: int, separator: str = "\n\n") -> str:
    """Join texts of at most `limit` characters each, and cut the whole to `limit`."""
    first: list[str] = []
    last: deque[str] = deque()
    room, behind, left_out = max(limit, 1), 0, 0
    for text in filter(None, texts):
        if room > 0:
            first.append(text)
            room -= len(text)
            continue
        last.append(text)
        behind += len(text)
        while behind - len(last[0]) > limit:
            behind -= len(last[0])
            left_out += len(separator) + _whole_size(last.popleft())
    between = [_mark(left_out - len(separator))] if left_out else []
    return clip(separator.join([*first, *between, *last]), limit)


def is_message(value: object) -> bool:
    """Whether `value` is a LangChain message (told by its shape, so that no import is needed)."""
    return (
        hasattr(value, "content")
        and isinstance(getattr(value, "type", None), str)
        and hasattr(value, "additional_kwargs")
    )


@contained(())
def messages_in(value: object) -> Sequence[Any]:
    """The messages that a node's output carries: plain, in a state, or in a `Command`.

    At most `MAX_ALL_ITEMS` of its items are looked at.
    """
    return [item for item in islice(_items(value, 0), MAX_ALL_ITEMS) if is_message(item)]


def _items(value: object, depth: int) -> Iterator[object]:
    if is_message(value) or depth >= MAX_DEPTH:
        yield value
    elif isinstance(value, MAPPING):
        for item in islice(value.values(), MAX_ITEMS):
            if isinstance(item, (list, tuple)):
                yield from item[-MAX_ITEMS:]
            else:
                yield item
    elif isinstance(value, (list, tuple)):
        for item in value[:MAX_ITEMS]:
            if is_command(item):
                yield from _items(item.update, depth + 1)
            else:
                yield item
    elif is_command(value):
        yield from _items(value.update, depth + 1)  # type: ignore[attr-defined]


def attribute(value: object, name: str) -> Any:
    """An attribute of a user's value; None where it has none."""
    try:
        return getattr(value, name, None)
    except BaseException as error:  # somebody else's value, which may do anything
        if raised_by_host(error):
            raise
        return None


@contained(False)
def _is_command(value: object) -> bool:
    return hasattr(value, "update") and hasattr(value, "resume") and hasattr(value, "goto")


def is_command(value: object) -> bool:
    """Whether `value` is a LangGraph `Command`."""
    return type(value) not in _NO_COMMAND and _is_command(value)


def _are_blocks(items: Sequence[object]) -> bool:
    """Whether a list is a message's content, and not data that merely have a type."""
    return all(map(_is_block, items)) and any(map(is_content, items))


def _is_block(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, MAPPING) and "type" in item)


def message_text(message: object, limit: int) -> str:
    """The text and reasoning of a message; signatures, images and the like are left out."""
    try:
        return _text_of(message, limit)
    except BaseException as error:  # somebody else's message
        if raised_by_host(error):
            raise
        return ""


def _text_of(message: object, limit: int) -> str:
    content, extra = getattr(message, "content", None), _beside(message)
    text = content_text(content, limit) if _is_others(message) else thought_text(content, limit)
    if not extra:
        return text
    parts = (reasoning_beside(extra, limit), text, said_beside(extra, limit))
    return _joined(iter(parts), limit)


def _is_others(message: object) -> bool:
    """Whether somebody other than a model wrote a message: it shows tags, but does not think."""
    return getattr(message, "type", None) in _OTHERS


def _beside(message: object) -> Mapping[str, Any]:
    extra = getattr(message, "additional_kwargs", None)
    return extra if extra and isinstance(extra, MAPPING) else {}


def thought_text(content: object, limit: int) -> str:
    """What a model's content says and reasons, the tags around its reasoning left out."""
    if not isinstance(content, str):
        content = content_text(content, limit)
    parts = reasoning_parts(content)
    if not parts:
        return clip(content, limit)
    return _joined((clip(part.strip(), limit) for part, _ in parts), limit)


def reasoning_beside(extra: Mapping[str, Any], limit: int) -> str:
    """The reasoning that stands in `additional_kwargs`, beside a model's content."""
    if not extra:
        return ""
    found = reasoning_text(extra.get("reasoning_content") or extra.get("reasoning") or "")
    return clip(found, limit)


def said_beside(extra: Mapping[str, Any], limit: int) -> str:
    """What a model says beside its content: that it refuses, or in a recording of its voice."""
    if not extra:
        return ""
    audio, refusal = extra.get("audio"), extra.get("refusal")
    transcript = audio.get("transcript") if isinstance(audio, MAPPING) else None
    said = (mark_of("audio") if audio else "", transcript, refusal)
    return _joined((clip(one, limit) for one in said if isinstance(one, str)), limit, "\n")


def content_text(content: object, limit: int) -> str:
    """The text and reasoning blocks of a message's content, in order."""
    if isinstance(content, str):
        return clip(content, limit)
    if not isinstance(content, Sequence):
        return ""
    return _joined(
        (clip(_block_text(block), limit) for block in islice(content, MAX_ITEMS)),
        limit,
        separator="\n",
    )


def last_human_text(messages: object, limit: int) -> str:
    """The text of the last human message in a list of messages in any of LangChain's forms."""
    if not isinstance(messages, (list, tuple)):
        return ""
    for message in islice(reversed(messages), MAX_ITEMS):
        role, content = _role_and_content(message)
        if role in ("human", "user"):
            return content_text(content, limit).strip()
    return ""


def _role_and_content(message: object) -> tuple[object, object]:
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    if isinstance(message, MAPPING):
        return message.get("role") or message.get("type"), message.get("content")
    return getattr(message, "type", None), getattr(message, "content", None)


@contained("")
def objective_in(inputs: object, limit: int) -> str:
    """The task that a run's inputs state, or "" where they state none.

    The last human message, else a usual key (`input`, `question`, ...), else the only text there.
    """
    if isinstance(inputs, str):
        return clip(inputs.strip(), limit)
    if is_message(inputs):
        return last_human_text([inputs], limit)
    if isinstance(inputs, (list, tuple)):
        return last_human_text(inputs, limit)
    to_messages = getattr(inputs, "to_messages", None)  # a prompt value
    if callable(to_messages):
        return last_human_text(to_messages(), limit)
    fields = inputs if isinstance(inputs, MAPPING) else _fields(inputs)
    if fields is None:
        return ""
    text = last_human_text(fields.get("messages"), limit)
    if text:
        return text
    for key in OBJECTIVE_KEYS:
        found = fields.get(key)
        if isinstance(found, str) and found.strip():
            return clip(found.strip(), limit)
        text = last_human_text(found, limit)
        if text:
            return text
    items = islice(fields.values(), MAX_ITEMS)
    texts = (item for item in items if isinstance(item, str) and item.strip())
    only = next(texts, "")
    return clip(only.strip(), limit) if next(texts, None) is None else ""


@contained(None)
def answer_in(outputs: object, limit: int) -> Any:
    """The `gist` of the answer that a run's outputs hold; None where nothing was returned."""
    if outputs is None:
        return None
    if isinstance(outputs, MAPPING):
        if has_structure(outputs):
            return gist(outputs["structured_response"], limit)
        messages = outputs.get("messages")
        if isinstance(messages, (list, tuple)) and messages:
            return _answer_text(messages[-1], limit)
        for key in ANSWER_KEYS:
            if key in outputs:
                return _answer_value(outputs[key], limit)
        return gist(outputs, limit) if outputs else ""
    return _answer_text(outputs, limit) if is_message(outputs) else _answer_value(outputs, limit)


def _answer_value(value: object, limit: int) -> Any:
    # A parser hands on a model's text as it is.
    return gist(_spoken(value) if isinstance(value, str) else value, limit)


@contained(False)
def has_structure(outputs: object) -> bool:
    """Whether an agent's outputs hold a structured response."""
    return isinstance(outputs, MAPPING) and outputs.get("structured_response") is not None


def _answer_text(message: object, limit: int) -> Any:
    if is_message(message):
        # Reasoning without a word to the user is no answer.
        return message_content_only(message, limit)
    role, content = _role_and_content(message)
    if role is None:
        return gist(message, limit)
    text = content_text(content, limit)
    return text if role in _OTHERS else _spoken(text)


def message_content_only(message: object, limit: int) -> str:
    """The text of a message without its reasoning.

    Where the model had the provider run tools, what it says after the last of them is its answer.
    """
    content, extra = getattr(message, "content", None), _beside(message)
    said = str if _is_others(message) else _spoken
    if isinstance(content, str):
        text = clip(said(content).strip(), limit)
        return _joined(iter((text, said_beside(extra, limit))), limit) if extra else text
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, (list, tuple)) else []
    kinds = [block.get("type") if isinstance(block, MAPPING) else None for block in blocks]
    last = max((at for at, kind in enumerate(kinds, 1) if role_of(kind)), default=0)
    for part in (blocks[last:], blocks if last else ()):
        texts = (clip(said(said_text(block)), limit) for block in part)
        if text := _joined(texts, limit, separator="\n").strip():
            break
    text = _joined(iter((text, said_beside(extra, limit))), limit)
    return text or _generated([*blocks, *_listed(extra.get("tool_outputs"))], limit)


def _spoken(text: str) -> str:
    return split_reasoning(text)[1]


def _listed(value: object) -> list[Any]:
    return value[:MAX_ALL_ITEMS] if isinstance(value, list) else []


def _generated(blocks: list[Any], limit: int) -> str:
    """Marks for the images that a provider's tool made, for an answer that is nothing else."""
    made = (one for one in blocks if isinstance(one, MAPPING) and one.get("result"))
    families = (generated_media(kind) for one in made if isinstance(kind := one.get("type"), str))
    return _joined((mark_of(family) for family in families if family), limit, separator="\n")
