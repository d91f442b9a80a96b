"""The tables of redaction: what is looked for, as data. One TOML file for each table."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Return the content of the table `NAME.toml` in this folder.

    Args:
        name: The name of the file, without its ending.
    """
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
