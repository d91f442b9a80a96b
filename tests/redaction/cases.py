"""Texts to measure the redactor with: tables, and what is drawn from them with a seed.

`SECRETS`, `STRUCT` and `IDENTIFIERS` hold (family, a text or structure, what has to be gone from
it); `LOOKALIKES` and `BENIGN` hold (family, a text or structure that has to stay as it is).
`cases.toml` has texts as they are, `drawn.toml` templates, so that no file holds anything like a
credential.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID
from xml.sax.saxutils import escape

from kp_langchain.redaction.spans import load_table

Case = tuple[str, Any, str]
_FOLDER: Final = Path(__file__).parent
DRAWN: Final[dict[str, Any]] = tomllib.loads((_FOLDER / "drawn.toml").read_text("utf-8"))
CASES: Final[dict[str, Any]] = tomllib.loads((_FOLDER / "cases.toml").read_text("utf-8"))

_HEX: Final = "0123456789abcdef"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_UPPER: Final = _LOWER.upper()
_DIGITS: Final = "0123456789"
_LETTERS: Final = _LOWER + _UPPER + _DIGITS
_ALPHABETS: Final = {
    "h": _HEX,
    "H": _HEX.upper(),
    "d": _DIGITS,
    "a": _LOWER,
    "A": _UPPER + _DIGITS,
    "B": _UPPER + "234567",
    "l": _LOWER + _DIGITS,
    "x": _LETTERS,
    "u": _LETTERS + "_-",
    "b": _LETTERS + "+/",
    "k": "qpzry9x8gf2tvdw0s3jn54khce6mua7l".upper(),  # bech32
    "z": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",  # base58
}
_FIELD: Final = re.compile(r"\{([a-zA-Z])(\d*)\}")
_WORDS: Final = "tiger sunset dragon winter mango falcon pepper river copper jasmine".split()


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
    word = source.choice(_WORDS)
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


def left_over(secret: str, value: Any) -> bool:
    """Tell whether a text or structure still holds a secret, or 60 % of it in one run."""
    text = "\0".join(_texts(value))
    escaped = json.dumps(secret)[1:-1]
    written = {secret, escaped, json.dumps(secret, ensure_ascii=False)[1:-1]}
    written |= {json.dumps(escaped)[1:-1], secret.replace("@", "%40")}
    if any(form in text for form in written):
        return True
    run = max(6, -(-len(secret) * 6 // 10))
    return len(secret) > run and any(
        secret[at : at + run] in text for at in range(len(secret) - run + 1)
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [text for part in value for text in _texts(part)]
    if isinstance(value, bytes):
        return [value.decode(errors="replace")]
    return [value if isinstance(value, str) else repr(value)]


# ------------------------------------------------------------------ credentials

_AROUND_FORMATS: Final[tuple[Callable[[str], Any], ...]] = (
    lambda secret: {"name": "run", "args": {"note": secret, "n": 1}},
    lambda secret: json.dumps({"arguments": json.dumps({"note": f"use {secret} now"})}),
    lambda secret: ["step", (secret, 2), {"seen": {f"at {secret}"}}],
    lambda secret: {secret: 1},
)


def issuer_rows() -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and each row of the package's table of issuers."""
    table = load_table("issuers")
    del table["generic"]
    return [(kind, row) for kind, rows in table.items() for row in rows]


def _formats() -> Iterator[Case]:
    """Credentials with a published form of their own, each in several surroundings."""
    source = random.Random(20)
    examples = [
        (kind, row["finds"][0].replace("{p}", prefix))
        for kind, row in issuer_rows()
        for prefix in row.get("prefixes", [""])[:2]
    ]
    other = [("other issuers", template) for template in DRAWN["issuers"]["other"]]
    for family, template in [*examples, *other]:
        for around in source.sample(DRAWN["issuers"]["around"], 4):
            secret = fill(template, source, with_digits=False)
            yield family, around.replace("{}", secret), secret
        for structure in source.sample(_AROUND_FORMATS, 2):
            secret = fill(template, source, with_digits=False)
            yield family, structure(secret), secret


