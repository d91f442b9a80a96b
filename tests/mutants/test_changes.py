"""Which changes mutants make, and which they leave out."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tests.mutants.changes import PROBE, Probes, changes

CASES = {
    "a < b <= 1": ["a < b <= 1 -> a <= b <= 1", "a < b <= 1 -> a < b < 1", "1 -> 2"],
    "x = a not in b": ["a not in b -> a in b"],
    "x = not a or b": ["not a or b -> not a and b", "not a -> a"],
    "x = a + 0.5": ["a + 0.5 -> a - 0.5", "0.5 -> 1.5"],
    "x = True": ["True -> False"],
    "x = a if b else c": ["b -> True", "b -> False"],
    "x = [a for a in b if c]": ["c -> True"],
    "a.b = c": ["a.b = c -> pass"],
    "a += b": ["a += b -> pass", "a += b -> a -= b"],
    "f('x')": ["f('x') -> pass", "'x' -> 'XXx'"],
    "while a: break": ["a -> False", "break -> pass"],
    "return a": ["a -> None"],
    "return None": [],
    "if a: b()": ["a -> True", "a -> False", "b() -> pass"],
    # left out
    "'a docstring'": [],
    "x: Literal['a'] = b": [],
    "raise ValueError(f'{a} is not 1')": [],
    "warn_once('kind', 'words')": [],
    "x = cast('int', a)": [],
    "x = zip(a, b, strict=True)": [],
    "x = f'words {a + b:02}'": ["a + b -> a - b"],
    "if TYPE_CHECKING: import a": [],
}


@pytest.mark.parametrize("statement", CASES)
def test_a_statement_is_changed_in_these_ways(statement: str) -> None:
    found = [str(one) for one in changes(ast.parse(f"def f():\n    {statement}"))]
    assert found == CASES[statement]


def test_defaults_are_changed_and_what_runs_at_the_import() -> None:
    tree = ast.parse("LIMIT = 3\nNAMES = {'a'}\ndef f(a=1, *, b='x'):\n    pass\n")
    assert [(str(one), one.seen_from[0]) for one in changes(tree)] == [
        ("3 -> 4", 1), ("'x' -> 'XXx'", 4), ("1 -> 2", 4)
    ]  # fmt: skip


def test_a_change_is_made_in_the_tree_alone() -> None:
    tree = ast.parse("def f(a):\n    return a < 1 and a > 0")
    changes(tree)[2].make()
    assert ast.unparse(tree) == "def f(a):\n    return a <= 1 and a > 0"


def test_probes_tell_the_lines_that_run() -> None:
    text = (
        "def f(a):\n    'words'\n    if a:\n        return 1\n    elif not a:\n        return 2\n"
    )
    ran: list[int] = []
    space: dict[str, Any] = {PROBE: ran.append}
    exec(ast.unparse(Probes(100).visit(ast.parse(text))), space)  # noqa: S102
    assert space["f"](0) == 2
    assert ran == [103, 105, 106]
    assert space["f"].__doc__ == "words"
