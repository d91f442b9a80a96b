"""Conversations, one a line: `{"messages": [...]}` or the list alone."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage

from kp_langchain.importing.langchain_values import restore
from kp_langchain.importing.recorded_run import (
    RecordedRun,
    id_from,
    list_of,
    mapping_of,
    text_of,
)
from kp_langchain.recording.from_messages import read_messages
from kp_langchain.recording.outcome import read_verdict
from kp_langchain.run_keys import NAMESPACE_NAME, id_text, namespace_text

_IDS = ("run_id", "id", "trace_id")
_SOURCE = "import"


def is_conversation(value: object) -> bool:
    """Return whether a JSON value looks like a line of messages."""
    if isinstance(value, dict):
        return isinstance(value.get("messages"), list) and "run_type" not in value
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(isinstance(part, str) for part in value)
    return isinstance(value, dict) and bool({"role", "type", "lc"} & set(value))


def run_of_line(value: Any, place: str) -> RecordedRun:
    """Return the run that a line describes.

    Args:
        value: What the line holds.
        place: Where it stands.

    Raises:
        ValueError: The line describes no run; the message says why.
    """
    fields = value if isinstance(value, dict) else {"messages": value}
    if not isinstance(fields.get("messages"), list):
        raise ValueError('no list of "messages"')  # noqa: TRY004
    messages = read_messages(restore(fields["messages"]))
    if not any(isinstance(message, AIMessage) for message in messages):
        raise ValueError(
            f"{len(messages)} messages hold no model answer and no tool call: nothing to trace"
        )
    metadata = _metadata(fields)
    return RecordedRun(
        run_id=_run_id(fields, namespace_text(metadata)),
        place=place,
        messages=messages,
        metadata=metadata,
        tags=list_of(metadata.get("tags")),
        name=text_of(metadata.get("name")),
        domain=_text(fields, "domain") or _text(fields, "kp_domain"),
        objective=_text(fields, "objective"),
        verdict=read_verdict(
            {
                name: fields[name]
                for name in ("success", "confidence")
                if fields.get(name) is not None
            },
            _SOURCE,
        ),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return (value or "").strip()
    raise ValueError(f"{name} is of type {type(value).__name__}; give a text")


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the run's metadata: those in `metadata`, and the other fields of the line."""
    inner = mapping_of(fields.get("metadata"))
    inner = {name: value for name, value in inner.items() if value is not None}
    outer, name = fields.get(NAMESPACE_NAME), NAMESPACE_NAME
    if outer is not None and name in inner and id_text(inner[name]) != id_text(outer):
        raise ValueError(f"{name} differs from the one in metadata")
    return {name: fields[name] for name in fields if name not in ("messages", "metadata")} | inner


def _run_id(fields: dict[str, Any], namespace: str | None) -> UUID:
    # The same id in two namespaces is that of two runs, unless it is a UUID.
    scope = "messages:" if namespace is None else f"messages:{json.dumps(namespace)}:"
    for name in _IDS:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            try:
                return UUID(value)
            except ValueError:
                return id_from(f"{scope}{json.dumps(value.strip())}")
        if isinstance(value, int) and not isinstance(value, bool):
            return id_from(f"{scope}{value}")
    content = json.dumps(fields, sort_keys=True)
    return id_from(f"line:{sha256(content.encode()).hexdigest()}")
