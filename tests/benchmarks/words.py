"""How the package reads: names that are bare participles, long sentences, words of the documents.

    python -m tests.benchmarks.words [FOLDER]

prints a table by room, and one by document. `FOLDER` is a checkout, by default this one. A name
that is only a participle (`found`, `told`) says that something happened, not what it is.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.harness import table

ROOT = Path(__file__).parents[2]
LONG = 25
"""Words of a sentence that is long."""
_IRREGULAR = frozenset(
    "built drawn found given gone heard held kept known left lost made meant met paid said seen "
    "sent shown sought spoken taken taught told thought understood won worn written".split()
)
_NO_PARTICIPLE = frozenset("bed embed exceed feed need proceed red seed shed speed".split())
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def is_participle(name: str) -> bool:
    """Return whether a name, apart from underscores around it, is one participle."""
    word = name.strip("_")
    if "_" in word or not word.islower():
        return False
    return word in _IRREGULAR or (word.endswith("ed") and word not in _NO_PARTICIPLE)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module gives to a variable, argument, field or function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def sentences_in(source: str, tree: ast.AST) -> Iterator[str]:
    """Yield the sentences of a module's docstrings and comments."""
    texts = [
        text
        for node in ast.walk(tree)
        if isinstance(node, _WITH_DOCSTRING) and (text := ast.get_docstring(node))
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    for text in [*texts, " ".join(comments)]:
        for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z`])|\n\s*\n|\n\s*(?=[-*\w]+: )", text):
            if len(sentence := " ".join(part.split())) > 1:
                yield sentence


def of_rooms(package: Path) -> str:
    """Return a table of participles and sentences by room."""
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = rooms.setdefault(parts[0] if len(parts) > 1 else "(top)", Counter())
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        room["participles"] += sum(map(is_participle, set(names_in(tree))))
        for sentence in sentences_in(source, tree):
            room["sentences"] += 1
            room["long"] += len(sentence.split()) > LONG
    rooms["all"] = sum(rooms.values(), Counter())
    head = ("room", "participles", "sentences", f"longer than {LONG} words")
    rows = [
        (name, f"{room['participles']}", f"{room['sentences']:,}", f"{room['long']}")
        for name, room in sorted(rooms.items(), key=lambda item: (item[0] == "all", item[0]))
    ]
    return table("Names and sentences", head, rows)


def of_documents(root: Path) -> str:
    """Return a table of the words of the README and the guides."""
    paths = [root / "README.md", *sorted((root / "examples" / "guides").glob("*.md"))]
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in paths}
    words["all guides"] = sum(words.values()) - words["README.md"]
    return table(
        "Documents", ("document", "words"), [(name, f"{count:,}") for name, count in words.items()]
    )


def main() -> None:
    """Print both tables."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    print(of_rooms(root / "kp_langchain"), of_documents(root), sep="\n")


if __name__ == "__main__":
    main()
