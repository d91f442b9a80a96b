"""Made-up values drawn from a seeded generator, so no file holds anything like a credential."""

from __future__ import annotations

import random
import re
from typing import Final
from urllib.parse import quote
from uuid import UUID

_HEX: Final = "0123456789abcdef"
_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS: Final = "0123456789"
_LOWER: Final = _UPPER.lower()
_ALPHABETS: Final = {
    "h": _HEX,
    "H": _HEX.upper(),
    "d": _DIGITS,
    "a": _LOWER,
    "A": _UPPER + _DIGITS,
    "B": _UPPER + "234567",
    "l": _LOWER + _DIGITS,
    "x": _LOWER + _UPPER + _DIGITS,
    "u": _LOWER + _UPPER + _DIGITS + "_-",
    "b": _LOWER + _UPPER + _DIGITS + "+/",
    "k": "qpzry9x8gf2tvdw0s3jn54khce6mua7l".upper(),  # bech32
    "z": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",  # base58
}
_FIELD: Final = re.compile(r"\{([a-zA-Z])(\d*)\}")


def fill(template: str, source: random.Random, *, with_digits: bool = True) -> str:
    """Fill `{h32}` with 32 hexadecimal digits, `{U}` with a UUID, and so on for each alphabet.

    With `with_digits` every long value of an alphabet that has digits has three of them.
    """

    def one(match: re.Match[str]) -> str:
        kind, length = match.groups()
        if kind == "U":
            return str(UUID(int=source.getrandbits(128), version=4))
        body = source.choices(_ALPHABETS[kind], k=int(length or 1))
        if with_digits and len(body) > 10 and kind not in "da":
            body[2], body[5], body[7] = source.choices("234567", k=3)
        return "".join(body)

    return _FIELD.sub(one, template)


def compose(template: str, source: random.Random) -> tuple[str, str]:
    """Fill a template and tell its secret: the longest of what was drawn.

    `{p}` stands for a password, `{q}` for one percent-encoded, the rest is as in `fill`.
    """
    drawn: list[str] = []

    def one(match: re.Match[str]) -> str:
        kind = match.group(1)
        drawn.append(password(source) if kind in "pq" else fill(match.group(), source))
        return quote(drawn[-1]) if kind == "q" else drawn[-1]

    text = _FIELD.sub(one, template)
    return text, max(drawn, key=len)


def password(source: random.Random) -> str:
    """Draw a password as people choose them."""
    word = source.choice(
        [
            "tiger",
            "sunset",
            "dragon",
            "winter",
            "mango",
            "falcon",
            "pepper",
            "river",
            "copper",
            "jasmine",
        ]
    )
    return source.choice(
        [
            f"{word}{source.randrange(10, 9999)}",
            f"{word.title()}{source.randrange(10, 999)}!",
            f"{word.title()}#{source.randrange(1000)}x",
            f"{word[:3]}{source.randrange(100, 999)}{word[3:].upper()}",
            "".join(source.choices(_ALPHABETS["x"], k=12)) + "9a",
            f"{word}-{source.choice(['blue', 'red', 'green'])}-{source.randrange(10, 99)}",
        ]
    )
