"""Numbers of persons and accounts: after or before their label, or proven by their check digits.

The labels, the forms and the check digits of each kind are in `tables/identifiers.toml`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.tables import load_table

_TABLE = load_table("identifiers")
_ROWS: list[dict[str, Any]] = _TABLE["identifier"]
_FORMS = [re.compile(f"(?:{row['form']})(?![A-Za-z0-9])", re.ASCII) for row in _ROWS]
_BARE = re.compile(
    "|".join(f"(?P<{row['name']}>{row['bare']})" for row in _ROWS if "bare" in row), re.ASCII
)
_CHECKS = {row["name"]: row.get("checks", []) for row in _ROWS}
_KINDS = {row["name"]: row["kind"] for row in _ROWS}
KINDS = frozenset(_KINDS.values())
# Kinds whose labels, "PAN" and "tax", also mean other things: a value without their form stays.
FORMAL_KINDS = KINDS - {"ssn", "passport", "account", "phone", "iban"}

# A word of a label; a name such as "taxId" has two.
_WORD = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|[#\u260e\u260f\U0001f4de\U0001f4f1]"
)
_COMPOUND = re.compile(r"^(\w{2,})(nummer|nummern|nummeret|numret|number)$")
_LONGEST_LABEL = 5
_MAX_FILLERS = 6
_REACH = 72

# Digits and capitals in groups; the first group with a digit may follow short letters: "AB 12 34".
_NUMBER = re.compile(
    r"(?<![\w.\-])(?<!\d,)(?:[A-Za-z]{1,3} (?=(?P<rest>\d)))?[A-Za-z]{0,8}\d[A-Za-z\d*]{0,40}"
    r"(?:[ .\-/()]{1,2}[A-Za-z\d*]*\d[A-Za-z\d*]*){0,8}",
    re.ASCII,
)
_NO_IDENTIFIER = re.compile(
    # A date, a time, a decimal number, a network address.
    r"(?:19|20)\d\d[\-/.](?:0?[1-9]|1[0-2])[\-/.]\d{1,2}(?!\d)|\d{1,2}[\-/.]\d{1,2}[\-/.](?:19|20)\d\d(?!\d)"
    r"|\d{1,9}\.\d{1,2}(?![\d.])|\d{1,3}(?:\.\d{1,3}){3}(?![\d.\-])"
)
# What may stand between a label and its number, besides words.
_GAP = " +\t\r\n:=#\"'`*|(\\[{<>_.?-\u00a0\u2013\u2014\u2192\u2502\uff1a\uff1d\u300c\u300e\u201c\u201e\u2018\u00ab"
_MARKUP_OR_TURN = re.compile(
    r"(?:</?(?:b|strong|em|td|th|dt|dd|span|label|tr)>\s{0,8}){1,4}$|\?[\"']?\s{1,3}\w{1,12}:\s{1,2}$"
)
_IN_BRACKETS = re.compile(r"\([^()\n]{1,30}\)[\s:=*]{0,4}$")
_CLAUSE = re.compile(r"[,;!?\n]|(?<=\w\w\w\w)\.\s")
_FOR_SOMEONE = re.compile(
    r"(?:for|of|von|de|del|du|para|pour|per)( [^\W\d][\w.'\u2019\-]{0,20}){1,3}(?: (?:is|was|ist|es|est)|:)$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s?\((?P<inside>[^()\n\d]{2,40})\)"
    r"|,? (?:is|was|as|for|ist|est|es)[ ](?P<noun>(?:[A-Za-z'\u2019]{1,24}[ \-]?){1,6})"
)


_WORD_OF_NUMBER = re.compile(r"[A-Za-z\d./\-]{5,40}", re.ASCII)
# More digits after a separator: the number was longer than its form.
_GOES_ON = re.compile(r"[.\-/][A-Za-z\d]")


def find_labelled(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the numbers in `text[first:last]` that have a label, or that their form proves."""
    for match in _NUMBER.finditer(text, max(0, first - 16), last):
        number = match.group()
        if len(number) < 5 or sum(map(str.isdigit, number)) < 4:
            continue
        # "AB 1234": a number of two groups, or a number after the label "AB".
        starts = [match.start(), match.start("rest")] if match["rest"] else [match.start()]
        spans = (_labelled_or_proven(text, start) for start in starts)
        span = next(filter(None, spans), None) or _before_label(text, match)
        if span is not None:
            yield span


def _labelled_or_proven(text: str, start: int) -> Span | None:
    if _NO_IDENTIFIER.match(text, start):
        return None
    return _with_label(text, start) or _proven(text, start)


def label_kind(name: str) -> str | None:
    """Return the kind of the number that a name labels: "national_id" for "taxFileNumber"."""
    rows = (_ROWS[row] for row in _rows_of(name))
    return next((row["kind"] for row in rows if not row.get("only_in_text")), None)


def has_form(name: str, value: str) -> bool:
    """Return whether a value has the form of the numbers that its name labels."""
    return any(_FORMS[row].fullmatch(value.strip().upper()) is not None for row in _rows_of(name))


def _with_label(text: str, start: int) -> Span | None:
    """Return the number at `start` if a label is before it and it has the label's form."""
    before = text[max(0, start - _REACH) : start]
    label = before.rstrip(_GAP)
    gap = before[len(label) :]
    turn = _MARKUP_OR_TURN.search(before)
    if turn is not None:
        label, gap = before[: turn.start()], " "
    if (not gap and label.isascii()) or len(gap) > 24 or gap.count("\n") > 2:
        return None
    if gap.startswith("("):  # a call: sin(123456789)
        return None
    sign = "#" if "#" in gap else ":" if ":" in gap or "=" in gap else ""
    for row in _rows_of(label + sign):
        end = _end_of_form(row, text, start)
        if end is not None and not _GOES_ON.match(text, end):
            return Span(start, end, _ROWS[row]["kind"])
    return None