def _context() -> Iterator[Case]:
    """Secrets without a form of their own: a name, a command or a sentence gives them away."""
    source = random.Random(21)
    table = DRAWN["vendors"]
    for vendor in table["vendors"].split():
        for _ in range(6):
            secret = fill(source.choice(table["values"]), source)
            names = {"v": vendor, "V": vendor.upper(), "t": vendor.title()}
            name = source.choice(table["names"]).format(**names)
            text = source.choice(table["written"]).format(n=name, s=secret)
            yield "vendor name", _wrapped(text, source), secret
            yield "vendor mapping", {"config": {name: secret, "region": "eu"}}, secret
            secret = fill(source.choice(table["values"]), source)
            text = source.choice(table["prose"]).format(**names, s=secret)
            yield "vendor prose", _wrapped(text, source), secret
    for family, templates in DRAWN["context"].items():
        for template in templates:
            for _ in range(3):
                text, secret = compose(template, source)
                yield family, _wrapped(text, source), secret
    for template in DRAWN["seeds"]["written"]:
        for count in (12, 24, 12):
            secret = " ".join(source.choices(DRAWN["seeds"]["words"].split(), k=count))
            yield "seed", _wrapped(template.replace("{s}", secret), source), secret


def _wrapped(text: str, source: random.Random) -> Any:
    shape = source.randrange(6)
    if shape == 0:
        return {"role": "tool", "content": text}
    if shape == 1:
        return json.dumps({"input": json.dumps({"text": text})})
    if shape == 2:
        return f"Observation: done\n{text}\n"
    return text


# ------------------------------------------------------------------ values under telling names

