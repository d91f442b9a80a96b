"""The command `trust`: which configuration files of working folders count wholly."""

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
    listed: Annotated[bool, typer.Option("--list", help="List what is trusted.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Trust it no more.")] = False,
) -> None:
    """Trust the kp.toml of a folder as it is now: all that it says counts until it is changed.

    Without this, nothing in it counts that can send, redirect, un-redact or load code. Read it
    first: it can send your runs, and your key for a registry, wherever it says.
    """
    from kp_langchain import config_trust
    from kp_langchain.config_files import FILE_NAME, content_of, restricted_keys

    if listed:
        if remove:
            raise typer.BadParameter("give either --list or --remove")
        for place in config_trust.trusted_paths():
            say(f"{place}{_state(place)}")
        return
    try:
        file = Path(path).expanduser()
        place = config_trust.place_of(file / FILE_NAME if file.is_dir() else file)
    except (OSError, RuntimeError) as error:
        raise KPError(f"{path} cannot be looked up: {error}") from None
    if remove:
        if not config_trust.distrust(place):
            raise KPError(f"{place} is not trusted; see: kp-langchain trust --list")
        say(f"{place} is not trusted any more.")
        return
    if place.name != FILE_NAME:
        raise KPError(
            f"{place} need not be trusted: of the files in a working folder only {FILE_NAME} is "
            "read, and one that KP_CONFIG names counts wholly"
        )
    content = content_of(place)
    keys = restricted_keys(place, content)
    config_trust.trust(place, content)
    say(f"{place} is trusted as it is now. Of what it says, this would not count otherwise:")
    for key in keys or ["nothing"]:
        say(f"  {key}")


def _state(place: Path) -> str:
    from kp_langchain import config_trust
    from kp_langchain.config_files import content_of

    try:
        return "" if config_trust.is_trusted(place, content_of(place)) else "  (changed since)"
    except KPError:
        return "  (not there, or not to be read)"
