"""The API reference documents exactly what the package's `__all__` lists name."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import kp_langchain

REFERENCE = (Path(__file__).parents[1] / "examples" / "guides" / "reference.md").read_text()
ROOMS = (
    "scoring", "store", "review", "gate", "redaction", "registry", "integrations.langfuse",
    "integrations.langsmith", "integrations.mlflow", "integrations.openevals",
    "integrations.opentelemetry", "integrations.opik", "integrations.phoenix",
    "integrations.tool_feedback", "recall",
)  # fmt: skip
ENTRIES = re.findall(r"^::: (\S+)$", REFERENCE, flags=re.MULTILINE)


def test_every_public_name_has_one_entry_and_nothing_else_has() -> None:
    shortest = {name: f"kp_langchain.{name}" for name in kp_langchain.__all__}
    for room in ROOMS:
        module = import_module(f"kp_langchain.{room}")
        for name in module.__all__:
            shortest.setdefault(name, f"{module.__name__}.{name}")
    assert sorted(ENTRIES) == sorted(shortest.values())


@pytest.mark.parametrize("name", ["kp_langchain", *(f"kp_langchain.{room}" for room in ROOMS)])
def test_readers_of_the_source_find_every_public_name(name: str) -> None:
    """Type checkers and the API reference see no name that is loaded when first used."""
    module = import_module(name)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    assert set(module.__all__) <= found
