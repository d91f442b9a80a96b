"""Numbers of persons and accounts: after or before their label, or proven by their check digits.

The labels, the forms and the check digits of each kind are in `tables/identifiers.toml`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from functools import lru_cache
from typing import Any

from kp_langchain.redaction.spans import Span, lazy_pattern, load_table, trie

TABLE = load_table("identifiers")
ROWS: list[dict[str, Any]] = TABLE["identifier"]
_FORMS = [lazy_pattern(f"(?:{row['form']})(?![A-Za-z0-9])", re.ASCII) for row in ROWS]
KINDS = frozenset(row["kind"] for row in ROWS) - {"none"}
# Kinds whose labels, "PAN" and "tax", also mean other things: a value without their form stays.
FORMAL_KINDS = KINDS - {"ssn", "passport", "account", "phone", "iban"}

# A word of a label; a name such as "taxId" has two.
_WORD = lazy_pattern(
    r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|[#=\u260e\u260f\U0001f4de\U0001f4f1]"
)
# Letters that are not a plain one with an accent.
_PLAIN_LETTERS = str.maketrans("øØđĐłŁıß", "oOdDlLis")
_COMPOUND = lazy_pattern(r"^(\w{2,})(nummer|nummern|nummeret|numret|number|(?<=\w{4})nr)$")
_LONGEST_LABEL = 5
_LONGEST_APART = 4  # letters
_MAX_FILLERS = 6
_REACH = 72

_NO_IDENTIFIER = lazy_pattern(
    # A date, a time, a decimal number, a network address.
    r"(?:19|20)\d\d[\-/.](?:0?[1-9]|1[0-2])[\-/.]\d{1,2}(?!\d)|\d{1,2}[\-/.]\d{1,2}[\-/.](?:19|20)\d\d(?!\d)"
    r"|\d{1,9}\.\d{1,20}(?![\d.\-/])|(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|(?![\d.\-]))){4}"
)
# What may stand between a label and its number, besides words.
_GAP = " +\t\r\n:=#\"'`*|(\\[{<>_.?-\u00a0\u2013\u2014\u2192\u2502\uff1a\uff1d\u300c\u300e\u201c\u201e\u2018\u00ab"
_MARKUP_OR_TURN = lazy_pattern(
    r"""(?:</?(?:b|strong|em|td|th|dt|dd|span|label|tr)>\s{0,8}){1,4}$
    | \?["']?\s{1,3}(?:\w{1,12}:\s{1,2})?(?:(?:it(?:'s|[ ]is)|sure|yes|ok|that's|my|is)[,.:]?\s){0,4}$""",
    re.IGNORECASE | re.VERBOSE,
)
_IN_BRACKETS = lazy_pattern(r"\([^()\n]{1,30}\)")
_SIGNS = frozenset(":=>|\uff1a")
_CLAUSE_ENDS = ",;!?%\n"
_FOR_SOMEONE = lazy_pattern(
    r"(?<!\w)(?:for|of|von|de|del|du|para|pour|per|and|&|und|et|y)( [^\W\d][\w.'\u2019\-]{0,20}){1,3}"
    r"(?: (?:is|was|ist|es|est)|:)$",
    re.IGNORECASE,
)

_WORD_OF_NUMBER = lazy_pattern(r"[A-Za-z\d./\-]{5,40}", re.ASCII)
# After a number that is longer than the form, or that counts something.
_NOT_AFTER = lazy_pattern(
    r"[.\-/][A-Za-z\d]|\s?(?:[%\u20ac$]|(?:[kKMGT]i?[Bb](?:/s|ps)?|[Bb]ytes?|[mnu]?s|EUR|USD|GBP|units|users"
    r"|rows|points|items|events|times|entries|packets)\b)"
)


def find_by_label(text: str, start: int) -> Span | None:
    """Return the number at `start` if a label before it says what it is, and it has its form."""
    if _NO_IDENTIFIER.match(text, start):
        return None
    before = text[max(0, start - _REACH) : start]
    label = before.rstrip(_GAP)
    gap = before[len(label) :]
    if ">" in gap or "?" in before:
        label = _MARKUP_OR_TURN.sub("", before).rstrip(_GAP) or label
    if (not gap and label.isascii()) or len(gap) > 24 or gap.count("\n") > 2:
        return None
    if gap.startswith(("(", "==")) or label[-1:].isdecimal():
        return None  # a call: sin(123456789); a list of numbers
    sign = gap if gap == "=" else "#" if "#" in gap else ""
    if not sign and not _SIGNS.isdisjoint(before[len(label) :]):
        sign = ":"
    for row in _rows_of(label + sign):
        end = _end_of_form(row, text, start)
        if end is not None and text[start:end].strip("0 .-/") and not _NOT_AFTER.match(text, end):
            return Span(start, end, ROWS[row]["kind"])
    return None


def label_kind(name: str) -> str | None:
    """Return the kind of the number that a name labels: "national_id" for "taxFileNumber"."""
    return next((ROWS[row]["kind"] for row in _rows_of_name(name)), None)


def has_form(name: str, value: str) -> bool:
    """Return whether a value has the form of the numbers that its name labels."""
    number = value.strip().upper()
    return any(_FORMS[row].fullmatch(number) for row in _rows_of_name(name))


