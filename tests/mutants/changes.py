"""The changes that mutants make to a module.

Left out is what no test should hold: annotations, docstrings, logging, the texts of exceptions,
`__repr__`, decorators, protocols, and the strings of tables at the top of a module.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
# What the design gives up, and what only people read.
FUNCTIONS_LEFT_OUT = {
    "__repr__", "_after_fork", "leave_to_parent", "_leave_to_parent",
}  # fmt: skip
LOGGING = {"warn_once", "log_event", "debug", "info", "warning", "exception"}
TYPING = {"cast", "TypeVar"}  # their first argument is a type or its name
PROBE = "_kp_ran"
FIELDS_LEFT_OUT = {"annotation", "returns", "decorator_list", "format_spec", "bases", "keywords"}


@dataclass(frozen=True)
class Change:
    """One node of a syntax tree replaced by another.

    Args:
        line: Where it is.
        seen_from: The first and last line of which one must run for a test to see the change.
        parent: The node, or the list of nodes, that it is in.
        place: The name or the number of its place in there.
        new: The other node.
    """

    line: int
    seen_from: tuple[int, int]
    parent: Any
    place: Any
    new: ast.AST

    def __str__(self) -> str:
        old = self.parent[self.place] if self._is_in_list else getattr(self.parent, self.place)
        return f"{ast.unparse(old)} -> {ast.unparse(self.new)}"

    def make(self) -> None:
        if self._is_in_list:
            self.parent[self.place] = self.new
        else:
            setattr(self.parent, self.place, self.new)

    @property
    def _is_in_list(self) -> bool:
        return isinstance(self.parent, list)


def changes(tree: ast.Module) -> list[Change]:
    """Return the changes that can be made to a module, in the same order for the same text."""
    walk = _Walk()
    walk.statements(tree.body)
    return walk.changes


class _Walk:
    """Collects changes; knows in what kind of block it is, and what runs the present statement."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._block = "module"
        self._seen_from = (0, 0)

    def statements(self, body: list[ast.stmt]) -> None:
        for at, statement in enumerate(body):
            line = statement.lineno
            # What stands outside of functions runs at the import, for every test of the module.
            self._seen_from = (line, line) if self._block == "function" else (1, 1_000_000)
            if _is_removable(statement):
                self._add(statement, body, at, ast.Pass())
            if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATORS:
                other = OPERATORS[type(statement.op)]()
                self._add(statement, body, at, _with(statement, op=other))
            self._statement(statement)

    def _add(self, node: Any, parent: Any, place: Any, new: ast.AST) -> None:
        self.changes.append(Change(node.lineno, self._seen_from, parent, place, new))

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                if not any("Protocol" in ast.unparse(base) for base in node.bases):
                    outer, self._block = self._block, "class"
                    self.statements(node.body)
                    self._block = outer
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                self.statements(node.orelse)
            case ast.Raise() | ast.Assert() | ast.Expr(ast.Constant()):
                pass
            case ast.Return(ast.AST() as value) if not _is_constant(value, None, False):
                self._add(node, node, "value", ast.Constant(None))
                self._parts(node)
            case _:
                self._parts(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorators = {ast.unparse(one) for one in node.decorator_list}
        if node.name in FUNCTIONS_LEFT_OUT or decorators & {"overload", "abstractmethod"}:
            return
        self._seen_from = (node.body[0].lineno, node.body[-1].end_lineno or 0)
        outer, self._block = self._block, "function"
        self._parts(node.args)
        self.statements(node.body)
        self._block = outer

    def _parts(self, node: ast.AST) -> None:
        """Collect the changes in each part of a node."""
        seen_from = self._seen_from
        if isinstance(node, ast.If | ast.IfExp):
            self._add(node, node, "test", ast.Constant(True))
        if isinstance(node, ast.If | ast.IfExp | ast.While):  # a forced loop would never end
            self._add(node, node, "test", ast.Constant(False))
        for name, value in ast.iter_fields(node):
            if name in FIELDS_LEFT_OUT and not isinstance(node, ast.Call):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.statements(value)
                self._seen_from = seen_from
            elif isinstance(value, list):
                for at, part in enumerate(value):
                    self._part(part, value, at)
            else:
                self._part(value, node, name)

    def _part(self, node: Any, parent: Any, place: Any) -> None:
        """Collect the changes to an expression, and in it."""
        is_assertion = isinstance(node, ast.keyword) and node.arg == "strict"  # of zip
        if not isinstance(node, ast.AST) or _is_logging(node) or is_assertion:
            return
        for new in self._replacements(node):
            self._add(node, parent, place, new)
        match node:
            case ast.Call(func=ast.Name(name)) if name in TYPING:
                for at in range(1, len(node.args)):
                    self._part(node.args[at], node.args, at)
            case ast.JoinedStr():
                for part in node.values:
                    if isinstance(part, ast.FormattedValue):
                        self._part(part.value, part, "value")
            case ast.comprehension():
                for at, condition in enumerate(node.ifs):
                    self._add(condition, node.ifs, at, ast.Constant(True))
                self._parts(node)
            case _:
                self._parts(node)

    def _replacements(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Compare():
                for at, operator in enumerate(node.ops):
                    other = COMPARISONS[type(operator)]()
                    yield _with(node, ops=[*node.ops[:at], other, *node.ops[at + 1 :]])
            case ast.BoolOp() | ast.BinOp() if type(node.op) in OPERATORS:
                yield _with(node, op=OPERATORS[type(node.op)]())
            case ast.UnaryOp(ast.Not(), operand):
                yield operand
            case ast.Constant(bool() as flag):
                yield ast.Constant(not flag)
            case ast.Constant(int() | float() as number):
                yield ast.Constant(number + 1)
            case ast.Constant(str() as text) if self._block != "module":
                yield ast.Constant(f"XX{text}")


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_constant(node: ast.AST, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is value for value in values)


def _is_logging(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return name in LOGGING


def _is_removable(node: ast.stmt) -> bool:
    """Return whether nothing but a missing effect would tell that the statement is gone."""
    match node:
        case ast.Expr(ast.Await() | ast.Call() as call):
            return not _is_logging(call)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            return True
        case _:
            return False


class Probes(ast.NodeTransformer):
    """Have every statement of a function first call the builtin `PROBE` with a number.

    Args:
        first: The number of line 0; those of the other lines follow.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._is_in_function = False

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        outer, self._is_in_function = self._is_in_function, True
        self.generic_visit(node)
        self._is_in_function = outer
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._is_in_function = self._is_in_function, False
        self.generic_visit(node)
        self._is_in_function = outer
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if self._is_in_function and isinstance(block, list):
                setattr(node, name, [one for statement in block for one in self._probed(statement)])
        return node

    def _probed(self, statement: ast.stmt) -> list[ast.stmt]:
        number = self._first + statement.lineno
        probe = ast.parse(f"{PROBE}({number})").body[0]
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        return [statement] if is_docstring else [probe, statement]
