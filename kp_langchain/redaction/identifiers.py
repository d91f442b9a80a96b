"""Identifiers of people and places: e-mail, network address, user name, and numbers of all kinds.

The forms are in `tables/identifiers.toml`. No plan of telephone numbers is consulted. Almost every
group of seven digits is a number in some country, and the country is unknown.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from kp_langchain.redaction import national_ids
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.national_ids import ROWS, TABLE, find_by_label
from kp_langchain.redaction.spans import (
    DIGITS,
    Span,
    character_classes,
    class_table,
    lazy_pattern,
    load_table,
    occurrences,
    word_set,
)

# ------------------------------------------------------------------ numbers

# Four digits in groups of digits and capitals. Up to four small letters may be within a group of
# digits, so that an IBAN or a hexadecimal number is one run; two spaces separate columns.
_CLASSES = class_table(DIGITS, string.ascii_uppercase, string.ascii_lowercase, ".-/()", " ")
_RUN = lazy_pattern(rb"\x01(?:\x01|(?:[\x02\x04]|\x05(?!\x05)){1,8}\x01|\x03{1,4}\x01){3,}")
# Runs that are no number: a date, a hexadecimal number, a decimal fraction, a year.
_NO_NUMBER = lazy_pattern(
    r"(?:19|20)\d\d-[01]\d-[0-3]\d(?: \d\d)?|0x[\da-f]+|\d{1,9}\.\d{1,20}|(?<![A-Za-z])\d{4}(?![A-Za-z])",
    re.ASCII,
)
# What is directly before the first digit of a number, backwards: "AB12", or perhaps "AB 12",
# or the start of an IBAN in small letters.
_HEAD_REVERSED = lazy_pattern(
    r"(?:(?P<prefix>[ \-][A-Za-z]{1,4}(?:[ \-]\d\d[A-Za-z]{2})?)|[A-Za-z]{0,8})(?:(?=[nrtf]\\|m\d{0,2}\[)|(?![\w.\-\\])(?!,\d))",
    re.ASCII,
)
_LONGEST_HEAD = 11
_SHORTEST_CARD = 12
_FEWEST_DIGITS = 7

# Before a number: no word character, unless it ends an escape or a colour code.
_FREE = r"(?:(?<![\w.])|(?<=\\[nrtf])|(?<=\[\dm)|(?<=\[\d\dm))"
# Lengths in use. Numbers of 12 and 13 digits are articles, and those of 17 to 19 without groups are
# records: one in ten of them has a valid check digit.
_CARD_NETWORKS = lazy_pattern(
    r"(?=\d{16}$)(?:4|5[0-9]|2[2-7]|6[0-9]|35)\d+|3[47]\d{13}|3[0689]\d{12}", re.ASCII
)
_LONG_CARD = lazy_pattern(r"(?:4\d{18}|(?:50|5[6-9]|6\d)\d{15,17})")
_IP_BEFORE = lazy_pattern(
    r"(?:\bip|address|addr|host|server|dns|gateway|client|peer|from|://)\W{0,4}$", re.IGNORECASE
)
_ZEROS = "0 .-/()+"
_MASK = lazy_pattern(r"/\d{1,2}(?!\d)")
_UPGRADE = lazy_pattern(r" (?:to|->|=>|\u2192) ?v?\d")


# Of every machine, and those that RFC 5737 keeps for documentation.
_NOBODYS_NETWORKS = ("169.254.", "127.", "0.", "255.255.", "192.0.2.", "198.51.100.", "203.0.113.")


def _shapes() -> dict[str, re.Pattern[str]]:
    """Return one expression for the shapes of each kind."""
    forms: dict[str, list[str]] = defaultdict(list)
    for row in TABLE["shape"]:
        forms[row["kind"]].append(row["form"])
    return {
        kind: lazy_pattern(f"{_FREE}(?:{'|'.join(rows)})(?!\\w)", re.ASCII | re.VERBOSE)
        for kind, rows in forms.items()
    }


def _iban_form() -> str:
    """Return the form of the IBANs of all countries: groups of four, and a rest."""
    forms = []
    for length, countries in load_table("iban")["lengths"].items():
        groups, rest = divmod(int(length) - 4, 4)
        last = rf"[ \-]?[A-Z\d]{{{rest}}}" if rest else ""
        forms.append(
            rf"(?:{'|'.join(countries.split())})\d\d(?:[ \-]?[A-Z\d]{{4}}){{{groups}}}{last}"
        )
    return f"(?i:(?:{'|'.join(forms)})(?![A-Z]))"


_SHAPES = _shapes()
_NOT_AFTER = {
    kind: lazy_pattern(expression, re.IGNORECASE | re.VERBOSE)
    for kind, expression in TABLE["not_after"].items()
}
_CHECKED = {row["name"]: row for row in ROWS if "bare" in row}
_BARE = lazy_pattern(
    "|".join(f"(?P<{name}>{row['bare']})" for name, row in _CHECKED.items())
    + f"|(?P<iban>{_iban_form()})",
    re.ASCII,
)


def find_numbers(text: str, _low: str) -> Iterator[Span]:
    """Yield the numbers of all kinds; takes time linear in the length of the text."""
    classes = character_classes(text, _CLASSES)
    for run in _RUN.finditer(classes):
        start, end = run.span()
        other = _NO_NUMBER.match(text, start)
        if other is not None and other.end() >= end:
            continue
        starts = _starts(text, start)
        if not starts and text[start - 1 : end].isalnum():
            continue  # part of a word
        spans = (_checked_number(text, at) or find_by_label(text, at) for at in starts)
        span = next(filter(None, spans), None)
        if span is not None:
            yield span
        digits = classes.count(b"\x01", start, end)
        is_plain = digits == end - start < _SHORTEST_CARD and text[start - 1 : start] != "+"
        kinds = []
        if text.count(".", start, end) >= 3:
            kinds.append("ip")
        if digits >= _FEWEST_DIGITS and not is_plain:
            kinds += ["ssn", "phone"]
        if digits >= _SHORTEST_CARD:
            kinds.append("card")
        yield from _with_shape(text, kinds, max(0, start - 2), min(len(text), end + 12))


def _starts(text: str, first_digit: int) -> list[int]:
    """Return where the number with this first digit may start; nowhere if it ends a longer word."""
    before = text[max(0, first_digit - _LONGEST_HEAD) : first_digit]
    head = _HEAD_REVERSED.match(before[::-1])
    if head is None:
        return []
    # "AB 1234": a number of two groups, or one after the label "AB".
    return [first_digit - head.end(), *([first_digit] if head["prefix"] else [])]


def _checked_number(text: str, start: int) -> Span | None:
    """Return the number at `start` if its form and check digits leave no doubt."""
    match = _BARE.match(text, start)
    if match is None or match.lastgroup is None:
        return None
    following = text[match.end() : match.end() + 1]
    if following.isalnum() or following in ("-", "/", "_"):
        return None
    if match.lastgroup == "iban":
        return Span(*match.span(), "iban") if _is_iban(match.group()) else None
    row = _CHECKED[match.lastgroup]
    is_valid = all(_checks_out(match.group(), check) for check in row.get("checks", []))
    return Span(*match.span(), row["kind"]) if is_valid else None


def _checks_out(number: str, check: dict[str, Any]) -> bool:
    """Return whether a weighted sum over letters and digits is as the table says."""
    values, weights = check.get("values", {}), check["weights"]
    characters = [character for character in number if character.isalnum()]
    total = sum(
        weight * values.get(character, int(character, 36))
        for weight, character in zip(weights, characters, strict=False)
    )
    if "letters" in check:
        letters = check["letters"]
        return bool(characters[len(weights)] == letters[total % len(letters)])
    return bool(total % check["modulus"] == 0)


def _is_iban(number: str) -> bool:
    compact = number.replace(" ", "").replace("-", "")
    return int("".join(str(int(sign, 36)) for sign in compact[4:] + compact[:4])) % 97 == 1


def _is_card(number: str) -> bool:
    """Return whether a number is in a card network's range and its check digit is valid (Luhn)."""
    digits = number.replace(" ", "").replace("-", "")
    networks = _CARD_NETWORKS if digits == number or len(digits) <= 16 else _LONG_CARD
    if networks.fullmatch(digits) is None or len(set(digits)) < 2:
        return False
    doubled = "".join(str(2 * int(digit)) for digit in digits[-2::-2])
    return sum(map(int, digits[-1::-2] + doubled)) % 10 == 0


