"""What identifies a person or a place: email, telephone, network address, card, account, home."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from kp_langchain.redaction.spans import Span

_LOCAL_REVERSED = re.compile(r"[\w.+\-!#$&*~]{1,64}")
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9\-]{2,40})(?![\w])"
)
_DOMAIN_LITERAL = re.compile(r"\[[0-9A-Fa-f.:]{2,45}\]")
_QUOTED_LOCAL = re.compile(r"\\{0,8}\"[^\"\n\\]{1,64}\\{0,8}\"")
_SPELT_AT = re.compile(
    r"([\w.+\-]{1,64}) ?[(\[{] ?at ?[)\]}] ?"
    r"(?:[A-Za-z0-9\-]{1,63}(?:\.| ?[(\[{] ?dot ?[)\]}] ?)){1,5}"
    r"[A-Za-z]{2,24}",
    re.IGNORECASE,
)
# Any stretch long enough for an address, a telephone or a card number.
_NUMBERS = re.compile(r"\d[\d.\-() /]{6,}", re.ASCII)

_NOBODY = frozenset({"git", "hg", "svn"})

KINDS = frozenset({"email", "phone", "ip", "mac", "card", "ssn", "iban", "home_path"})

_IPV4 = re.compile(
    r"(?<![\w.])(?<!\d-)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)"
    r"(?![\w])(?!\.\d)(?!-\d)",
    re.ASCII,
)
_VERSION_BEFORE = re.compile(
    r"(?:\b(?:version|release|build|assembly|ver|v)[ :=.]{0,3})$", re.IGNORECASE
)
_IPV6 = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?:(?<=:)(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])", re.ASCII
)
_HEX_GROUPS = re.compile(r":[0-9A-Fa-f]{0,4}:|-[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-|\.[0-9A-Fa-f]{4}\.")
_HEX_REVERSED = re.compile(r"[0-9A-Fa-f:]{0,40}")
_MAC = re.compile(
    r"(?<![\w:.\-])(?:[0-9A-Fa-f]{2}([:\-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}"
    r"|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4})(?![\w:\-])",
    re.ASCII,
)

_CARD = re.compile(
    r"(?<![\w.])(?<!\d[ \-])[2-6]\d{3}(?:[ \-]?\d){8,15}(?![\w])(?![ \-.]\d)", re.ASCII
)
_CARD_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3[0689]\d{12}"
    r"|(?:6011|64[4-9]\d|65\d\d)\d{12,15}|35\d{14}|62\d{14,17}|(?:50|5[6-9]|6\d)\d{10,17}",
    re.ASCII,
)

_PHONE = re.compile(
    # International: a plus sign, then 8 to 15 digits with single separators.
    r"(?<![\w+.])(?:\+[1-9](?:[ .\-]?\(?\d\)?){7,14}"
    # North America: area and exchange never begin with 0 or 1.
    r"|(?<!\d[ .\-])(?:1[ .\-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}([.\-]))[2-9]\d{2}[.\-]\d{4}"
    r"|(?<!\d[ .\-])\d{3}-\d{3}-\d{4}"
    # National with a leading zero: France in pairs, then area code and number in one to three.
    r"|(?<!\d[ .\-/])0[1-9](?:([ .])\d{2})(?:\2\d{2}){3}"
    r"|(?<!\d[ .\-/])0\d{2,4} \d{6,8}|(?<!\d[ .\-/])0\d{2,4}/\d{5,8}"
    r"|(?<!\d[ .\-/])0\d{1,3}-\d{3,4}-\d{4}|(?<!\d[ .\-/])0\d{2,4} \d{3,4} \d{3,4}"
    r")(?![\w])(?![.\-/]\d)",
    re.ASCII,
)

_SSN = re.compile(r"(?<![\w.\-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w\-])", re.ASCII)
_SSN_NAMED = re.compile(
    r"(?:\bssn|social security(?: number| no\.?)?)\W{0,6}"
    r"(?:is |was )?(\d{3}[ \-]?\d{2}[ \-]?\d{4})(?!\d)",
    re.IGNORECASE,
)
_IBAN = re.compile(
    r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"
)

_HOME = re.compile(r"(?:/home/|Users[\\/]{1,8})(?P<name>[^\s/\\\"'`<>|:*?,;)(\]\[{}$%&]{1,64})")
# What stands before: the root of the file system or of a drive, not the host of a web address.
_BEFORE_HOME = re.compile(r"(?:^|[^A-Za-z0-9_]|(?:/var|/usr|/mnt|/export|/data))/home/$")
_BEFORE_USERS = re.compile(
    r"(?:(?:^|[^A-Za-z0-9_.\-])/|/mnt/[a-z]/|(?:^|[^A-Za-z0-9])[A-Za-z]:[\\/]{1,8}"
    r"|\\{2,8}[\w.\-]{1,64}\\{1,8})Users[\\/]{1,8}$"
)
_NOT_A_PERSON = frozenset({"Shared", "Public", "Default", "runner", "user", "username", "."})


def find_identifiers(text: str, low: str) -> Iterator[Span]:
    """Yield the identifiers in `text`.

    Args:
        text: Any text; the work grows linearly with its length.
        low: The same text in lower case, of the same length.
    """
    if "@" in text:
        yield from _emails(text)
    if "%40" in text:
        yield from _encoded_emails(text)
    if "at)" in low or "at]" in low:
        for match in _SPELT_AT.finditer(text):
            yield Span(*match.span(), "email")
    if "/home/" in text or "Users" in text:
        yield from _homes(text)
    yield from _hexadecimal(text)
    yield from _numbers(text, low)


def _homes(text: str) -> Iterator[Span]:
    for match in _HOME.finditer(text):
        start = match.start("name")
        before = _BEFORE_HOME if text[match.start()] == "/" else _BEFORE_USERS
        if match["name"] in _NOT_A_PERSON or not match["name"].strip(".0123456789"):
            continue
        if before.search(text[max(0, start - 96) : start]) is not None:
            yield Span(*match.span("name"), "home_path")


def _numbers(text: str, low: str) -> Iterator[Span]:
    for run in _NUMBERS.finditer(text):
        # The surroundings decide too: a sign or bracket before, a letter after.
        first, last = max(0, run.start() - 2), min(len(text), run.end() + 3)
        for match in _IPV4.finditer(text, first, last):
            address = match.group()
            version = _VERSION_BEFORE.search(text[max(0, match.start() - 12) : match.start()])
            if not version and not address.startswith(("127.", "0.", "255.255.")):
                yield Span(*match.span(), "ip")
        for match in _CARD.finditer(text, first, last):
            if _is_card(match.group()):
                yield Span(*match.span(), "card")
        for kind, pattern in (("phone", _PHONE), ("ssn", _SSN)):
            for match in pattern.finditer(text, first, last):
                yield Span(*match.span(), kind)
    if "ssn" in low or "social" in low:
        for match in _SSN_NAMED.finditer(text):
            yield Span(*match.span(1), "ssn")
    for match in _IBAN.finditer(text):
        if _is_iban(match.group()):
            yield Span(*match.span(), "iban")


def _emails(text: str) -> Iterator[Span]:
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        end = _email_domain(text, at + 1)
        if end is None:
            continue
        quoted = None
        if at and text[at - 1] == '"':
            quoted = _QUOTED_LOCAL.match(text[max(0, at - 80) : at][::-1])
        local = quoted or _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1])
        if local is None:
            continue
        name = local.group()[::-1]
        start = at - len(name) + (0 if quoted else len(name) - len(name.lstrip(".-!#$&*~")))
        if start < at and text[start:at] not in _NOBODY:
            yield Span(start, end, "email")


def _email_domain(text: str, start: int) -> int | None:
    match = _DOMAIN.match(text, start) or _DOMAIN_LITERAL.match(text, start)
    return match.end() if match else None


def _encoded_emails(text: str) -> Iterator[Span]:
    at = -3
    while (at := text.find("%40", at + 3)) >= 0:
        end = _email_domain(text, at + 3)
        local = _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1])
        if end is not None and local is not None:
            yield Span(at - local.end(), end, "email")


def _hexadecimal(text: str) -> Iterator[Span]:
    """Yield IPv6 and hardware addresses, looked for around the separators they must have."""
    done = 0
    for hint in _HEX_GROUPS.finditer(text):
        if hint.start() < done:
            continue
        reach = text[max(done, hint.start() - 40) : hint.start()]
        left = _HEX_REVERSED.match(reach[::-1])
        start = hint.start() - (left.end() if left else 0)
        mac = _MAC.match(text, start)
        if mac is not None:
            yield Span(*mac.span(), "mac")
            done = mac.end()
        elif hint.group()[0] == ":" and (match := _IPV6.match(text, start)) is not None:
            done = match.end()
            kept = match.group()
            if kept.endswith(":") and not kept.endswith("::"):
                kept = kept[:-1]
            if _is_ipv6(kept):
                yield Span(start, start + len(kept), "ip")


def _is_ipv6(written: str) -> bool:
    # "a::b" is C++ as well as an address; a real one has a longer group and a digit.
    if len(written.replace(":", "")) < 5 or not any(map(str.isdigit, written)):
        return False
    try:
        ipaddress.IPv6Address(written)
    except ValueError:
        return False
    return True


def _is_card(written: str) -> bool:
    digits = written.replace(" ", "").replace("-", "")
    if _CARD_NETWORKS.fullmatch(digits) is None or len(set(digits)) < 2:
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _is_iban(written: str) -> bool:
    compact = written.replace(" ", "")
    if not 15 <= len(compact) <= 34:
        return False
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1
