"""Identifiers of people and places: email, telephone, network address, card, account, user name."""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Iterator

from kp_langchain.redaction import national_ids, user_names
from kp_langchain.redaction.account_numbers import find_cards, find_ibans, find_ssns
from kp_langchain.redaction.finders import ANY_DIGIT, Finder, Finders, Symbols, symbols_in
from kp_langchain.redaction.national_ids import find_labelled
from kp_langchain.redaction.spans import DIGITS, Span, character_classes, class_table, long_runs
from kp_langchain.redaction.telephones import FREE, find_phones

_LOCAL_REVERSED = re.compile(r"[\w.+\-!#$&*~]{1,64}")
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9\-]{2,40})(?![\w])"
)
_DOMAIN_LITERAL = re.compile(r"\[[0-9A-Fa-f.:]{2,45}\]")
_QUOTED_LOCAL = re.compile(r"\\{0,8}\"\w(?:[^\"\n\\]{0,62}\w)?\\{0,8}\"")
# Not the end of a domain: files (logo@2x.png), units of systemd (getty@tty1.service).
_NOT_A_DOMAIN = re.compile(
    r".*\.(?:png|jpe?g|gif|svg|webp|bmp|ico|avif|js|mjs|ts|tsx|jsx|css|html?|json|ya?ml|toml|xml|txt"
    r"|service|socket|timer|target|mount|slice|scope|device|path|whl|jar)",
    re.IGNORECASE,
)
_EMAIL_WITH_AT = re.compile(
    r"([\w.+\-]{1,64}) ?[(\[{] ?at ?[)\]}] ?"
    r"(?:[A-Za-z0-9\-]{1,63}(?:\.| ?[(\[{] ?dot ?[)\]}] ?)){1,5}"
    r"[A-Za-z]{2,24}",
    re.IGNORECASE,
)
_EMAIL_WITH_DOT = re.compile(
    r"(?<![\w.@/\-])[\w.+\-]{2,40}(?: dot [\w\-]{1,40}){0,3} at "
    r"(?!the |a |this |that |my |our )[\w\-]{1,63}"
    r"(?:(?: dot |\.)[\w\-]{1,40}){0,3} dot [a-z]{2,12}(?!\w)"
)
# Runs of digits, capitals and the separators of numbers. A run that is no number: digits alone that
# are too few for a card number, a date, or a decimal fraction.
_NUMBER_CLASS = class_table(DIGITS + string.ascii_uppercase + " .-/()")
_NUMBER_LENGTH = 6
_FOUR_DIGITS = re.compile(r"\d(?:[A-Z .\-/()]{0,6}\d){3}", re.ASCII)
_GROUPS = re.compile(r"\d[\d.\-() /]{6,}", re.ASCII)
_ENDS = r"(?![\d.\-() /])"
_NO_GROUPS = re.compile(
    rf"(?<!\+)\d{{1,11}}{_ENDS}|\d{{1,19}}\.\d{{1,20}}{_ENDS}|(?:19|20)\d\d-[01]\d-[0-3]\d{_ENDS}",
    re.ASCII,
)
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

KINDS = national_ids.KINDS | {"email", "phone", "ip", "mac", "card", "ssn", "iban", "home_path"}

_IPV4 = re.compile(
    rf"{FREE}(?<!\d-)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){{3}}(?:25[0-5]|2[0-4]\d|1?\d?\d)"
    r"(?![\w])(?!\.\d)(?!-\d)"
    r"(?![.\-+](?:jar|whl|tar|zip|dll|exe|msi|deb|rpm|gz|so|rc|beta|alpha|SNAPSHOT|dev|post)\b)",
    re.ASCII,
)
_VERSION_BEFORE = re.compile(
    r"""(?:
      \b(?:version|release|build|assembly|ver|v|section|chapter|clause|firmware|driver|sdk|kernel
      |update|patch)["']?[ :=.]{0,3}["']?
    | [=~<>!]= | (?<!\w)@ | [=<>~^][ ]
    | \b(?:chrome|chromium|firefox|edge?|edga|opr|opera|crios|fxios|version|samsungbrowser|yabrowser
      |electron|headlesschrome|vivaldi|curl|java|python|okhttp)/
    | (?<![a-z0-9])(?!ip|host|node|server|client|vm|addr)[a-z][a-z0-9_.]{1,30}-  # numpy-1.26.4.1
    )$""",
    re.IGNORECASE | re.VERBOSE,
)
_IP_BEFORE = re.compile(
    r"(?:\bip|address|addr|host|server|dns|gateway|client|peer|from|://)\W{0,4}$", re.IGNORECASE
)
# Of every machine, and those that RFC 5737 keeps for documentation.
_NOBODYS_NETWORKS = ("127.", "0.", "255.255.", "192.0.2.", "198.51.100.", "203.0.113.")
_UPGRADE = re.compile(r" (?:to|->|=>|\u2192) ?v?\d")
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


