"""How much code there is, by room: lines without blanks, comments and docstrings, and functions.

    python -m tests.benchmarks.lines [FOLDER ...]

prints a table in Markdown for each folder, by default for this checkout's package. A room is a
package inside it. "p50" and "p99" are the median and the 99th percentile of the lines of functions.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from tests.benchmarks.harness import table

PACKAGE = Path(__file__).parents[2] / "kp_langchain"
_LONG_FILE, _SHORT_FILE = 450, 60
_NOT_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Room:
    """What is counted of one room.

    Attributes:
        code: Lines of code of each file, by its path.
        all_lines: All lines of each file.
        functions: Lines of code of each function.
    """

    code: dict[Path, int] = field(default_factory=dict)
    all_lines: dict[Path, int] = field(default_factory=dict)
    functions: list[int] = field(default_factory=list)

    def add(self, other: Room) -> None:
        """Add what is counted of another room."""
        self.code |= other.code
        self.all_lines |= other.all_lines
        self.functions += other.functions


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def _functions(source: str, lines: set[int]) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))


def rooms_of(package: Path) -> dict[str, Room]:
    """Return what is counted of each room of a package, by its name."""
    rooms: dict[str, Room] = defaultdict(Room)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        source = path.read_text(encoding="utf-8")
        lines = code_lines(source)
        room = rooms[parts[0] if len(parts) > 1 else "(top)"]
        room.code[path] = len(lines)
        room.all_lines[path] = source.count("\n")
        room.functions += _functions(source, lines)
    return rooms


def _row(name: str, room: Room) -> list[str]:
    percentiles = quantiles(room.functions, n=100) if len(room.functions) > 1 else [0.0] * 99
    long = sum(lines > _LONG_FILE for lines in room.all_lines.values())
    short = sum(lines < _SHORT_FILE for lines in room.all_lines.values())
    return [
        name, str(len(room.code)), f"{sum(room.code.values()):,}", f"{percentiles[49]:.0f}",
        f"{percentiles[98]:.0f}", str(long), str(short),
    ]  # fmt: skip


def main() -> None:
    """Print the tables."""
    for package in [Path(text) for text in sys.argv[1:]] or [PACKAGE]:
        rooms = rooms_of(package)
        whole = Room()
        for room in rooms.values():
            whole.add(room)
        rows = [_row(name, room) for name, room in sorted(rooms.items())]
        head = ("room", "files", "code lines", "p50", "p99", f"files > {_LONG_FILE}")
        print(table(str(package), (*head, f"< {_SHORT_FILE}"), [*rows, _row("all", whole)]))


if __name__ == "__main__":
    main()