def _end_of_form(row: int, text: str, start: int) -> int | None:
    """Return where the number at `start` ends if it has the form of a row; one word may be lower case."""
    match = _FORMS[row].match(text, start)
    if match is None:
        word = _WORD_OF_NUMBER.match(text, start)
        match = _FORMS[row].match(word.group().upper()) if word is not None else None
        return start + match.end() if match is not None else None
    return match.end()


def _before_label(text: str, number: re.Match[str]) -> Span | None:
    """Return a number that its label follows: "V is my passport number", "V (NINO)"."""
    match = _AFTER.match(text, number.end())
    if match is None:
        return None
    words = _words(match["inside"] or match["noun"])
    for row in _longest_label(words, ends=range(min(len(words), 8), 0, -1)):
        if _end_of_form(row, text, number.start()) == number.end():
            return Span(*number.span(), _ROWS[row]["kind"])
    return None


def _proven(text: str, start: int) -> Span | None:
    """Return the number at `start` if its form and check digits leave no doubt."""
    match = _BARE.match(text, start)
    if match is None or not match.lastgroup or text[match.end() : match.end() + 1].isalnum():
        return None
    if text[match.end() : match.end() + 1] in ("-", "/", "_"):
        return None
    is_valid = all(checks_out(match.group(), check) for check in _CHECKS[match.lastgroup])
    return Span(*match.span(), _KINDS[match.lastgroup]) if is_valid else None


def checks_out(number: str, check: dict[str, Any]) -> bool:
    """Return whether a weighted sum over the letters and digits of `number` is as it has to be.

    Args:
        number: A number; its separators do not count.
        check: A check as in the table: `weights`, and `letters` or `modulus`.
    """
    values = check.get("values", {})
    characters = [character for character in number if character.isalnum()]
    weights = check["weights"]
    total = 0
    for weight, character in zip(weights, characters, strict=False):
        total += weight * values.get(character, int(character, 36))
    if "letters" in check:
        letters = check["letters"]
        return bool(characters[len(weights)] == letters[total % len(letters)])
    return bool(total % check["modulus"] == 0)


def _rows_of(text: str) -> tuple[int, ...]:
    """Return the rows of the label that `text` ends with, fillers after it left out."""
    parts = _CLAUSE.split(text[-_REACH:])
    return _rows_of_clause(parts[-1].strip() or (parts[-2] if len(parts) > 1 else ""))


@lru_cache(maxsize=4096)
def _rows_of_clause(clause: str) -> tuple[int, ...]:
    words = _words(clause)
    rows = _longest_label(words, ends=range(len(words), max(0, len(words) - _MAX_FILLERS), -1))
    for pattern in (_IN_BRACKETS, _FOR_SOMEONE):
        shorter = pattern.sub("", clause).strip()
        if not rows and shorter != clause:
            words = _words(shorter)
            rows = _longest_label(words, ends=range(len(words), max(0, len(words) - 3), -1))
    return rows


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = "".join(
            character
            for character in unicodedata.normalize("NFKD", text)
            if not unicodedata.combining(character)
        )
    words = (word.lower() for word in _WORD.findall(text))
    return [part for word in words for part in _COMPOUND.sub(r"\1 \2", word).split()]


def _longest_label(words: list[str], ends: range) -> tuple[int, ...]:
    """Return the rows of the longest label that ends at one of `ends`, only fillers between."""
    for end in ends:
        is_counted = not _COUNTERS.isdisjoint(words[end:])
        labels = ["".join(words[start:end]) for start in range(max(0, end - _LONGEST_LABEL), end)]
        rows = next(filter(None, (_rows(label, is_counted) for label in labels)), ())
        if not rows and not words[end - 1].isascii():
            rows = _label_in_script("".join(words[:end]))
        if rows or words[end - 1] not in _FILLERS:
            return rows
    return ()


def _rows(label: str, is_counted: bool) -> tuple[int, ...]:
    rows = _LABELS.get(label, ())
    return tuple(row for row, needs_counter in rows if is_counted or not needs_counter)


def _label_in_script(text: str) -> tuple[int, ...]:
    """Return the rows of the label at the end of `text` in a script without spaces."""
    is_counted = False
    for _ in range(3):
        for label in _SCRIPT_LABELS:
            if text.endswith(label):
                return _rows(label, is_counted)
        ending = next((ending for ending in _ENDINGS if text.endswith(ending)), None)
        if ending is None:
            break
        text, is_counted = text[: -len(ending)], True
    return ()


def _labels() -> dict[str, list[tuple[int, bool]]]:
    labels: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for number, row in enumerate(_ROWS):
        for label in row["labels"]:
            words = _words(label.rstrip("# "))
            labels["".join(words)].append((number, label.endswith("#")))
    return dict(labels)


_FILLERS = frozenset(_TABLE["fillers"].split())
_COUNTERS = frozenset(_TABLE["counters"].split())
_ENDINGS = sorted(("".join(_words(ending)) for ending in _TABLE["endings"]), key=len, reverse=True)
_LABELS = _labels()
_SCRIPT_LABELS = sorted((label for label in _LABELS if not label.isascii()), key=len, reverse=True)