def _with_shape(text: str, kinds: list[str], first: int, last: int) -> Iterator[Span]:
    for kind in kinds:
        for match in _SHAPES[kind].finditer(text, first, last):
            if not match.group().strip(_ZEROS) or not _is_valid(kind, text, match):
                continue
            other = _NOT_AFTER.get(kind)
            before = max(0, match.start() - 52), match.start()
            if other is None or other.search(text, *before) is None:
                yield Span(*match.span(), kind)


def _is_valid(kind: str, text: str, match: re.Match[str]) -> bool:
    if kind == "card":
        return _is_card(match.group())
    return kind != "ip" or _is_address(text, match)


def _is_address(text: str, match: re.Match[str]) -> bool:
    """Return whether an IPv4 address is one of a machine; small numbers may as well be a version."""
    first, *others = map(int, match.group().split("."))
    is_network = match.group().endswith(".0") and _MASK.match(text, match.end()) is not None
    if is_network or match.group().startswith(_NOBODYS_NETWORKS):
        return False
    if first >= 10 or sum(part < 32 for part in others) < 2:
        return True
    after = text[match.end() : match.end() + 8]
    if after[:1] in (":", "/") and after[1:2].isdigit():
        return True
    before = text[max(0, match.start() - 18) : match.start()]
    return _IP_BEFORE.search(before) is not None and _UPGRADE.match(after) is None


# ------------------------------------------------------------------ addresses and user names

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

    return Finder(find, words)


def _parts(beginning: re.Match[str], match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the groups of both matches, or the second if they have none."""
    parts = [*beginning.regs[1:], *match.regs[1:]]
    return [(start, end) for start, end in parts if start >= 0] or [match.span()]


FINDERS = (
    Finder(_find_emails, _EMAIL_SIGNS),
    *map(_finder_of_row, _TABLE["pattern"]),
    Finder(_find_hexadecimal),
    Finder(find_numbers),
)


def narrow(text: str) -> str:
    """Return a text, of the same length, with ASCII digits and signs for their wide variants."""
    if text.isascii() or not _WIDE_CHARACTER.search(text):
        return text
    return text.translate(_NARROWED)
