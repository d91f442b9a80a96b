"""Account numbers with a checkable format: cards, IBAN, US social security numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.telephones import FREE

_CARD = re.compile(
    rf"{FREE}(?<!\d[ \-])[2-6]\d{{3}}(?:[ \-]?\d){{8,15}}(?![\w])(?![ \-.]\d)", re.ASCII
)
# Lengths in use. Numbers of 12 and 13 digits are articles, and those of 17 to 19 without groups are
# records: one in ten of them has a valid check digit.
_CARD_NETWORKS = re.compile(
    r"(?=\d{16}$)(?:4|5[0-9]|2[2-7]|6[0-9]|35)\d+|3[47]\d{13}|3[0689]\d{12}", re.ASCII
)
_LONG_CARD = re.compile(r"(?:4\d{18}|(?:50|5[6-9]|6\d)\d{15,17})")
_SSN = re.compile(
    r"(?:(?<![\w.\-])|(?<=\\[nrt]))(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w\-])", re.ASCII
)
# Searched for by its check digits; the country code comes before them.
_IBAN = re.compile(
    r"""\d\d(?<=[A-Za-z]\d\d)(?<=(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))[A-Za-z]{2}\d\d)
    (?:[ \-]?[A-Za-z0-9]{4}){2,7}(?:[ \-]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])""",
    re.ASCII | re.VERBOSE,
)
_IBAN_LENGTH = {
    country: int(length)
    for length, countries in load_table("iban")["lengths"].items()
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


def find_ibans(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the IBANs whose check digits are in `text[first:last]`."""
    for match in _IBAN.finditer(text, first, last):
        start = match.start() - 2
        end = _iban_end(text, start, match.end())
        if end is not None:
            yield Span(start, end, "iban")


def is_card(number: str) -> bool:
    """Return whether a number is in a card network's range and its check digit is valid (Luhn)."""
    digits = number.replace(" ", "").replace("-", "")
    networks = _CARD_NETWORKS if digits == number or len(digits) <= 16 else _LONG_CARD
    if networks.fullmatch(digits) is None or len(set(digits)) < 2:
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
