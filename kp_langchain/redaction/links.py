"""Links between a sensitive name and its value without `=` or `:`, from `links.toml`.

Notations: flags, pairs, markup, forms, calls. Relations: "changed the password to ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kp_langchain.redaction.extents import ENCODED_QUOTE, TYPOGRAPHIC_QUOTES, Extent, value_at
from kp_langchain.redaction.field_names import NAMES, SensitiveField
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import (
    CODE_KINDS,
    SENTENCE_WORDS,
    is_evident,
    looks_like_password,
)

_SHORTEST_CODE = {"cvv": 3, "pin": 4, "otp": 4, "password": 6}
_TESTS: dict[str, Callable[[str, SensitiveField], bool]] = {
    "any": lambda value, _field: value.lower() not in SENTENCE_WORDS,
    "password": lambda value, field: (
        looks_like_password(value)
        or (value.isdigit() and (field.kind in CODE_KINDS or len(value) >= _LONG_NUMBER))
    ),
    "evident": is_evident,
    "code": lambda value, field: len(value) >= _SHORTEST_CODE.get(field.kind, 9),
}
_LONG_NUMBER = 6
_CODE_IN_GROUPS = lazy_pattern(r"\d{3}[ \-]\d{3}(?!\w)")
_REACH = 90

_TABLE = load_table("links")
_PARTS = {
    **_TABLE["parts"],
    **{name: "|".join(map(re.escape, verbs.split())) for name, verbs in NAMES["verbs"].items()},
    "encoded_quote": ENCODED_QUOTE,
    "typographic_quotes": TYPOGRAPHIC_QUOTES,
}
_PART = lazy_pattern(r"\{([a-z_]{2,})\}")


def _compile(expression: str) -> re.Pattern[str]:
    """Compile a verbose expression of the table; {NAME} stands for a part or for verbs."""
    while _PART.search(expression):
        expression = _PART.sub(lambda part: _PARTS[part[1]], expression)
    return lazy_pattern(expression, re.VERBOSE)


class Link(NamedTuple):
    """A row of the table."""

    link: re.Pattern[str]
    is_value: Callable[[str, SensitiveField], bool]
    before: re.Pattern[str]
    after: re.Pattern[str]

    @classmethod
    def from_row(cls, row: dict[str, str]) -> Link:
        """Compile a row of the table."""
        return cls(
            _compile(row["link"]),
            _TESTS[row.get("value", "evident")],
            lazy_pattern(row.get("before", "")),
            lazy_pattern(row.get("after", "")),
        )


TABLE_EXPRESSIONS = {name: _compile(text) for name, text in _TABLE["expressions"].items()}
"""Expressions that the code uses by name."""

NOTATIONS = tuple(map(Link.from_row, _TABLE["notation"]))
CODES = tuple(map(Link.from_row, _TABLE["code"]))
BELOW = tuple(map(Link.from_row, _TABLE["below"]))
RELATIONS = (*map(Link.from_row, _TABLE["relation"]), *BELOW)


def linked_value(
    links: tuple[Link, ...], text: str, start: int, end: int, field: SensitiveField
) -> Extent | None:
    """Return start and end of the value that one of `links` links with the name, or None.

    Args:
        links: `NOTATIONS`, `RELATIONS`, `BELOW` or `CODES`.
        text: The whole text.
        start: Where the name starts.
        end: Where it ends.
        field: What it says about its value.
    """
    before = text[max(0, start - _REACH) : start + 1]
    for link, is_value, start_of_link, end_of_link in links:
        match = link.match(text, end)
        if match is None or not start_of_link.search(before):
            continue
        has_value = "value" in link.groupindex
        extent = match.span("value") if has_value else code_or_value(text, match.end(), field)
        if (
            extent is not None
            and end_of_link.match(text, extent[1])
            and is_value(text[slice(*extent)], field)
        ):
            return extent
    return None


def code_or_value(text: str, at: int, field: SensitiveField) -> Extent | None:
    """Return start and end of the value at `at`; a one-time code may be in two groups of digits."""
    return code_in_groups(text, at, field) or value_at(text, at)


def code_in_groups(text: str, at: int, field: SensitiveField) -> Extent | None:
    """Return start and end of the one-time code at `at`, if it is in two groups of digits."""
    code = _CODE_IN_GROUPS.match(text, at) if field.kind in CODE_KINDS else None
    return code.span() if code else None
