"""The id of an agent: what traces carry, and what a registry's key belongs to.

A registry deletes a unit only for the agent that the unit names, so the two must be the same text.
"""

from __future__ import annotations

from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.redaction.custom_rules import Rules

PREFIX = "kp:agent:"
EXAMPLE = "kp:agent:desk"

_LONGEST_CHARS = 200


def normalised(agent_id: str) -> str:
    """Return an agent's id in its one form, `kp:agent:<id>`."""
    text = agent_id.strip()
    return text if text.startswith(PREFIX) else f"{PREFIX}{text}"


def usable(agent_id: str, rules: Rules | None = None) -> str:
    """Return an agent's id in its one form, if it can be written into traces as it is.

    Args:
        agent_id: The id, with or without `kp:agent:`.
        rules: What is redacted besides what is always.

    Raises:
        ConfigError: It is empty, too long, cannot be printed, or redaction would change it. The
            message shows no more of it than redaction leaves.
    """
    text = normalised(agent_id)
    instead = f"give another agent_id, such as {EXAMPLE}"
    if text == PREFIX:
        raise ConfigError(f"agent_id is empty; {instead}")
    if len(text) > _LONGEST_CHARS or not text.isprintable():
        raise ConfigError(
            f"agent_id has {len(text)} characters, or some that cannot be printed; {instead} with "
            f"at most {_LONGEST_CHARS}"
        )
    left = shown(text, rules)
    if left != text:
        raise ConfigError(
            f"agent_id would be redacted to {left!r}, so that nothing sent under it could be "
            f"withdrawn; {instead}"
        )
    return text


def shown(agent_id: str, rules: Rules | None = None) -> str:
    """Return what redaction leaves of an agent's id."""
    return str(redact(agent_id, level="aggregated", rules=rules).value)
