"""The command `register`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.output import say
from kp_langchain.cli.sending import require_registry
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings


def register(
    agent_id: Annotated[str, typer.Option(help="The contributing agent, such as kp:agent:me.")],
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The registry; by default that of the settings."),
    ] = None,
    replace_key: Annotated[
        bool, typer.Option("--replace", help="Replace the stored key of another agent.")
    ] = False,
) -> None:
    """Obtain a key for a registry and store it in a file that only you can read.

    Traces carry the key's agent id from then on, and only this key can withdraw them.
    """
    from kp_langchain.agent_id import check_agent_id, normalise_agent_id, redact_agent_id
    from kp_langchain.config import Settings
    from kp_langchain.registry.credentials import key_file, save_key, stored_key

    settings = Settings()
    agent_id = check_agent_id(agent_id, settings.redaction)
    client = require_registry(settings, registry)
    # The registry shows the key once, so the file has to be usable before.
    present = stored_key(client.url)
    if present is not None and normalise_agent_id(present.agent_id) != agent_id and not replace_key:
        owner = redact_agent_id(present.agent_id)
        raise KPError(
            f"{key_file()} holds a key for {client.url} already, of {owner}; --replace would lose "
            "it, and what was sent with it could no longer be withdrawn"
        )
    key = client.register(agent_id)
    path = save_key(client.url, agent_id, key)
    for line in _conflicts(settings, client.url, agent_id):
        say(line)
    say(f"{client.url} gave a key for {agent_id}; it is in {path}")


def _conflicts(settings: Settings, url: str, agent_id: str) -> list[str]:
    """Return, as lines to print, which settings keep the stored key or its agent from being used.

    Args:
        settings: The settings, read before the key was stored.
        url: The registry's URL.
        agent_id: The agent that the key belongs to.
    """
    from kp_langchain.agent_id import normalise_agent_id
    from kp_langchain.registry.credentials import configured_registry

    lines = []
    registry = configured_registry(settings, url)
    if settings.api_key is not None and registry is not None and registry.agent_id != agent_id:
        lines.append(
            f"But api_key is set ({_origin('api_key')}) and overrides the new key: unset it to use "
            "that one"
        )
    if settings.agent_id is not None and normalise_agent_id(settings.agent_id) != agent_id:
        lines.append(
            f"But agent_id is set ({_origin('agent_id')}) to another agent, so the new key could "
            "not withdraw what is sent: unset it"
        )
    return lines


def _origin(name: str) -> str:
    """Return where a setting comes from: an environment variable or a file."""
    from kp_langchain.config import Settings
    from kp_langchain.config_files import read_files

    variable = f"KP_{name.upper()}"
    variables = [key for key, value in os.environ.items() if key.upper() == variable and value]
    files = [str(file.path) for file in read_files(Settings.model_fields) if name in file.values]
    return (variables + files)[0]