SHAPES: Final[tuple[tuple[str, Callable[[str, str], Any]], ...]] = (
    ("mapping", lambda n, v: {"user": "bob", n: v}),
    ("nested", lambda n, v: {"calls": [{"cfg": {"db": {n: v}}}, 7]}),
    ("tuple", lambda n, v: ("login", {n: v}, 3)),
    ("list value", lambda n, v: {n: [v, v + "x"]}),
    ("pairs", lambda n, v: [(n, v), ("accept", "*/*")]),
    ("pair lists", lambda n, v: {"headers": [[n, v], ["accept", "*/*"]]}),
    ("named", lambda n, v: {"headers": [{"name": n, "value": v}]}),
    ("arguments", lambda n, v: ["tool", f"--{n}", v, "--verbose"]),
    ("bytes", lambda n, v: {n.encode(): v.encode()}),
    ("JSON", lambda n, v: json.dumps({"user": "bob", n: v, "n": 2})),
    ("JSON in JSON", lambda n, v: json.dumps({"arguments": json.dumps({"h": {n: v}})})),
    ("JSON thrice", lambda n, v: json.dumps([json.dumps({"a": json.dumps({n: v})})])),
    ("repr", lambda n, v: f"KeyError while handling {({'user': 'bob', n: v})!r}"),
    ("keyword", lambda n, v: f"connect(user='bob', {n}={v!r}, port=1)"),
    ("environment", lambda n, v: f"HOST=db1\n{n}={v}\nPORT=1"),
    ("colon", lambda n, v: f"db:\n  host: db1\n  {n}: {v}\n  port: 1\n"),
    ("toml", lambda n, v: f'[db]\n{n} = "{v}"\n'),
    ("flag", lambda n, v: f"$ tool --user bob --{n} '{v}' --verbose"),
    ("flag with sign", lambda n, v: f"$ tool --{n}={v} --verbose"),
    ("element", lambda n, v: f"<c><{n}>{escape(v)}</{n}></c>"),
    ("attribute", lambda n, v: f'<c user="bob" {n}="{escape(v)}"/>'),
    ("query", lambda n, v: f"https://a.io/x?u=1&{n}={v.replace('&', '%26')}&n=2"),
    ("header", lambda n, v: f"GET / HTTP/1.1\r\nHost: a.io\r\n{n}: {v}\r\n\r\n"),
    ("table", lambda n, v: f"| user | bob |\n| {n} | {v} |\n"),
    ("log", lambda n, v: f'time=1 level=info {n}="{v}" msg=ok'),
    ("selector", lambda n, v: {"selector": f"#{n}", "text": v}),
    ("element", lambda n, v: {"action": "fill", "element": f"{n} field", "value": v}),
    ("attribute selector", lambda n, v: {"target": f"input[name='{n}']", "text": v, "n": 1}),
    ("key and value", lambda n, v: {"Key": n, "Value": v}),
    ("form", lambda n, v: {"fields": [{"label": n, "type": "textbox", "value": v}]}),
    ("columns", lambda n, v: {"columns": ["id", n], "rows": [[1, v], [2, None]]}),
    ("headers", lambda n, v: {"headers": ["id", n, "day"], "data": [("a", v, "Monday")]}),
    ("named columns", lambda n, v: {"fields": [{"name": "id"}, {"name": n}], "rows": [[7, v]]}),
    ("rows", lambda n, v: [["id", n, "day"], ["a", v, "Monday"], ["b", "", "Friday"]]),
    ("two columns", lambda n, v: [("user", n), ("bob", v)]),
    ("csv", lambda n, v: f"id,{n},day\n1,{v},Monday\n2,,Friday\n"),
    ("quoted csv", lambda n, v: f'"id","{n}"\n"1","{v}"\n'),
    ("semicolons", lambda n, v: f"Export:\n\nid;{n};day\n1;{v};Monday\n"),
    ("tabs", lambda n, v: f"id\t{n}\n1\t{v}\n"),
    ("markdown", lambda n, v: f"| id | {n} |\n|:---|---:|\n| 1 | `{v}` |\n"),
    ("psql", lambda n, v: f" id | {n} \n----+-----\n  1 | {v}\n(1 row)\n"),
    ("mysql", lambda n, v: f"+--+--+\n| id | {n} |\n+--+--+\n| 1 | {v} |\n+--+--+\n"),
    ("box", lambda n, v: f"┌──┬──┐\n│ id │ {n} │\n├──┼──┤\n│ 1 │ {v} │\n└──┴──┘"),
    ("fixed width", lambda n, v: f"{'ID':8}{n.upper() if n.islower() else n:24}AGE\n{'api':8}{v:24}3d\n"),
    ("names and values", lambda n, v: f"| Name | Value |\n|---|---|\n| {n} | {v} |\n"),
    ("literal newline", lambda n, v: f"a=1\\n{n}={v}\\nb=2"),
)  # fmt: skip


def _struct() -> Iterator[Case]:
    """Values of low entropy under telling names, in every structure and notation."""
    source = random.Random(25)
    for name in DRAWN["names"]["names"].split():
        for shape, make in SHAPES:
            value = source.choice(DRAWN["names"]["values"])
            yield shape, make(name, value), value
    for name in DRAWN["names"]["numeric"]:
        for shape, make in SHAPES:
            value = str(source.randrange(1000, 9999))
            yield shape, make(name, value), value
        number = source.randrange(1000, 9999)
        yield "number", {"args": {name: number}}, str(number)


# ------------------------------------------------------------------ persons and places


def _identifiers() -> Iterator[Case]:
    """Identifiers in the writings of many countries and systems."""
    source = random.Random(24)
    table = DRAWN["identifiers"]
    for family, rows in table["families"].items():
        for form in " | ".join(rows).split(" | "):
            secret = _inside(family, form)
            plain = form.replace("<bwayne>", "bwayne") if family == "home" else form
            for around in source.sample(table["around"], 4):
                yield family, around.replace("{}", plain), secret
            yield family, {"name": "update", "input": {"note": plain, "n": 1}}, secret
            yield family, json.dumps({"i": json.dumps({"note": plain})}), secret


