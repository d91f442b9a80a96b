"""Write fields of a domain's policy into the configuration file, and change nothing else."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kp_langchain.cli.output import text_output
from kp_langchain.config import Settings, config_file
from kp_langchain.config_files import FILE_VARIABLE, own_file
from kp_langchain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """The result of writing a policy.

    Attributes:
        path: The file that it was written to.
        overridden: The fields that have no effect, because a variable of the environment sets them.
    """

    path: str
    overridden: tuple[str, ...]


def write_policy(domain: str, **values: str | float | None) -> WrittenPolicy:
    """Write fields of a domain's policy into the configuration file.

    That is the file that `KP_CONFIG` names, else `kp.toml` in the working directory. For a domain
    whose runs may be sent it is the user's own, because a working folder's does not count there.
    It is replaced as a whole or not at all; a link stays a link, and a missing file is created.

    Args:
        domain: The domain's exact name.
        values: The fields by name: text or numbers; None removes one from the domain's table.

    Raises:
        KPError: The file cannot be used, changed or written; it is unchanged.
    """
    settings = Settings()  # says what is wrong with the file as it is
    path = config_file()
    own = own_file()
    is_private = settings.policy_for(domain).visibility == "private"
    if own is not None and not is_private and not os.environ.get(FILE_VARIABLE):
        path = own
    path = path.expanduser()
    old = path.read_bytes().decode("utf-8-sig") if path.exists() else ""
    new = with_policy(old, domain, values)
    try:
        settings = Settings.supposing(new, path)
    except ConfigError as error:
        raise ConfigError(f"{path} is unchanged, because with the change {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with text_output(str(path)) as write:
        write(new)
    policy = settings.policy_for(domain)
    overridden = tuple(name for name, value in values.items() if getattr(policy, name) != value)
    return WrittenPolicy(str(path), overridden)


def with_policy(text: str, domain: str, values: Mapping[str, str | float | None]) -> str:
    """Return a TOML text with values of the table `[domains.<domain>]` set, nothing else changed.

    Args:
        text: Valid TOML.
        domain: The domain's name.
        values: Text or numbers by key; None removes a key.

    Raises:
        ConfigError: The domain has no table of its own with a line for each of these keys; the
            message shows what to write by hand.
    """
    name = domain if re.fullmatch(r"[A-Za-z0-9_-]+", domain) else _toml(domain)
    header = f"[domains.{name}]"
    fields = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.strip().startswith(header)), None)
    if start is None:
        new = [*lines, *([""] if lines else []), header, *fields]
    else:
        rest = enumerate(lines[start + 1 :], start + 1)
        end = next((at for at, line in rest if line.lstrip().startswith("[")), len(lines))
        others = [
            line for line in lines[start + 1 : end] if line.partition("=")[0].strip() not in values
        ]
        new = [*lines[: start + 1], *fields, *others, *lines[end:]]
    new_text = "\n".join([*new, ""])
    if not _is_change(new_text, text, domain, values):
        by_hand = "\n".join([header, *fields])
        raise ConfigError(
            f"{config_file()} has a layout that this program cannot change; "
            f"write this by hand:\n{by_hand}"
        )
    return new_text


def _is_change(new: str, old: str, domain: str, values: Mapping[str, Any]) -> bool:
    """Return whether a text says what an old one does, and the values of the domain."""
    target = tomllib.loads(old)
    policy = target.setdefault("domains", {}).setdefault(domain, {})
    for key, value in values.items():
        policy.pop(key, None)
        if value is not None:
            policy[key] = value
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(new) == target
    return False


def _toml(value: str | float | None) -> str:
    """Return a text or a number as TOML writes it: as JSON does, but for one more escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
