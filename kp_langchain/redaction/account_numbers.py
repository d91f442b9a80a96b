"""Account numbers with a checkable format: cards, IBAN, US social security numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.spans import DIGITS, LETTERS, Span, character_classes, class_table
from kp_langchain.redaction.telephones import FREE

_CARD = re.compile(
    rf"{FREE}(?<!\d[ \-])[2-6]\d{{3}}(?:[ \-]?\d){{8,15}}(?![\w])(?![ \-.]\d)", re.ASCII
)
_CARD_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3[0689]\d{12}"
    r"|(?:6011|64[4-9]\d|65\d\d)\d{12,15}|35\d{14}|62\d{14,17}|(?:50|5[6-9]|6\d)\d{10,17}",
    re.ASCII,
)
_SSN = re.compile(
    r"(?:(?<![\w.\-])|(?<=\\[nrt]))(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w\-])", re.ASCII
)
_SSN_AFTER_NAME = re.compile(
    r"(?:\bssn|social security(?: number| no\.?)?)\W{0,6}"
    r"(?:is |was )?(\d{3}[ \-]?\d{2}[ \-]?\d{4})(?!\d)",
    re.IGNORECASE,
)
# Searched for by its check digits; the country code comes before them.
_IBAN = re.compile(
    r"\d\d(?<=[A-Za-z]\d\d)(?<=(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))[A-Za-z]{2}\d\d)(?:[ \-]?[A-Za-z0-9]{4}){2,7}"
    r"(?:[ \-]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])",
    re.ASCII,
)
_IBAN_CLASS = class_table(LETTERS, DIGITS)
_IBAN_START = b"\1\1\2\2"
# Length of an IBAN by country (ISO 13616 registry).
_IBAN_LENGTH = {
    country: int(length)
    for length, countries in (
        row.split(":")
        for row in [
            "15:NO",
            "16:BE BI",
            "18:DK FO FI GL NL FK SD",
            "19:MK SI",
            "20:AT BA EE KZ XK LT LU MN",
            "21:HR LV LI CH",
            "22:BH BG CR GE DE IE ME RS GB VA",
            "23:GI IL IQ OM SO TL AE",
            "24:AD CZ MD PK RO SA SK ES SE TN VG DZ",
            "25:LY PT ST",
            "26:IS TR",
            "27:BF CF CG CM CV DJ FR GA GR IT KM MC MG MR SM TD YT",
            "28:AL AZ CY DO GT HU LB NI PL BY SV BJ CI HN ML MZ NE SN TG",
            "29:BR EG PS QA UA",
            "30:JO KW MU YE",
            "31:MT SC",
            "32:LC",
            "33:RU",
        ]
    )
    for country in countries.split()
}


def find_cards(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the card numbers in `text[first:last]`: numbers of a network with a valid check digit."""
    for match in _CARD.finditer(text, first, last):
        if is_card(match.group()):
            yield Span(*match.span(), "card")


def find_ssns(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the US social security numbers with hyphens in `text[first:last]`."""
    for match in _SSN.finditer(text, first, last):
        yield Span(*match.span(), "ssn")


def _find_announced_ssns(text: str, _low: str) -> Iterator[Span]:
    for match in _SSN_AFTER_NAME.finditer(text):
        yield Span(*match.span(1), "ssn")


def _find_ibans(text: str, _low: str) -> Iterator[Span]:
    if _IBAN_START not in character_classes(text, _IBAN_CLASS):
        return
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        end = _iban_end(text, start, match.end())
        if end is not None:
            yield Span(start, end, "iban")


def is_card(number: str) -> bool:
    """Return whether a number is in a card network's range and its check digit is valid (Luhn)."""
    digits = number.replace(" ", "").replace("-", "")
    if _CARD_NETWORKS.fullmatch(digits) is None or len(set(digits)) < 2:
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _iban_end(text: str, start: int, end: int) -> int | None:
    """Return the end of the IBAN at `start`, or None if country, length or check digits are wrong."""
    length = _IBAN_LENGTH.get(text[start : start + 2].upper())
    if length is None:
        return None
    compact = ""
    for at in range(start, end):
        if text[at] not in " -":
            compact += text[at]
            if len(compact) == length:
                break
    else:
        return None
    if at + 1 < len(text) and text[at + 1].isalnum() and text[at + 1].isascii():
        return None
    check_text = (compact[4:] + compact[:4]).upper()
    valid = int("".join(str(int(character, 36)) for character in check_text)) % 97 == 1
    return at + 1 if valid else None


FINDERS = (
    Finder(_find_announced_ssns, (ANY_DIGIT,), ("ssn", "social")),
    Finder(_find_ibans, (ANY_DIGIT,)),
)
