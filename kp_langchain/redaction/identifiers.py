"""What identifies a person or a place: email, telephone, network address, card, account, home."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from kp_langchain.redaction import accounts, homes
from kp_langchain.redaction.accounts import find_cards, find_social
from kp_langchain.redaction.escapes import read_escapes
from kp_langchain.redaction.finders import ANY_DIGIT, Finder, Finders, Signs, signs_of
from kp_langchain.redaction.spans import Span, classified, long_runs
from kp_langchain.redaction.telephones import (
    FREE,
    NUMBER_CLASS,
    SHORTEST_NUMBER,
    find_named_phones,
    find_phones,
)

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
_DOTTED = re.compile(
    r"(?<![\w.@/\-])[\w.+\-]{2,40}(?: dot [\w\-]{1,40}){0,3} at (?!the |a |this |that |my |our )[\w\-]{1,63}"
    r"(?:(?: dot |\.)[\w\-]{1,40}){0,3} dot [a-z]{2,12}(?!\w)"
)
# Any stretch long enough for an address, a telephone or a card number, but neither up to eleven
# digits alone, nor a date, nor a decimal fraction.
_MORE = r"(?![\d.\-() /])"
_NUMBERS = re.compile(
    rf"\d(?:(?<=\+\d)|(?<!\d\d)(?!\d{{0,10}}{_MORE}|\d{{0,19}}\.\d{{1,20}}{_MORE}"
    rf"|(?:(?<=1)9|(?<=2)0)\d\d-[01]\d-[0-3]\d{_MORE}))[\d.\-() /]{{6,}}",
    re.ASCII,
)
_NUMBER_LENGTH = 7
# Signs that stand for the ones on a keyboard.
_WIDE = re.compile("[\u00a0\u2007-\u2015\u202f\u2212\uff08\uff09\uff0b\uff0d\uff10-\uff19\uff20]")
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

_NOBODY = frozenset({"git", "hg", "svn"})

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
_IP_AROUND = re.compile(
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
# One by one they are looked for much faster than together.
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
    classes = classified(text, NUMBER_CLASS)
    if SHORTEST_NUMBER in classes:
        yield from _numbers(text, classes)
        yield from find_named_phones(text, low)


def _numbers(text: str, classes: bytes) -> Iterator[Span]:
    for start, end in long_runs(classes, _NUMBER_LENGTH):
        run = _NUMBERS.search(text, start, end)
        if run is None:
            continue
        # The surroundings decide too: a sign or bracket before, a letter after.
        first, last = max(0, run.start() - 2), min(len(text), end + 3)
        length = end - run.start()
        if text.count(".", run.start(), end) >= 3:
            yield from _addresses(text, first, last)
        if length >= 12:
            yield from find_cards(text, first, last)
        yield from find_phones(text, first, last)
        if length >= 11:
            yield from find_social(text, first, last)


def _addresses(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _IPV4.finditer(text, first, last):
        address = match.group()
        if address.startswith(("127.", "0.", "255.255.")):
            continue
        before = text[max(0, match.start() - 20) : match.start()]
        if _VERSION_BEFORE.search(before):
            continue
        if all(int(part) <= 20 for part in address.split(".")) and int(address.split(".")[0]) < 10:
            # Small numbers are a version's, unless something says otherwise.
            after = text[match.end() : match.end() + 2]
            if not (_IP_AROUND.search(before) or (after[:1] in (":", "/") and after[1:].isdigit())):
                continue
        yield Span(*match.span(), "ip")


def _find_emails(text: str, _low: str) -> Iterator[Span]:
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


def _find_encoded_emails(text: str, _low: str) -> Iterator[Span]:
    at = -3
    while (at := text.find("%40", at + 3)) >= 0:
        end = _email_domain(text, at + 3)
        local = _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1])
        if end is not None and local is not None:
            yield Span(at - local.end(), end, "email")


def _find_hexadecimal(text: str, _low: str) -> Iterator[Span]:
    """Yield IPv6 and hardware addresses, looked for around the separators they must have."""
    if not any(groups.search(text) for groups in _HEX_GROUPS_OF):
        return
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


def _find_spelt_emails(text: str, low: str) -> Iterator[Span]:
    if "at)" in low or "at]" in low or "at}" in low:
        for match in _SPELT_AT.finditer(text):
            yield Span(*match.span(), "email")


def _find_dotted_emails(_text: str, low: str) -> Iterator[Span]:
    for match in _DOTTED.finditer(low):
        yield Span(*match.span(), "email")


def _find_host_names(_text: str, low: str) -> Iterator[Span]:
    for match in _HOST_NAME.finditer(low):
        yield Span(*match.span(1), "ip")


def _is_ipv6(written: str) -> bool:
    # "a::b" is C++ as well as an address; a real one has a longer group and a digit.
    if len(written.replace(":", "")) < 5 or not any(map(str.isdigit, written)):
        return False
    try:
        ipaddress.IPv6Address(written)
    except ValueError:
        return False
    return True


FINDERS = Finders(
    Finder(_find_emails, ("@",)),
    Finder(_find_encoded_emails, ("%" + ANY_DIGIT,)),
    Finder(_find_spelt_emails, (")", "]", "}")),
    Finder(_find_dotted_emails, words=(" dot ",)),
    *homes.FINDERS,
    Finder(_find_hexadecimal, (":", "-", ".")),
    Finder(_find_numbers, (ANY_DIGIT,)),
    *accounts.FINDERS,
    Finder(_find_host_names, ("-" + ANY_DIGIT,), ("ip-",)),
)


def find_identifiers(text: str, low: str, signs: Signs) -> list[Span]:
    """Return the identifiers in `text`.

    Args:
        text: Any text; the work grows linearly with its length.
        low: The same text in lower case, of the same length.
        signs: The signs in it.
    """
    spans = _found(text, low, signs)
    escaped = read_escapes(text)
    if escaped is not None:
        read, mapped = escaped
        low_read = read.lower()
        if len(low_read) == len(read):
            spans += map(mapped, _found(read, low_read, signs_of(read)))
    return spans


def _found(text: str, low: str, signs: Signs) -> list[Span]:
    if not text.isascii() and _WIDE.search(text):
        text, low = (_WIDE.sub(_narrow, written) for written in (text, low))
        signs = signs_of(text)
    return FINDERS.find(text, low, signs)