def _inside(family: str, form: str) -> str:
    """Return the part of a written form that must not be left."""
    if family == "home":
        return "bwayne"
    if family == "email_quoted":
        return "john doe" if "john" in form else "jane@acme.io"
    if family.startswith("phone"):
        return "".join(c for c in form.split(";")[0] if c.isdigit())[-6:]
    if family in ("ipv4", "ipv6"):
        body = form.strip("[].,").removeprefix("client=").removeprefix("http://").removeprefix("[")
        for mark in ("]", "/", "%", ","):
            body = body.split(mark)[0]
        return body.removesuffix(":8080").removeprefix("ip-").split(".ec2")[0]
    if family == "ssn":
        return form.split(": ")[-1].removeprefix("ssn ")
    return form


# ------------------------------------------------------------------ what must stay


def _look_alikes() -> Iterator[tuple[str, Any]]:
    """Names that only look telling."""
    source = random.Random(22)
    table = DRAWN["look_alikes"]
    for row in table["names"]:
        names, values = row["names"].split(), row["values"].split()
        for name in names:
            value = source.choice(values)
            yield names[0], {"args": {name: value}}
            yield names[0], [(name, value), ("a", "b")]
            for written in source.sample(table["written"], 4):
                yield names[0], written.format(n=name, s=source.choice(values))


def _benign() -> Iterator[tuple[str, Any]]:
    """Texts that only look sensitive."""
    source = random.Random(23)
    for family, rows in DRAWN["benign"].items():
        for template in " | ".join(rows).split(" | "):
            for around in ("{}", "Step 3 returned {} and went on."):
                yield family, around.replace("{}", fill(template, source))
            text = fill(template, source)
            yield family, {"content": text, "n": 1}
            yield family, json.dumps({"input": json.dumps({"q": text})})


FORMATS: Final[list[Case]] = list(_formats())
CONTEXT: Final[list[Case]] = list(_context())
SECRETS: Final = [*FORMATS, *CONTEXT]
STRUCT: Final[list[Case]] = list(_struct())
IDENTIFIERS: Final[list[Case]] = list(_identifiers())
LOOKALIKES: Final = list(_look_alikes())
BENIGN: Final = list(_benign())


# ------------------------------------------------------------------ texts that are slow to search


def _repeated(start: str, unit: str, size: int) -> str:
    return (start + unit * (size // len(unit) + 1))[:size]


def _drawn(alphabet: str, size: int) -> str:
    return "".join(random.Random(7).choices(alphabet, k=size))


def _literals_in_turn(size: int) -> str:
    turn = random.Random(9)
    pieces: list[str] = []
    length = 0
    while length < size:
        literal = turn.choice(DRAWN["nasty"]["literals"])
        pieces.append(literal + turn.choice(("", "", " ", "=", ":", "1", "a")))
        length += len(pieces[-1])
    return "".join(pieces)[:size]


_LITERALS: Final[list[str]] = DRAWN["nasty"]["literals"]
_OPENED: Final[list[list[str]]] = DRAWN["nasty"]["opened"]
_RANDOM: Final = {
    "base64": _LOWER + _UPPER + _DIGITS + "+/",
    "base64 for URLs": _LOWER + _UPPER + _DIGITS + "-_",
    "hexadecimal digits": _HEX,
    "digits": _DIGITS,
    "digits and separators": "0123456789 -.()/+",
    "digits, dots and colons": "0123456789abcdef:.",
    "quotes and brackets": "\"'\\{}[]:,=",
    "signs": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "addresses": "ab.@-_%40",
    "paths": "/\\:homeUsrC~",
    "assignments": "key=:'\" \n",
}
# Each makes a text of about the size that it is given.
NASTY: Final[list[tuple[str, Callable[[int], str]]]] = [
    *((f"{unit!a} repeated", partial(_repeated, "", unit)) for unit in _LITERALS),
    *((f"{unit!a} and a blank repeated", partial(_repeated, "", unit + " ")) for unit in _LITERALS),
    *((name, partial(_repeated, start, unit)) for name, start, unit in _OPENED),
    *(
        (f"{name} after 500 of them", partial(_repeated, start * 500, unit))
        for name, start, unit in _OPENED
    ),
    ("every literal in turn", _literals_in_turn),
    *((name, partial(_drawn, alphabet)) for name, alphabet in _RANDOM.items()),
]
