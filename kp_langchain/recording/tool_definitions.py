"""The tools that models could ask for, as OpenAI's functions, without anybody's values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kp_langchain.recording.bounds import default_on_error, short_name
from kp_langchain.recording.langchain_context import openai_function
from kp_langchain.recording.values import plain

_MOST_TOOLS, _DEFINITION_CHARS = 200, 20_000
_VALUES = frozenset(("default", "const", "example", "examples"))


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
    known = ("description", "parameters", "strict")
    definition = plain(
        {key: _without_values(function[key]) for key in known if function.get(key) is not None},
        _DEFINITION_CHARS,
    )
    name = short_name(function.get("name"))
    return {"name": name, **definition} if name and isinstance(definition, dict) else None


def _without_values(schema: Any) -> Any:
    """Return a JSON Schema without defaults and examples, which are values and may be anybody's."""
    if isinstance(schema, list):
        return [_without_values(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_values(value)
        for key, value in schema.items()
        # A property may have any name.
        if key not in _VALUES or isinstance(value, dict)
    }
