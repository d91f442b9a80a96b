"""Identifiers of people and places: e-mail, network address, user name, and numbers of all kinds."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from kp_langchain.redaction import national_ids
from kp_langchain.redaction.field_names import word_set
from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.numbers import find_numbers
from kp_langchain.redaction.spans import Span, occurrences

KINDS = national_ids.KINDS | {"email", "phone", "ip", "mac", "card", "ssn", "iban", "home_path"}
_TABLE = national_ids.TABLE

_LOCAL_REVERSED = lazy_pattern(
    r"""(?P<quoted>\\{0,8}"\w(?:[^"\n\\]{0,62}\w)?\\{0,8}")|[\w.+\-!#$&*~]{1,64}"""
)
_DOMAIN = lazy_pattern(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?P<end>[^\W\d_]{2,24}|xn--[a-z0-9\-]{2,40})(?!\w)"
    r"|\[[0-9A-Fa-f.:]{2,45}\]"
)
_FILE_ENDINGS = word_set(_TABLE["files"]["endings"])
_COMMON_USERS = word_set(_TABLE["users"]["everywhere"])
_EMAIL_SIGNS = ("@", "%40")
_REPOSITORIES = frozenset({"git", "hg", "svn"})  # git@host.example:team/app
_REACH = 64

_IPV6 = lazy_pattern(
    r"(?P<address>(?:[0-9A-Fa-f]|::|:(?=[0-9A-Fa-f])){2,39}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?)(?!\w)",
    re.ASCII,
)
_HAS_DIGIT = lazy_pattern("[0-9]")
_MAC = lazy_pattern(
    r"[0-9A-Fa-f]{2}([:\-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:\-])"
    r"|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}(?![\w:\-])",
    re.ASCII,
)
# Parts of these addresses. Three searches, each for a rare sign, are much faster than a joint one.
_HEX_PARTS = [
    lazy_pattern(part)
    for part in (
        r":(?::|[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){4})",
        r"-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-",
        r"\.[0-9A-Fa-f]{4}\.",
    )
]
_HEX_REVERSED = lazy_pattern(r"[0-9A-Fa-f:]{0,40}(?:(?=[nrt]\\)|(?![\w.:\-]))", re.ASCII)

# Typographic variants of ASCII characters.
_WIDE_CHARACTER = lazy_pattern(
    "[\u00a0\u2007-\u2015\u202f\u2212\uff08\uff09\uff0b\uff0d\uff10-\uff19\uff20]"
)
_NARROWED = str.maketrans(
    "\u00a0\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u200e\u200f\u202f"
    "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d\uff08\uff09\uff0b\uff20"
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19",
    "           --------()+@0123456789",
)


def _find_emails(text: str, _low: str) -> Iterator[Span]:
    for at in occurrences(text, _EMAIL_SIGNS):
        domain = _DOMAIN.match(text, at + (1 if text[at] == "@" else 3))
        if domain is None or (domain["end"] or "").lower() in _FILE_ENDINGS:
            continue
        start = _email_start(text, at)
        if start < at and text[start:at] not in _REPOSITORIES:
            yield Span(start, domain.end(), "email")


def _email_start(text: str, at: int) -> int:
    """Return where the local part before the "@" at `at` starts; `at` if there is none."""
    local = _LOCAL_REVERSED.match(text[max(0, at - 80) : at][::-1])
    if local is None or local["quoted"]:
        return at - local.end() if local else at
    name = local.group()[::-1]
    if name[0] in "nrtbf" and text[at - len(name) - 1 : at - len(name)] == "\\":
        name = name[1:]  # the letter of an escape: "\n@app.route"
    return at - len(name.lstrip(".-!#$&*~"))


def _find_hexadecimal(text: str, _low: str) -> Iterator[Span]:
    """Yield IPv6 and hardware addresses, searched for around their separators."""
    for part in _HEX_PARTS:
        for hint in part.finditer(text):
            before = text[max(0, hint.start() - 41) : hint.start()]
            reversed_hex = _HEX_REVERSED.match(before[::-1])
            if reversed_hex is None:
                continue
            start = hint.start() - reversed_hex.end()
            mac = _MAC.match(text, start)
            ipv6 = _IPV6.match(text, start)
            if mac is not None:
                if len(set(mac.group()) - set(":-.")) > 1 and _HAS_DIGIT.search(mac.group()):
                    yield Span(*mac.span(), "mac")
            elif ipv6 is not None and _is_ipv6(ipv6["address"]):
                yield Span(*ipv6.span("address"), "ip")


def _is_ipv6(address: str) -> bool:
    # "a::b" may be C++; an address has a longer group and a digit.
    if len(address.replace(":", "")) < 5 or not _HAS_DIGIT.search(address):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _compile(expression: str) -> re.Pattern[str]:
    for name, part in reversed(_TABLE["parts"].items()):
        expression = expression.replace(f"<{name}>", part)
    return lazy_pattern(expression, re.VERBOSE)


def _finder_of_row(row: dict[str, Any]) -> Finder:
    expression = _compile(row["expression"])
    before = _compile(row.get("before", "(?:)"))
    words = tuple(row.get("words", ()))

    def find(text: str, low: str) -> Iterator[Span]:
        at_words = (expression.match(text, at) for at in occurrences(low, words))
        for match in filter(None, at_words if "before" in row else expression.finditer(text)):
            beginning = before.search(text, max(0, match.start() - _REACH), match.start())
            if beginning is not None:
                for start, end in _parts(beginning, match):
                    if text[start:end].lower() not in _COMMON_USERS:
                        yield Span(start, end, row["kind"])

    return Finder(find, tuple(row.get("symbols", ("",))), words)


def _parts(beginning: re.Match[str], match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the groups of both matches, or the second if they have none."""
    parts = [*beginning.regs[1:], *match.regs[1:]]
    return [(start, end) for start, end in parts if start >= 0] or [match.span()]


FINDERS = (
    Finder(_find_emails, ("@", "%" + ANY_DIGIT)),
    *map(_finder_of_row, _TABLE["pattern"]),
    Finder(_find_hexadecimal, (":" + ANY_DIGIT, "-" + ANY_DIGIT, "." + ANY_DIGIT)),
    Finder(find_numbers, (ANY_DIGIT,)),
)


def narrow(text: str) -> str:
    """Return a text, of the same length, with ASCII digits and signs for their wide variants."""
    if text.isascii() or not _WIDE_CHARACTER.search(text):
        return text
    return text.translate(_NARROWED)
