"""The tools that models could ask for, as OpenAI's functions, without anybody's values.

The definitions are the user's own objects, so they may be of any size and form. What is too large,
or no JSON Schema, is left out as a whole: a schema that was cut would be a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kp_langchain.recording.bounds import default_on_error, short_name
from kp_langchain.recording.langchain_context import openai_function
from kp_langchain.values import clip

_MOST_TOOLS = 200
_MOST_PARTS, _MOST_DEPTH = 3000, 30  # of one schema
_DESCRIPTION_CHARS = 2000
# Under these, the keys are names of parameters or of schemas, and may be anything.
_NAMES = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
# Values and not types: defaults and examples may be anybody's.
_VALUES = frozenset(("default", "const", "example", "examples"))
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class _TooLargeError(Exception):
    """A schema has too many parts, or is nested too deeply."""


def tool_definitions(lists: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return tools as OpenAI's functions, each name once.

    Args:
        lists: Lists of definitions. One in no form that LangChain knows is left out.
    """
    definitions: dict[str, dict[str, Any]] = {}
    for tools in lists:
        for tool in tools[:_MOST_TOOLS]:
            definition = _definition(tool)
            if definition is not None and len(definitions) < _MOST_TOOLS:
                definitions.setdefault(definition["name"], definition)
    return list(definitions.values())


@default_on_error(None)
def _definition(tool: object) -> dict[str, Any] | None:
    function = openai_function(tool)
    name = short_name(function.get("name"))
    if not name:
        return None
    definition: dict[str, Any] = {"name": name}
    if isinstance(description := function.get("description"), str):
        definition["description"] = clip(description, _DESCRIPTION_CHARS)
    if (parameters := function.get("parameters")) is not None:
        definition["parameters"] = _schema_of(parameters)
    if isinstance(strict := function.get("strict"), bool):
        definition["strict"] = strict
    return definition


def _schema_of(parameters: object) -> Mapping[str, Any]:
    """Return a JSON Schema without values; that of any object if it is too large or none."""
    try:
        schema = _Copy().of(parameters, 0)
    except (_TooLargeError, TypeError, ValueError, RuntimeError):  # it may change meanwhile
        return _ANY_OBJECT
    return schema if isinstance(schema, dict) else _ANY_OBJECT


class _Copy:
    """Copies a schema, and counts its parts."""

    def __init__(self) -> None:
        self._room = _MOST_PARTS

    def of(self, value: object, depth: int, *, has_names: bool = False) -> Any:
        """Return a copy of a part of the schema.

        Args:
            value: The part.
            depth: Levels of nesting above it.
            has_names: Whether its keys are names, and none of them says anything.
        """
        self._room -= 1
        if self._room < 0 or depth > _MOST_DEPTH:
            raise _TooLargeError
        if isinstance(value, str):
            return clip(value, _DESCRIPTION_CHARS)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, list | tuple):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {
                clip(str(key), _DESCRIPTION_CHARS): self.of(
                    item, depth + 1, has_names=not has_names and key in _NAMES
                )
                for key, item in value.items()
                if has_names or key not in _VALUES
            }
        raise TypeError