def _rows_of_name(name: str) -> list[int]:
    return [row for row in _rows_of(name) if not ROWS[row].get("only_in_text")]


def _end_of_form(row: int, text: str, start: int) -> int | None:
    """Return where the number at `start` ends if it has the form of a row; one word may be lower case."""
    match = _FORMS[row].match(text, start)
    if match is None:
        word = _WORD_OF_NUMBER.match(text, start)
        match = _FORMS[row].match(word.group().upper()) if word is not None else None
        return start + match.end() if match is not None else None
    return match.end()


def _rows_of(text: str) -> tuple[int, ...]:
    """Return the rows of the label that `text` ends with, fillers after it left out."""
    clause = text[-_REACH:].rstrip(_CLAUSE_ENDS)
    clause = clause[max(map(clause.rfind, _CLAUSE_ENDS)) + 1 :]
    sentence = clause.rfind(". ")
    if sentence > 3 and clause[sentence - 4 : sentence].isalpha():  # not "tel. no."
        clause = clause[sentence + 2 :]
    return _rows_of_clause(clause)


@lru_cache(maxsize=4096)
def _rows_of_clause(clause: str) -> tuple[int, ...]:
    words = _words(clause)
    if clause.isascii() and _LAST_WORDS.isdisjoint(words):
        return ()
    is_announced = clause.endswith((":", "=")) or any(
        word.isupper() and len(word) > 1 for word in _WORD.findall(clause)[-3:]
    )
    rows = _longest_label(words, _MAX_FILLERS, is_announced)
    for pattern in (_IN_BRACKETS, _FOR_SOMEONE):
        shorter = clause if rows else pattern.sub("", clause)
        if shorter != clause:
            rows = _longest_label(_words(shorter), 3, is_announced)
    return rows


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = "".join(
            character
            for character in unicodedata.normalize("NFKD", text.translate(_PLAIN_LETTERS))
            if not unicodedata.combining(character)
        )
    words = (word.lower() for word in _WORD.findall(text))
    return [part for word in words for part in _COMPOUND.sub(r"\1 \2", word).split()]


def _longest_label(words: list[str], reach: int, is_announced: bool) -> tuple[int, ...]:
    """Return the rows of the longest label among the last words, only fillers after it."""
    for end in range(len(words), max(0, len(words) - reach), -1):
        last = words[end - 1]
        rows: tuple[int, ...] = ()
        if last in _LAST_WORDS:
            evidence = _evidence(words[end:], is_announced)
            for start in range(max(0, end - _LONGEST_LABEL), end):
                before = _evidence(words[max(0, start - 2) : start], is_announced)
                for label in ("".join(words[start:end]), " ".join(words[start:end])):
                    rows = rows or _rows(label, max(evidence, before))
        if not rows and not last.isascii():
            rows = _label_in_script("".join(words[:end]))
        if rows or last not in _FILLERS:
            return rows
    return ()


def _evidence(fillers: list[str], is_announced: bool) -> int:
    """Return how clearly the words beside a label say that its number follows: see `_NEEDS`."""
    if not _COUNTERS.isdisjoint(fillers):
        return 2
    return int(is_announced or "is" in fillers)


def _rows(label: str, evidence: int) -> tuple[int, ...]:
    return tuple(row for row, needed in _LABELS.get(label, ()) if evidence >= needed)


def _label_in_script(text: str) -> tuple[int, ...]:
    """Return the rows of the label at the end of `text` in a script without spaces."""
    match = _SCRIPT_LABEL.search(text[-_REACH:])
    return _rows(match["label"], 2 if match["ending"] else 1) if match else ()


def _joined(words: list[str]) -> str:
    """Return a label's words as one, "taxid"; two short ones stay apart: "SA ID" is not "said"."""
    label = "".join(words)
    is_clear = len(words) in (1, len(label)) or len(label) > _LONGEST_APART or not label.isascii()
    return label if is_clear else " ".join(words)


def _labels() -> dict[str, list[tuple[int, int]]]:
    labels: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, row in enumerate(ROWS):
        for label in row["labels"]:
            words = _words(label.rstrip("#? "))
            labels[_joined(words)].append((number, _NEEDS.get(label[-1], 0)))
            _LAST_WORDS.update((words[-1], _joined(words)))
            if len(label) <= _LONGEST_APART:  # "S.S.N."
                _LAST_WORDS.add(words[-1][-1])
    return dict(labels)


# The evidence that a label needs, by the sign after it in the table: a word such as "number" beside
# it, or else a sign after it or capitals.
_NEEDS = {"#": 2, "?": 1}
_FILLERS = frozenset(TABLE["fillers"].split())
_COUNTERS = frozenset(TABLE["counters"].split())
_LAST_WORDS: set[str] = set()
_LABELS = _labels()
_SCRIPT_LABEL = lazy_pattern(
    rf"(?P<label>{trie(label for label in _LABELS if not label.isascii())})"
    rf"(?P<ending>(?:{'|'.join(''.join(_words(ending)) for ending in TABLE['endings'])}){{0,2}})\Z"
)
