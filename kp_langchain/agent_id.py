"""The id of an agent, which traces carry and a registry's key belongs to.

A registry deletes a unit only for the agent that the unit names, so the two must be equal.
"""

from __future__ import annotations

from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.redaction.custom_rules import Rules

PREFIX = "kp:agent:"
EXAMPLE = "kp:agent:desk"

_LONGEST_CHARS = 200


def normalise_agent_id(agent_id: str) -> str:
    """Return an agent's id in its canonical form, `kp:agent:<id>`."""
    text = agent_id.strip()
    return text if text.startswith(PREFIX) else f"{PREFIX}{text}"


def check_agent_id(agent_id: str, rules: Rules | None = None) -> str:
    """Return an agent's id in its canonical form, after checking that traces can carry it.

    Args:
        agent_id: The id, with or without `kp:agent:`.
        rules: The user's redaction rules.

    Raises:
        ConfigError: The id is empty, too long or unprintable, or redaction would change it. The
            message shows it redacted.
    """
    text = normalise_agent_id(agent_id)
    instead = f"give another agent_id, such as {EXAMPLE}"
    if text == PREFIX:
        raise ConfigError(f"agent_id is empty; {instead}")
    if len(text) > _LONGEST_CHARS or not text.isprintable():
        raise ConfigError(
            f"agent_id has {len(text)} characters, or some that cannot be printed; {instead} with "
            f"at most {_LONGEST_CHARS}"
        )
    without = redact_agent_id(text, rules)
    if without != text:
        raise ConfigError(
            f"agent_id would be redacted to {without!r}, so that nothing sent under it could be "
            f"withdrawn; {instead}"
        )
    return text


def redact_agent_id(agent_id: str, rules: Rules | None = None) -> str:
    """Return an agent's id as redaction at the strictest level leaves it."""
    return str(redact(agent_id, level="aggregated", rules=rules).value)
