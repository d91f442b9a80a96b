"""The API reference documents exactly what the package's `__all__` lists name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import kp_langchain

REFERENCE = (Path(__file__).parents[1] / "examples" / "guides" / "reference.md").read_text()
ROOMS = ("scoring", "store", "redaction", "registry", "integrations")
ENTRIES = re.findall(r"^::: (\S+)$", REFERENCE, flags=re.MULTILINE)


def test_every_public_name_has_one_entry_and_nothing_else_has() -> None:
    shortest = {name: f"kp_langchain.{name}" for name in kp_langchain.__all__}
    for room in ROOMS:
        module = import_module(f"kp_langchain.{room}")
        for name in getattr(module, "__all__", ()):
            shortest.setdefault(name, f"{module.__name__}.{name}")
    assert sorted(ENTRIES) == sorted(shortest.values())
