"""Telephone numbers that their grouping shows: international by the plus sign, and national ones.

A number after a word such as "tel." is found by `national_ids`. No numbering plan is consulted:
almost every group of seven digits is a number in some country, so a plan is useless if the country
is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.spans import Span

# Before a number: no word character, unless it ends an escape or a colour code.
FREE = r"(?:(?<![\w.])|(?<=\\[nrtf])|(?<=\[\dm)|(?<=\[\d\dm))"
_INTERNATIONAL = rf"""
    {FREE}(?<!\+)(?:
    \+[1-9](?:[ .\-/]{{0,2}}\(?\d\)?){{7,14}}
    # Small countries: a country code of three digits and a short number.
    | \+(?:2[0-9]|37|38|42|50|59|6[789]|8[058]|9[679])\d[ \-]?\d{{4,6}}
    | (?<!\d[ .\-/])(?:
    # The same with 00 for the plus sign, written in groups.
      00[1-9]\d{{0,3}}[ .\-/](?:[ .\-/]?\(?\d\)?){{7,12}}"""
_NATIONAL = r"""
    # North America: area and exchange never begin with 0 or 1.
    | (?:1[ .\-])?(?:\([2-9]\d{2}\)[ ]?[2-9]\d{2}[.\-]\d{4}
      | [2-9]\d{2}([.\-])[2-9]\d{2}\1\d{4} | [2-9]\d{2}[ ][2-9]\d{2}-\d{4})
    | \d{3}-\d{3}-\d{4}
    # Russia and its neighbours with the domestic prefix 8.
    | 8[ \-]?\(?\d{3}\)?[ \-]\d{3}[ \-]\d{2}[ \-]\d{2}
    # National with a leading zero: in pairs, area code and number, or groups of 9 to 11 digits.
    | 0[1-9](?:([ .])\d{2})(?:\2\d{2}){3}
    | 0\d{2,4}[ \-]\d{6,8} | 0\d{2,4}/\d{5,8} | 0[1-9][ \-]\d{7,8}
    | 0\d{1,3}-\d{3,4}-\d{4} | 0\d{2,4}[ \-]\d{3,4}[ ]\d{3,4}
    | 0\d{2,4}[ \-]\d{3}[ ]\d{2}[ ]\d{2} | 0\d{2,3}[ ]\d{2}-\d{4}-\d{4})
    # An area code in brackets, but not the year of a citation.
    | (?<![\w)\]])\((?!(?:19|20)\d\d\))0?\d{2,4}\)[ \-]?\d{3,5}[ \-]?\d{3,4}(?:[ \-]\d{2,4})?
    )(?![\w])(?![.\-/]\d)"""
_PHONE = re.compile(_INTERNATIONAL + _NATIONAL, re.ASCII | re.VERBOSE)
# An identifier of a publication, 10.1234/5678-9012, or of a thing: "part no. 123-456-7890".
_THING_BEFORE = re.compile(
    r"""\b(?:10\.\d{4,9}/[\w.()/\-]{0,40}|doi\W{0,3}
    |(?:part|sku|serial|model|order|ref|item|batch|lot|invoice|catalog(?:ue)?|ticket|case|isbn|issn|upc|uid)
    \W{0,3}(?:no|number|num|nr|id)?\W{0,4})$""",
    re.IGNORECASE | re.VERBOSE,
)


def find_phones(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the telephone numbers in `text[first:last]` that are recognised by their grouping."""
    for match in _PHONE.finditer(text, first, last):
        if _THING_BEFORE.search(text, max(0, match.start() - 52), match.start()) is None:
            yield Span(*match.span(), "phone")
