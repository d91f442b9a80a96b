"""Identifiers of people and places: email, telephone, network address, card, account, user name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from kp_langchain.redaction import account_numbers, user_names
from kp_langchain.redaction.account_numbers import find_cards, find_ssns
from kp_langchain.redaction.finders import ANY_DIGIT, Finder, Finders, Symbols, symbols_in
from kp_langchain.redaction.spans import Span, character_classes, long_runs
from kp_langchain.redaction.telephones import (
    FREE,
    NUMBER_CLASS,
    SHORTEST_NUMBER,
    find_announced_phones,
    find_phones,
)
from kp_langchain.redaction.unicode_escapes import decode_escapes

_LOCAL_REVERSED = re.compile(r"[\w.+\-!#$&*~]{1,64}")
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9\-]{2,40})(?![\w])"
)
_DOMAIN_LITERAL = re.compile(r"\[[0-9A-Fa-f.:]{2,45}\]")
_QUOTED_LOCAL = re.compile(r"\\{0,8}\"[^\"\n\\]{1,64}\\{0,8}\"")
_EMAIL_WITH_AT = re.compile(
    r"([\w.+\-]{1,64}) ?[(\[{] ?at ?[)\]}] ?"
    r"(?:[A-Za-z0-9\-]{1,63}(?:\.| ?[(\[{] ?dot ?[)\]}] ?)){1,5}"
    r"[A-Za-z]{2,24}",
    re.IGNORECASE,
)
_EMAIL_WITH_DOT = re.compile(
    r"(?<![\w.@/\-])[\w.+\-]{2,40}(?: dot [\w\-]{1,40}){0,3} at (?!the |a |this |that |my |our )[\w\-]{1,63}"
    r"(?:(?: dot |\.)[\w\-]{1,40}){0,3} dot [a-z]{2,12}(?!\w)"
)
# Any run long enough for an address, a telephone or a card number, except up to eleven digits alone,
# a date, or a decimal fraction.
_ENDS = r"(?![\d.\-() /])"
_NUMBERS = re.compile(
    rf"\d(?:(?<=\+\d)|(?<!\d\d)(?!\d{{0,10}}{_ENDS}|\d{{0,19}}\.\d{{1,20}}{_ENDS}"
    rf"|(?:(?<=1)9|(?<=2)0)\d\d-[01]\d-[0-3]\d{_ENDS}))[\d.\-() /]{{6,}}",
    re.ASCII,
)
_NUMBER_LENGTH = 7
# Typographic variants of ASCII characters.
_WIDE_CHARACTER = re.compile(
    "[\u00a0\u2007-\u2015\u202f\u2212\uff08\uff09\uff0b\uff0d\uff10-\uff19\uff20]"
)
_NARROWED = {
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2008\u2009\u200a\u200b\u202f"), " "),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d"), "-"),
    **dict.fromkeys((0x200C, 0x200D, 0x200E, 0x200F), " "),
    **{0xFF10 + digit: str(digit) for digit in range(10)},
    0xFF08: "(",
    0xFF09: ")",
    0xFF0B: "+",
    0xFF20: "@",
}

_NOT_A_PERSON = frozenset({"git", "hg", "svn"})

KINDS = frozenset({"email", "phone", "ip", "mac", "card", "ssn", "iban", "home_path"})

_IPV4 = re.compile(
    rf"{FREE}(?<!\d-)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){{3}}(?:25[0-5]|2[0-4]\d|1?\d?\d)"
    r"(?![\w])(?!\.\d)(?!-\d)"
    r"(?![.\-+](?:jar|whl|tar|zip|dll|exe|msi|deb|rpm|gz|so|rc|beta|alpha|SNAPSHOT|dev|post)\b)",
    re.ASCII,
)
_VERSION_BEFORE = re.compile(
    r"(?:\b(?:version|release|build|assembly|ver|v|section|chapter|clause|firmware|driver|sdk|kernel|update|patch)[\"']?[ :=.]{0,3}[\"']?|[=~<>!]=|@|"
    r"\b(?:chrome|chromium|firefox|edge?|edga|opr|opera|crios|fxios|version|samsungbrowser|yabrowser"
    r"|electron|headlesschrome|vivaldi|curl|java|python|okhttp)/)$",
    re.IGNORECASE,
)
_IP_BEFORE = re.compile(
    r"(?:\bip|address|addr|host|server|dns|gateway|client|peer|from|://)\W{0,4}$", re.IGNORECASE
)
_HOST_NAME = re.compile(r"ip-((?:\d{1,3}-){3}\d{1,3})(?![\w\-])")
_IPV6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt]))[0-9A-Fa-f:]{2,39}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])",
    re.ASCII,
)
_HEX_GROUPS_BY_SIGN = (
    r":(?::|[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){4})",
    r"-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-",
    r"\.[0-9A-Fa-f]{4}\.",
)
_HEX_GROUPS = re.compile("|".join(_HEX_GROUPS_BY_SIGN))
# Three searches are much faster than one for the joint expression.
_HEX_GROUPS_OF = [re.compile(groups) for groups in _HEX_GROUPS_BY_SIGN]
_HEX_REVERSED = re.compile(r"[0-9A-Fa-f:]{0,40}")
_MAC = re.compile(
    r"(?:(?<![\w:.\-])|(?<=\\[nrt]))(?:[0-9A-Fa-f]{2}([:\-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}"
    r"|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4})(?![\w:\-])",
    re.ASCII,
)


def _narrow(match: re.Match[str]) -> str:
    return _NARROWED[ord(match.group())]


def _find_numbers(text: str, low: str) -> Iterator[Span]:
    classes = character_classes(text, NUMBER_CLASS)
    if SHORTEST_NUMBER in classes:
        yield from _numbers(text, classes)
        yield from find_announced_phones(text, low)


def _numbers(text: str, classes: bytes) -> Iterator[Span]:
    for start, end in long_runs(classes, _NUMBER_LENGTH):
        run = _NUMBERS.search(text, start, end)
        if run is None:
            continue
        # The neighbouring characters matter too: a sign or bracket before, a letter after.
        first, last = max(0, run.start() - 2), min(len(text), end + 3)
        length = end - run.start()
        if text.count(".", run.start(), end) >= 3:
            yield from _addresses(text, first, last)
        if length >= 12:
            yield from find_cards(text, first, last)
        yield from find_phones(text, first, last)
        if length >= 11:
            yield from find_ssns(text, first, last)


def _addresses(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _IPV4.finditer(text, first, last):
        address = match.group()
        if address.startswith(("127.", "0.", "255.255.")):
            continue
        before = text[max(0, match.start() - 20) : match.start()]
        if _VERSION_BEFORE.search(before):
            continue
        if all(int(part) <= 20 for part in address.split(".")) and int(address.split(".")[0]) < 10:
            # Small numbers are a version, unless the context says otherwise.
            after = text[match.end() : match.end() + 2]
            if not (_IP_BEFORE.search(before) or (after[:1] in (":", "/") and after[1:].isdigit())):
                continue
        yield Span(*match.span(), "ip")


def _find_emails(text: str, _low: str) -> Iterator[Span]:
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        end = _email_domain(text, at + 1)
        if end is None:
            continue
        quoted_local = None
        if at and text[at - 1] == '"':
            quoted_local = _QUOTED_LOCAL.match(text[max(0, at - 80) : at][::-1])
        local = quoted_local or _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1])
        if local is None:
            continue
        name = local.group()[::-1]
        start = at - len(name) + (0 if quoted_local else len(name) - len(name.lstrip(".-!#$&*~")))
        if start < at and text[start:at] not in _NOT_A_PERSON:
            yield Span(start, end, "email")


def _email_domain(text: str, start: int) -> int | None:
    match = _DOMAIN.match(text, start) or _DOMAIN_LITERAL.match(text, start)
    return match.end() if match else None


def _find_encoded_emails(text: str, _low: str) -> Iterator[Span]:
    at = -3
    while (at := text.find("%40", at + 3)) >= 0:
        end = _email_domain(text, at + 3)
        local = _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1])
        if end is not None and local is not None:
            yield Span(at - local.end(), end, "email")


def _find_hexadecimal(text: str, _low: str) -> Iterator[Span]:
    """Yield IPv6 and hardware addresses, searched for around their separators."""
    if not any(groups.search(text) for groups in _HEX_GROUPS_OF):
        return
    position = 0
    for hint in _HEX_GROUPS.finditer(text):
        if hint.start() < position:
            continue
        reach = text[max(position, hint.start() - 40) : hint.start()]
        reversed_hex = _HEX_REVERSED.match(reach[::-1])
        start = hint.start() - (reversed_hex.end() if reversed_hex else 0)
        mac = _MAC.match(text, start)
        if mac is not None:
            yield Span(*mac.span(), "mac")
            position = mac.end()
        elif hint.group()[0] == ":" and (match := _IPV6.match(text, start)) is not None:
            position = match.end()
            address = match.group()
            if address.endswith(":") and not address.endswith("::"):
                address = address[:-1]
            if _is_ipv6(address):
                yield Span(start, start + len(address), "ip")


def _find_emails_with_at(text: str, low: str) -> Iterator[Span]:
    if "at)" in low or "at]" in low or "at}" in low:
        for match in _EMAIL_WITH_AT.finditer(text):
            yield Span(*match.span(), "email")


def _find_emails_with_dot(_text: str, low: str) -> Iterator[Span]:
    for match in _EMAIL_WITH_DOT.finditer(low):
        yield Span(*match.span(), "email")


def _find_host_names(_text: str, low: str) -> Iterator[Span]:
    for match in _HOST_NAME.finditer(low):
        yield Span(*match.span(1), "ip")


def _is_ipv6(address: str) -> bool:
    # "a::b" may be C++; an address has a longer group and a digit.
    if len(address.replace(":", "")) < 5 or not any(map(str.isdigit, address)):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


FINDERS = Finders(
    Finder(_find_emails, ("@",)),
    Finder(_find_encoded_emails, ("%" + ANY_DIGIT,)),
    Finder(_find_emails_with_at, (")", "]", "}")),
    Finder(_find_emails_with_dot, words=(" dot ",)),
    *user_names.FINDERS,
    Finder(_find_hexadecimal, (":", "-", ".")),
    Finder(_find_numbers, (ANY_DIGIT,)),
    *account_numbers.FINDERS,
    Finder(_find_host_names, ("-" + ANY_DIGIT,), ("ip-",)),
)


def find_identifiers(text: str, low: str, symbols: Symbols) -> list[Span]:
    """Return the identifiers in `text`.

    Args:
        text: Any text; takes time linear in its length.
        low: The text in lower case, of the same length.
        symbols: The symbols of the text, from `symbols_in`.
    """
    spans = _find(text, low, symbols)
    escapes = decode_escapes(text)
    if escapes is not None:
        plain_text, to_source = escapes
        low_plain_text = plain_text.lower()
        if len(low_plain_text) == len(plain_text):
            spans += map(to_source, _find(plain_text, low_plain_text, symbols_in(plain_text)))
    return spans


def _find(text: str, low: str, symbols: Symbols) -> list[Span]:
    if not text.isascii() and _WIDE_CHARACTER.search(text):
        text, low = (_WIDE_CHARACTER.sub(_narrow, variant) for variant in (text, low))
        symbols = symbols_in(text)
    return FINDERS.find(text, low, symbols)
