"""The option `--where KEY=VALUE`, which selects runs by a key of their config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from kp_langchain.errors import KPError
from kp_langchain.near_names import near_name
from kp_langchain.printable import printable
from kp_langchain.run_keys import KINDS

Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help=f"Only runs with this key: {', '.join(KINDS)}. May be repeated.",
    ),
]


def parse_keys(options: Iterable[str] | None) -> dict[str, Any]:
    """Return the keys to select runs by, by name.

    Args:
        options: The values of the option, each `KEY=VALUE`.

    Raises:
        KPError: An option has no `=`, an unknown key or no value, or repeats a key.
    """
    keys: dict[str, Any] = {}
    for option in options or ():
        key, equals, value = (part.strip() for part in option.partition("="))
        choices = f"the keys are {', '.join(KINDS)}"
        if not equals:
            raise _error(option, f"it has no '='; write KEY=VALUE, and {choices}")
        if key not in KINDS:
            near = near_name(key, KINDS)
            hint = f"did you mean {near}? " if near else ""
            raise _error(option, f"unknown key; {hint}{choices}")
        if not value:
            raise _error(option, f"it has no value; write {key}=VALUE")
        if key in keys:
            raise _error(option, f"{key} was given before; give each key once")
        keys[key] = value
    return keys


def _error(option: str, problem: str) -> KPError:
    return KPError(f"--where {printable(option)}: {problem}")
