"""The command `trust`: which configuration files of working folders are applied in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kp_langchain.cli.output import say
from kp_langchain.errors import KPError


def trust(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A configuration file, or its folder.")
    ] = "kp.toml",
    list_all: Annotated[bool, typer.Option("--list", help="List the trusted files.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Stop trusting the file.")] = False,
) -> None:
    """Trust the kp.toml of a folder with its current content: all of it applies until it changes.

    Without this, its settings that can send, redirect, un-redact or load code are ignored. Read it
    first: it can send your runs, and your key for a registry, wherever it says.
    """
    if list_all:
        if remove:
            raise typer.BadParameter("give either --list or --remove")
        _list()
    elif remove:
        _remove(_config_path(path))
    else:
        _trust(_config_path(path))


def _list() -> None:
    from kp_langchain import config_trust

    for place in config_trust.trusted_paths():
        say(f"{place}{_state(place)}")


def _remove(place: Path) -> None:
    from kp_langchain import config_trust

    if not config_trust.distrust(place):
        raise KPError(f"{place} is not trusted; see: kp-langchain trust --list")
    say(f"{place} is no longer trusted.")


def _trust(place: Path) -> None:
    from kp_langchain import config_trust
    from kp_langchain.config_files import FILE_NAME, content_of, restricted_keys

    if place.name != FILE_NAME:
        raise KPError(
            f"{place} need not be trusted: of the files in a working folder only {FILE_NAME} is "
            "read, and a file that KP_CONFIG names applies in full"
        )
    content = content_of(place)
    keys = restricted_keys(place, content)
    config_trust.trust(place, content)
    say(f"{place} is trusted with its current content. These settings apply because of that:")
    for key in keys or ["none"]:
        say(f"  {key}")


def _config_path(path: str) -> Path:
    from kp_langchain import config_trust
    from kp_langchain.config_files import FILE_NAME

    try:
        file = Path(path).expanduser()
        return config_trust.canonical_path(file / FILE_NAME if file.is_dir() else file)
    except (OSError, RuntimeError) as error:
        raise KPError(f"{path} cannot be looked up: {error}") from None


def _state(place: Path) -> str:
    from kp_langchain import config_trust
    from kp_langchain.config_files import content_of

    try:
        is_trusted = config_trust.is_trusted(place, content_of(place))
    except KPError:
        return "  (missing, or cannot be read)"
    return "" if is_trusted else "  (changed since)"
