"""Credentials with a published form of their own, each in several surroundings."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from kp_langchain.redaction.tables import load_table
from tests.redaction.drawn import fill

# Formats that no row of the table describes.
_OTHER: Final = (
    "acme_sk_live_{x32} zed_pat_{x40} foo-token-{l32} myco_api_{x36} bar-sk-{x48} vndr_priv_{x44}",
    "abc_access_{x40} pk-secret-{x32} ddp_{x34} lk_{x40} nvcf-{x40} bb_live_{u27} zz-apikey-{h40}",
)

_AROUND: Final = (
    "{}", "I used {} and got 401.", "(see {})", "It was {}.", "{}, then retry", "a=1&t={}&b=2",
    '"{}"', "`{}`", "<{}>", "key;{};", "\x1b[33m{}\x1b[0m", "one\\n{}\\ntwo", "q%3D{}%26n%3D1",
    "令牌{}无效。", "「{}」", "x={}", "[{}]", "*{}*", "| {} |", "\t{}\r\n", "${{{}}}", "{}: denied",
)  # fmt: skip
_STRUCTURES: Final[tuple[Callable[[str], Any], ...]] = (
    lambda secret: {"name": "run", "args": {"note": secret, "n": 1}},
    lambda secret: json.dumps({"arguments": json.dumps({"note": f"use {secret} now"})}),
    lambda secret: ["step", (secret, 2), {"seen": {f"at {secret}"}}],
    lambda secret: {secret: 1},
)


def _examples() -> Iterator[tuple[str, str]]:
    """The kind and the first example of each row of the table, and those of other issuers."""
    table = load_table("issuers")
    del table["generic"]
    for kind, rows in table.items():
        for row in rows:
            for prefix in row.get("prefixes", [""])[:2]:
                yield kind, row["finds"][0].replace("{p}", prefix)
    for templates in _OTHER:
        for template in templates.split():
            yield "other issuers", template


def _made() -> list[tuple[str, Any, str]]:
    source = random.Random(20)
    cases: list[tuple[str, Any, str]] = []
    for family, template in _examples():
        for around in source.sample(_AROUND, 4):
            secret = fill(template, source, with_digits=False)
            cases.append((family, around.replace("{}", secret), secret))
        for structure in source.sample(_STRUCTURES, 2):
            secret = fill(template, source, with_digits=False)
            cases.append((family, structure(secret), secret))
    return cases


FORMATS: Final = _made()
