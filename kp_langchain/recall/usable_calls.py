"""Which of a trace's calls an agent could make: those whose tools it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_REDACTED = "[REDACTED"


def usable_share(plan: Mapping[str, int], tools: Collection[str]) -> float:
    """Return the share of a trace's calls whose tools an agent has, 0 to 1; 1 where unknown.

    A name of which a part was redacted may be that of any tool.

    Args:
        plan: How often the trace called each tool, by the tool's name.
        tools: The names of the agent's tools; empty if unknown.
    """
    calls = {name: count for name, count in plan.items() if count > 0}
    if not calls or not tools:
        return 1.0
    usable = sum(count for name, count in calls.items() if name in tools or _REDACTED in name)
    return usable / sum(calls.values())
