"""Secrets on command lines: the argument that takes the password, from `commands.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.spans import Span, cached_pattern
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import is_placeholder

_PARTS = {
    "{secret}": (
        r"(?!-)(?P<quote>\\*[\"'])?"
        r"(?P<secret>(?(quote)[^\"'\n\\]{1,256}|[^\s\"'\\]{1,256}))"
    ),
    "{word}": r"(?P<secret>[^\s\"'\\]{1,256})",
    "{args}": r"(?:[^\n|;]{0,200}?[ \t])?",
    "{user}": r"[^\s:\"'\\]{1,80}",
    "[\"']?": r"(?:\\*[\"'])?",
    "[ =]": r"[ \t=]{1,8}",
    " ": r"(?:[ \t]{1,8})",
}
_PART = re.compile("|".join(map(re.escape, _PARTS)))


def _expression(row: dict[str, str | bool]) -> str:
    """Return the regular expression of a row of the table."""
    start = r"(?<![\w\-.])" if str(row["pattern"])[0].isalnum() else ""
    return start + _PART.sub(lambda part: _PARTS[part.group()], str(row["pattern"]))


def _finder(rows: list[dict[str, str | bool]], *symbols: str) -> Finder:
    expressions: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        expression = _expression(row), re.IGNORECASE if row.get("any_case") else 0
        for word in str(row["words"]).split(","):
            expressions.setdefault(word, []).append(expression)

    def find(text: str, low: str) -> Iterator[Span]:
        if symbols and _FLAG.search(text) is None:
            return
        words = [word for word in expressions if word in low]
        for expression in dict.fromkeys(row for word in words for row in expressions[word]):
            for match in cached_pattern(*expression).finditer(text):
                if not is_placeholder(match["secret"]):
                    yield Span(*match.span("secret"), "password")

    return Finder(find, symbols or ("",), tuple(expressions))


_TABLE = load_table("commands")
_FLAG = re.compile(r"[ \t]-{1,2}[A-Za-z]")
FINDERS = (_finder(_TABLE["flags"], "-"), _finder(_TABLE["commands"]))