def _find_numbers(text: str, _low: str) -> Iterator[Span]:
    """Yield the numbers of all kinds, searched for in the runs that may be one."""
    # Two spaces separate columns; the same length, so that positions stay.
    classes = character_classes(text.replace("  ", "\n\n"), _NUMBER_CLASS)
    for start, end in long_runs(classes, _NUMBER_LENGTH):
        digits = _FOUR_DIGITS.search(text, start, end)
        if digits is not None:
            yield from _numbers(text, digits.start(), end)


def _numbers(text: str, start: int, end: int) -> Iterator[Span]:
    if end - start > 10:
        yield from find_ibans(text, start, end)
    yield from find_labelled(text, start, end)
    groups = _GROUPS.search(text, start, end)
    # The neighbouring characters matter too: a sign or bracket before, a letter after.
    first, last = max(0, start - 2), min(len(text), end + 3)
    if groups is None or _NO_GROUPS.match(text, groups.start()):
        return
    if text.count(".", start, end) >= 3:
        yield from _addresses(text, first, last)
    yield from find_cards(text, first, last)
    yield from find_phones(text, first, last)
    yield from find_ssns(text, first, last)


def _addresses(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _IPV4.finditer(text, first, last):
        address = match.group()
        if address.startswith(_NOBODYS_NETWORKS):
            continue
        before = text[max(0, match.start() - 18) : match.start()]
        if _VERSION_BEFORE.search(before):
            continue
        if _is_small(address) and not _has_ip_context(before, text[match.end() : match.end() + 8]):
            continue
        yield Span(*match.span(), "ip")


def _is_small(address: str) -> bool:
    """Return whether an address may as well be a version: its first numbers are small."""
    first, *others = map(int, address.split("."))
    return first < 10 and sum(part < 32 for part in others) >= 2


def _has_ip_context(before: str, after: str) -> bool:
    has_port = after[:1] in (":", "/") and after[1:2].isdigit()
    return has_port or (_IP_BEFORE.search(before) is not None and _UPGRADE.match(after) is None)


def _find_emails(text: str, _low: str) -> Iterator[Span]:
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        end = _email_domain(text, at + 1)
        if end is None:
            continue
        start = _email_start(text, at)
        if start < at and text[start:at] not in _NOT_A_PERSON:
            yield Span(start, end, "email")


def _email_start(text: str, at: int) -> int:
    """Return where the local part before the "@" at `at` starts; `at` if there is none."""
    before = text[max(0, at - 80) : at][::-1]
    if before.startswith('"'):
        quoted = _QUOTED_LOCAL.match(before)
        return at - quoted.end() if quoted else at
    local = _LOCAL_REVERSED.match(before)
    if local is None:
        return at
    name = local.group()[::-1]
    start = at - len(name)
    if text[start - 1 : start] == "\\" and name[0] in "nrtbf":
        name = name[1:]  # the letter of an escape: "\n@app.route"
    return at - len(name.lstrip(".-!#$&*~"))


def _email_domain(text: str, start: int) -> int | None:
    match = _DOMAIN.match(text, start) or _DOMAIN_LITERAL.match(text, start)
    return match.end() if match and not _NOT_A_DOMAIN.fullmatch(match.group()) else None


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
            if len(set(mac.group().lower()) - set(":-.")) > 1:  # not 00:00:00:00:00:00
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
    Finder(_find_host_names, ("-" + ANY_DIGIT,), ("ip-",)),
)


def find_identifiers(text: str, low: str, symbols: Symbols) -> list[Span]:
    """Return the identifiers in `text`.

    Args:
        text: Any text; takes time linear in its length.
        low: The text in lower case, of the same length.
        symbols: The symbols of the text, from `symbols_in`.
    """
    if not text.isascii() and _WIDE_CHARACTER.search(text):
        text, low = (_WIDE_CHARACTER.sub(_narrow, variant) for variant in (text, low))
        symbols = symbols_in(text)
    return FINDERS.find(text, low, symbols)
