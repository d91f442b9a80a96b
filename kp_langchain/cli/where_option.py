"""The option `--where KEY=VALUE`: which runs are meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Optional

import typer

from kp_langchain.errors import KPError
from kp_langchain.near_names import near_name
from kp_langchain.printable import printable
from kp_langchain.run_keys import KINDS

Where = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        metavar="KEY=VALUE",
        help=f"Only runs with this key: {', '.join(KINDS)}. May be given several times.",
    ),
]


def keys_of(options: Iterable[str] | None) -> dict[str, Any]:
    """Return the keys that runs are looked for by.

    Args:
        options: Each as `KEY=VALUE`.

    Raises:
        KPError: One has another form, an unknown key, no value, or a key that another one has.
    """
    keys: dict[str, Any] = {}
    for option in options or ():
        key, equals, value = (part.strip() for part in option.partition("="))
        known = f"the keys are {', '.join(KINDS)}"
        if not equals:
            raise _mistake(option, f"it has no '='; write KEY=VALUE, and {known}")
        if key not in KINDS:
            near = near_name(key, KINDS)
            right = f"did you mean {near}? " if near else ""
            raise _mistake(option, f"unknown key; {right}{known}")
        if not value:
            raise _mistake(option, f"it has no value; write {key}=VALUE")
        if key in keys:
            raise _mistake(option, f"{key} was given before; give each key once")
        keys[key] = value
    return keys


def _mistake(option: str, fault: str) -> KPError:
    return KPError(f"--where {printable(option)}: {fault}")
