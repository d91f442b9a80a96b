"""How many of a trace's calls an agent could make, and so how much its similarity counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_REDACTED = "[REDACTED"


def similarity_weight(plan: Mapping[str, int], tools: Collection[str]) -> float:
    """Return how much of a trace's similarity counts: (0.5 + usable / 2), 0.5 to 1.

    Usable is the share of its calls whose tools the agent has; 1 where that is unknown. A name of
    which a part was redacted may be that of any tool.

    Args:
        plan: How often the trace called each tool, by the tool's name.
        tools: The names of the agent's tools; empty if unknown.
    """
    calls = {name: count for name, count in plan.items() if count > 0}
    if not calls or not tools:
        return 1.0
    usable = sum(count for name, count in calls.items() if name in tools or _REDACTED in name)
    return 0.5 + usable / sum(calls.values()) / 2


def tool_names(tools: Iterable[object]) -> frozenset[str]:
    """Return the names under which tools are called; none if that of one is unknown.

    Args:
        tools: LangChain's tools, or descriptions of tools for a model's provider.
    """
    names = [_tool_name(tool) for tool in tools]
    return frozenset(names) if all(names) else frozenset()


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        name = getattr(tool, "name", "")  # a function has none
    elif tool.get("type") not in (None, "function", "custom"):
        name = ""  # a tool of the provider, whose calls may have other names
    else:
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""
