"""Links between a sensitive name and its value without `=` or `:`, from `links.toml`.

Notations: flags, pairs, markup, forms, calls. Relations: "changed the password to ...".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from kp_langchain.redaction.extents import (
    ENCODED_QUOTE,
    TYPOGRAPHIC_QUOTES,
    Extent,
    quoted_value,
    value_at,
)
from kp_langchain.redaction.fields import (
    CODE_KINDS,
    NAMES,
    SENTENCE_WORDS,
    SensitiveField,
    is_evident,
    is_mixed,
    is_random,
    is_scrambled,
    is_unmistakable,
    looks_generated,
    looks_like,
    looks_like_bare_password,
    looks_like_password,
)
from kp_langchain.redaction.spans import lazy_pattern, load_table, word_set

# ------------------------------------------------------------------ notations and relations of the table

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


# ------------------------------------------------------------------ sentences

_RANDOM_KINDS = frozenset(("api_key", "token", "secret", "private_key", "authorization", "session"))


_VERB = TABLE_EXPRESSIONS["verb"]
_NEARBY = TABLE_EXPRESSIONS["nearby"]
_BEFORE = TABLE_EXPRESSIONS["before"]
_NAMES_OF_VALUES = word_set("default value text content fallback it is code key")
_SPACE = lazy_pattern(
    rf"[ \t\u3000]{{1,4}}(?:is[ \t]|[057][ \t])?(?![ \t])|(?=[{TYPOGRAPHIC_QUOTES}])"
)
_GROUPS_REVERSED = lazy_pattern(r"(\d{3}[ \-]\d{3})(?![\d.,\-])")
_VALUE_REVERSED = lazy_pattern(r"[.]?([!-&(-~]{4,200})")
_ENDS_CLAUSE = lazy_pattern(
    r"[.,;!?)]*(?:\s*$|\s*\n|[.,;!?)]\s| (?:and|for|but|on|in case|please)\b)"
)
_ADJECTIVE_ENDINGS = ("ed", "ing", "ly", "able", "ible", "ful", "ive", "ory")
_DIGIT = lazy_pattern("[0-9]")
_DIGIT_OR_DASH = lazy_pattern("[0-9_-]")
_REACH_OF_DIGITS = 256
_KINDS_BESIDE = _RANDOM_KINDS | {"password", "credential"}
_REACH_BEFORE = 80
_REACH_AFTER = 160
_REPLACED = "[REDACTED:"
_MOST_REPLACED = 4
_WORD = lazy_pattern(r"(?<![A-Za-z0-9\\])[A-Za-z0-9!#$%^&*+\-_.~?@/=]{10,512}", re.ASCII)
_STOPS = ".!?="
# Before a value that another name has: "id: ...", but not the speaker of a dialogue
_OTHER_NAME = lazy_pattern(
    r"""(?:(?P<speaker>(?:\n|^|[\]#*.?!][ ]?)\w{1,20}[:>][ ])
    |(?P<hash>(?<!\w)(?:h1|sha\d{1,3}|md5)[:=\-]|W/")
    |(?:^|[\n,;{(\[&?|"'-][ ]{0,3}|(?=\w+["'`\])]{0,2}[ ]?=))(?P<name>\w+)["'`\])]{0,2}[ ]?[=:][ ]?)
    (?:[\w',]{1,8}[ ]){0,3}["'`(]{0,2}\Z""",
    re.VERBOSE,
)
_REMARK = lazy_pattern(r"[ \t](?:#|//|--|/\*)[ \t]")
_QUOTES = "\"'`" + TYPOGRAPHIC_QUOTES


def value_in_prose(
    text: str, start: int, end: int, name: str, field: SensitiveField
) -> Extent | None:
    """Return start and end of the value of the name at `text[start:end]` in a sentence, or None.

    Args:
        text: The whole text.
        start: Where the sensitive name starts.
        end: Where it ends.
        name: The name, with the words before it that belong to it.
        field: What it says about its value.
    """
    return (
        _verb(text, end, field)
        or (field.kind in _RANDOM_KINDS and _random_nearby(text, end))
        or linked_value(RELATIONS, text, start, end, field)
        or _space(text, end, name, field)
        or _before(text, start, end, field)
        or _beside(text, start, end, field)
    )


def _verb(text: str, end: int, field: SensitiveField) -> Extent | None:
    match = _VERB.match(text, end)
    if match is None:
        return None
    content = quoted_value(text, match.end())
    extent = content or code_or_value(text, match.end(), field)
    value = text[slice(*extent)] if extent else ""
    if extent is None or "://" in value:
        return None
    is_like_password = looks_like_bare_password if match["short"] else looks_like_password
    if is_like_password(value) or (field.kind in CODE_KINDS and value.isdigit()):
        return extent
    if match["english"] is None:
        return (
            extent if looks_like("three words and more", value) or is_scrambled(value, 10) else None
        )
    if content or any(map(str.isdigit, value)) or looks_generated(value) or value.count("-") > 1:
        return extent
    is_adjective = value.lower().endswith(_ADJECTIVE_ENDINGS) or value.lower() in SENTENCE_WORDS
    is_word = field.kind in ("password", "credential") and not is_adjective
    return extent if is_word and _ENDS_CLAUSE.match(text, extent[1]) else None


def _random_nearby(text: str, end: int) -> Extent | None:
    """Return start and end of a random value a few words after the name of a key or token."""
    match = _NEARBY.match(text, end)
    if match is None:
        return None
    value = match["value"].rstrip(".")
    if not is_random(value) and not (match["sign"] and looks_like("hash or UUID", value)):
        return None
    return match.start("value"), match.start("value") + len(value)


def _space(text: str, end: int, name: str, field: SensitiveField) -> Extent | None:
    space = _SPACE.match(text, end)
    if space is None:
        return None
    at = space.end()
    if field.kind == "password" and field.is_strong and text[at : at + 1] in _QUOTES:
        content = quoted_value(text, at)
        return content if content and not re.search(r"\s", text[slice(*content)]) else None
    extent = value_at(text, at)
    value = text[slice(*extent)] if extent else ""
    if name.isupper() or name.lower() == "pw":
        return extent if looks_like_bare_password(value) else None
    if field.kind in _RANDOM_KINDS - {"secret"}:
        return extent if is_scrambled(value, 12) else None
    return extent if field.is_strong and is_evident(value, field) else None


def _before(text: str, start: int, end: int, field: SensitiveField) -> Extent | None:
    """Return start and end of the value in "... is the password"."""
    first = max(0, start - 72)
    if _DIGIT_OR_DASH.search(text, max(0, start - _REACH_OF_DIGITS), start) is None:
        return None
    link = _BEFORE.search(text, first, start)
    if link is None:
        return None
    if link["bracket"] and text[end : end + 1] not in (")", "]"):
        return None
    reach = text[max(0, link.start() - 200) : link.start()][::-1]
    groups = _GROUPS_REVERSED.match(reach) if field.kind in CODE_KINDS else None
    match = groups or _VALUE_REVERSED.match(reach)
    if match is None:
        return None
    value = match[1][::-1].lstrip("\"'`*(,")
    stop = link.start() - match.start(1)
    return (stop - len(value), stop) if is_evident(value, field) else None


def _beside(text: str, start: int, end: int, field: SensitiveField) -> Extent | None:
    """Return start and end of an unmistakable value among the words after the name or before it."""
    if field.kind not in _KINDS_BESIDE or not (field.is_strong or field.kind == "password"):
        return None
    if is_mixed(text[start:end]):
        return None  # "dPw" at the end of a hash
    first = max(0, start - _REACH_BEFORE)
    line_start = text.rfind("\n", first, start) + 1 or first
    # Each pass over the text may replace one value beside the name, and the passes must end.
    if text.count(_REPLACED, line_start, end + _REACH_AFTER) >= _MOST_REPLACED:
        return None
    parts = itertools.chain(
        _words_with_digits(text, end, end + _REACH_AFTER),
        reversed(_words_with_digits(text, line_start, start)),
    )
    for word in filter(None, (_WORD.match(text, part.start()) for part in parts)):
        value = word.group().rstrip(_STOPS)
        if is_unmistakable(value, field):
            sign = _OTHER_NAME.search(text, max(0, word.start() - 60), word.start())
            is_remark = _REMARK.search(text, word.end(), start) is not None
            if (
                not sign
                or sign["speaker"]
                or is_remark
                or (sign["name"] or "").lower() in _NAMES_OF_VALUES
            ):
                return word.start(), word.start() + len(value)
    return None


def _words_with_digits(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Return the long words in `text[start:end]` if a digit is in it."""
    has_digit = _DIGIT.search(text, start, end) is not None
    return list(_WORD.finditer(text, start, end)) if has_digit else []
