"""What goes from texts and what stays: the tables of the tests, and those of the package."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kp_langchain.errors import ConfigError
from kp_langchain.redaction import LEVELS, Redaction, redact
from kp_langchain.redaction.fields import looks_like
from kp_langchain.redaction.spans import load_table
from tests.redaction.cases import (
    BENIGN,
    CASES,
    DRAWN,
    IDENTIFIERS,
    LOOKALIKES,
    SECRETS,
    SHAPES,
    STRUCT,
    compose,
    fill,
    issuer_rows,
    left_over,
    password,
)

# ------------------------------------------------------------------ texts as they are

# TOML has no null.
NULLS: dict[str, list[Any]] = {
    "records": [
        {
            "token": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "title": "Token",
                "default": None,
            }
        }
    ],
    "look-alike names": [{"password": None}],
}


def forms(value: Any) -> list[Any]:
    """A text or record as it is, in a record, and in JSON."""
    return [value, {"content": value}, ["a", value], json.dumps({"content": value})]


@pytest.mark.parametrize("group", CASES["stays"])
def test_what_only_looks_sensitive_stays(group: str) -> None:
    for value in [*CASES["stays"][group], *NULLS.get(group, [])]:
        written = [*forms(value), json.dumps(value)]
        if group == "ordinary text":
            written.append(f"Step 1 returned {value} and went on")
        if group.startswith("handles"):
            written.append(f"log: {json.dumps(value)}")
        if group == "look-alike names":
            written += [f"run({name}={item!r}, n=1)" for name, item in value.items()]
        for one in written:
            assert redact(one) == Redaction(one, {})


@pytest.mark.parametrize("group", CASES["goes"])
def test_a_secret_or_identifier_goes(group: str) -> None:
    level = "private" if group == "surroundings" else "aggregated"
    for text, secret in CASES["goes"][group]:
        for form in forms(text):
            assert not left_over(secret, redact(form, level=level).value), form


@pytest.mark.parametrize("group", CASES["becomes"])
def test_only_the_secret_goes_and_all_of_it(group: str) -> None:
    for given, clean in CASES["becomes"][group]:
        assert redact(given).value == clean
        assert redact(clean).value == clean
        assert redact({"content": given}).value == {"content": clean}
        assert json.loads(redact(json.dumps({"content": given})).value) == {"content": clean}


@pytest.mark.parametrize("word", CASES["odd passwords"]["words"])
def test_a_password_of_an_odd_form_is_redacted(word: str) -> None:
    assert redact({"password": word}).value == {"password": "[REDACTED:password]"}
    assert word not in redact(f"<password>{word}</password>").value


# ------------------------------------------------------------------ drawn texts

# What is not found of the texts that are drawn: (family, a part of the text).
MISSED = {
    ("jwt", "It was IjoiSm9obiBEb2UiLCJpYXQiOjE1MTYyMzkwMjJ9."),
    ("languages", "CZ9S8p4Vo92a9a"),
    ("languages", "código PIN: jasmine-green-32"),
    ("phone_national", "line\\n(02) 9876 5432\\nmore"),
    ("phone_national", "line\\n(11) 91234-5678\\nmore"),
    ("phone_named", "line\\ncall me at 4155552671\\nmore"),
    ("phone_named", "line\\ncall 555-0134\\nmore"),
    ("phone_named", "line\\nfax: 2345 6789\\nmore"),
}


def families(cases: Sequence[tuple[Any, ...]], *levels: str) -> list[Any]:
    rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for family, *case in cases:
        rows[family].append(tuple(case))
    return [pytest.param(family, rows, levels, id=family) for family, rows in rows.items()]


@pytest.mark.parametrize(
    ("family", "rows", "levels"),
    [
        *families(SECRETS, "private", "aggregated"),
        *families(STRUCT, "private"),
        *families(IDENTIFIERS, "aggregated"),
    ],
)
def test_what_is_drawn_goes(
    family: str, rows: list[tuple[Any, str]], levels: Sequence[str]
) -> None:
    known = [text for name, text in MISSED if name == family]
    for given, secret in rows:
        for level in levels:
            result = redact(given, level=level)
            is_gone = bool(result.counts) and not left_over(secret, result.value)
            is_known = any(text in str(given) for text in known)
            assert is_gone or is_known, (given, result.value)


@pytest.mark.parametrize(("family", "rows", "_levels"), families([*LOOKALIKES, *BENIGN]))
def test_what_is_drawn_and_harmless_stays(
    family: str, rows: list[tuple[Any]], _levels: Sequence[str]
) -> None:
    for (given,) in rows:
        assert redact(given) == Redaction(given, {})


WRITTEN: list[Callable[[str, str], Any]] = [
    *(make for _, make in SHAPES),
    lambda n, v: f"q%26{n}%3D{v}",
    lambda n, v: f"\x1b[1m{n}={v}\x1b[0m",
    lambda n, v: f"{n}='{v}'",
    lambda n, v: f'{n} = "{v}"',
    lambda n, v: f"{n}: {v}",
    lambda n, v: (n, v),
    lambda n, v: {n: v.encode()},
]


@pytest.mark.parametrize("name", [*DRAWN["names"]["more"].split(), "password", "token", "apiKey"])
def test_a_telling_name_works_in_every_notation(name: str) -> None:
    for make in WRITTEN:
        result = redact(make(name, "Tr0ub4dor!3"), level="private")
        assert "Tr0ub4dor!3" not in str(result.value)
        assert result.counts


TEMPLATES = [
    *(text for texts in DRAWN["notations"].values() for text in texts),
    *DRAWN["sentences"]["sentences"],
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_value_next_to_its_name_goes_wherever_it_stands(template: str) -> None:
    source = random.Random(61)
    for _ in range(4):
        text, secret = compose(template, source)
        for form in forms(text):
            clean = redact(form, level="private").value
            assert not left_over(secret, clean), form
            assert redact(clean, level="private").value == clean


@pytest.mark.parametrize("value", ["uRWi2I2XqZ!v5V", "k8fTq2LmZx91VbNw", "Maple_Lantern4254"])
@pytest.mark.parametrize("template", DRAWN["sentences"]["unmistakable"])
def test_an_unmistakable_value_beside_a_name_goes(template: str, value: str) -> None:
    if "_" in value and ("api" in template or "https" in template):
        return  # of two words, only a password is composed
    assert value not in redact(template.replace("{v}", value), level="private").value


@pytest.mark.parametrize("template", DRAWN["sentences"]["headers"])
def test_a_header_loses_its_value_only(template: str) -> None:
    text = fill(template, random.Random(61))
    name, _, value = text.partition(": ")
    clean = redact(text, level="private").value
    assert clean.startswith(name)
    assert max(value.split(), key=len).rstrip(";,'").rpartition("=")[2] not in clean


@pytest.mark.parametrize("template", DRAWN["sentences"]["lists of codes"])
def test_every_item_of_a_list_of_codes_goes(template: str) -> None:
    text = fill(template, random.Random(61))
    assert redact(text, level="private").counts.get("otp", 0) == 3
    assert sum(map(str.isdigit, redact(text).value)) == (3 if "1." in template else 0)


@pytest.mark.parametrize("quotes", ["「」", "“”", "„“", "«»", "『』", "‘’", '""'])
@pytest.mark.parametrize(
    "before",
    [
        "密码是",
        "パスワードは",
        "пароль ",
        "Passwort: ",
        "the password is ",
        "Das Passwort lautet ",
        "Le mot de passe est ",
        "La contraseña es ",
    ],
)
def test_a_value_ends_where_its_quotes_or_its_string_end(before: str, quotes: str) -> None:
    secret = password(random.Random(9))
    for text in (
        f"{before}{quotes[0]}{secret}{quotes[1]}.",
        f'{{"q": "{before}{secret}", "next": 1}}',
    ):
        assert redact(text).value == text.replace(secret, "[REDACTED:password]")


# ------------------------------------------------------------------ the tables of the package

AROUND = ("I called it with {} and got 401.", "x={}", "型号{}无效。", "one\\n{}\\ntwo")


def in_text_and_json(example: str) -> list[str]:
    return [
        *(around.replace("{}", example) for around in AROUND),
        json.dumps({"note": f"see {example}", "n": 1}),
        json.dumps({"args": json.dumps({"note": example})}),
    ]


def examples(row: dict[str, Any], key: str) -> Iterator[str]:
    """Each example of a row with each of its prefixes, drawn without any care for digits."""
    source = random.Random(51)
    for example in row[key]:
        for prefix in row.get("prefixes", [""]):
            for _ in range(2):
                yield fill(example.replace("{p}", prefix), source, with_digits=False)


FORMATS = [
    *issuer_rows(),
    # Formats written down once more, so that a row cannot be weakened with its own example.
    *((kind, {"finds": rows, "keeps": [], "whole": 1}) for kind, rows in DRAWN["formats"].items()),
]


@pytest.mark.parametrize(
    ("kind", "row"), FORMATS, ids=[f"{kind}-{row['finds'][0][:12]}" for kind, row in FORMATS]
)
def test_a_published_format_is_found_as_its_kind_and_others_stay(
    kind: str, row: dict[str, Any]
) -> None:
    for example in examples(row, "finds"):
        for text in in_text_and_json(example):
            result = redact(text, level="private")
            assert result.counts == {kind: 1}, text
            assert not left_over(example, result.value)
        if "whole" in row:
            assert redact(f"before {example} after").value == f"before [REDACTED:{kind}] after"
    for example in examples(row, "keeps"):
        for text in in_text_and_json(example):
            assert redact(text, level="private").value == text


@pytest.mark.parametrize("around", DRAWN["formats_around"]["around"])
def test_a_published_format_is_found_anywhere(around: str) -> None:
    source = random.Random(52)
    for rows in DRAWN["formats"].values():
        for template in rows:
            secret = fill(template, source)
            result = redact(around.replace("{}", secret), level="private")
            assert secret[8:-4] not in result.value
            assert result.counts


@pytest.mark.parametrize(
    "row", load_table("commands")["command"], ids=lambda row: row["pattern"].partition(" ")[0]
)
def test_the_secret_of_a_command_is_found_and_nothing_else(row: dict[str, Any]) -> None:
    def written(command: str) -> list[str]:
        return [command, f"$ {command}\nok", json.dumps({"cmd": f"cd /srv && {command}"})]

    source = random.Random(52)
    for template in row["finds"] * 4:
        command, secret = compose(template, source)
        for text in written(command):
            result = redact(text, level="private")
            assert sum(result.counts.values()) == 1, text
            assert not left_over(secret, result.value), text
    for command in row["keeps"]:
        for text in written(command):
            assert redact(text, level="private").value == text


@pytest.mark.parametrize(
    "row",
    [
        *load_table("contexts")["context"],
        *(row for name in ("notation", "relation", "below", "code") for row in load_table("links")[name]),
    ],
    ids=lambda row: row["finds"][0],
)  # fmt: skip
def test_a_context_or_link_finds_its_examples(row: dict[str, Any]) -> None:
    source = random.Random(31)
    for template in row["finds"] * 5:
        text, secret = compose(template, source)
        assert not left_over(secret, redact(text, level="private").value)
    for text in row["keeps"]:
        assert redact(text) == Redaction(text, {})


@pytest.mark.parametrize("row", load_table("placeholders")["placeholder"])
def test_a_placeholder_stays_and_what_looks_like_one_goes(row: dict[str, Any]) -> None:
    for value in row["finds"]:
        assert redact({"password": value}) == Redaction({"password": value}, {})
    for value in row["keeps"]:
        assert redact({"password": value}).value == {"password": "[REDACTED:password]"}


@pytest.mark.parametrize("form", load_table("values"))
def test_a_form_of_values_matches_its_examples_and_not_what_looks_alike(form: str) -> None:
    row = load_table("values")[form]
    assert {value: looks_like(form, value) for value in row["finds"] + row["keeps"]} == {
        **dict.fromkeys(row["finds"], True),
        **dict.fromkeys(row["keeps"], False),
    }


NAMES = load_table("names")
GROUPS: list[dict[str, Any]] = [
    *NAMES["telling"],
    *NAMES["owned"],
    *(group for name, group in NAMES.items() if name not in ("telling", "owned")),
]
VALUES = ("Zk7#mQ2v!pLd9", "4821", "b3f0a9c2d1e84f7796a5c4d3e2f1a0b9", "4155552671")
MORE_VALUES = {
    "account": "12345678",
    "card": "4111111111111111",
    "connection_string": "SharedKey=Qd7Lw2Zx9BvT4kNsYh3Jm6RpC8gFe1a;Password=hunter22",
}


def is_named(name: str, kind: str) -> bool:
    """Whether a value under the name is taken for one of this kind."""
    values = (*VALUES, MORE_VALUES.get(kind, ""))
    return any(kind in redact({name: value}).counts for value in values)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_names_redacts_and_keeps_its_examples(group: dict[str, Any]) -> None:
    text, secret = compose(group["redacted"], random.Random(7))
    name, _, value = text.partition(": ")
    given = {name: value} if group.get("keys_only") else text
    assert secret not in str(redact(given).value)
    assert redact(group["kept"]).value == group["kept"]


@pytest.mark.parametrize("group", NAMES["telling"], ids=lambda group: group["kind"])
def test_every_word_names_its_kind_however_it_is_written(group: dict[str, Any]) -> None:
    for noun in " ".join(group["words"].values()).split():
        words = noun.replace("_", " ")
        for name in (noun, words.title(), f"your new {words}"):
            assert is_named(name, group["kind"]), name


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("Invalid API Key", "api_key"),
        ("Your new password", "password"),
        ("Password (again)", "password"),
        ("Token for the gateway", "token"),
        ("Mot de passe", "password"),
        ("数据库密码", "password"),
        ("API 키", "api_key"),
        ("Verification code", "otp"),
        ("Show password", None),
        ("Number of tokens", None),
        ("Public key", None),
        ("Passenger", None),
        ("valid_token", None),
    ],
)
def test_a_label_of_several_words_is_a_name(label: str, kind: str | None) -> None:
    if kind:
        assert is_named(label, kind)
    else:
        for value in VALUES:
            assert redact({label: value}) == Redaction({label: value}, {})


# ------------------------------------------------------------------ numbers of persons

ROWS = [row for row in load_table("identifiers")["identifier"] if row["kind"] != "none"]
# How people write a label and its number: `L` and `V`.
LABELLED = (
    "L: V",
    "L V",
    "L=V",
    "L no. V",
    "L number: V",
    "my L number is V.",
    "The L number for Jane Roe is: V",
    "L #V",
    "L (as registered): V",
    "**L:** V",
    "| L | V |",
    "<td>L</td><td>V</td>",
    "L:\n  V",
    "{'L': 'V'}",
    "2026-02-03 10:15:22 INFO L=V status=ok",
)
# What a label that ends in one of these signs is followed by.
OF_SIGN = {
    "#": ("L no. V", "L number: V", "L #V", "my L number is V."),
    "?": tuple(text for text in LABELLED if text not in ("L V", "| L | V |", "{'L': 'V'}")),
    "=": ("L=V",),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_number_of_a_person_goes_with_each_label(row: dict[str, Any]) -> None:
    example, only_in_text = row["example"], row.get("only_in_text")
    for sign_and_label in row["labels"]:
        label = sign_and_label.rstrip("#?= ")
        for template in OF_SIGN.get(sign_and_label[-1], LABELLED):
            if not label.isascii() and "number" in template:
                continue
            if template.startswith("{") and (only_in_text or not label[0].isalpha()):
                continue
            text = template.replace("L", label).replace("V", example)
            assert example not in redact(text).value, text
    label = row["labels"][0].rstrip("#?= ")
    if not only_in_text:
        value = {re.sub(r"\W+", "_", label) + "_number": example, "city": "Rome"}
        assert example not in str(redact(value).value)
        assert redact(json.dumps(value)).value != json.dumps(value)
    if "bare" in row:  # its check digits prove it without a label
        for template in ("V", "Found V, going on.", "(V)", "a,V,b", "id\tV\tx"):
            clean = template.replace("V", f"[REDACTED:{row['kind']}]")
            assert redact(template.replace("V", example)).value == clean
            other = template.replace("V", row["other"])
            assert redact(other).value == other
    else:
        for template in ("L: V", "L number: V", "the L is V"):
            other = template.replace("L", label).replace("V", row["other"])
            assert redact(other).value == other


@pytest.mark.parametrize(
    "row",
    [*load_table("identifiers")["shape"], *load_table("identifiers")["pattern"]],
    ids=lambda row: f"{row['kind']}-{row['finds'][0]}",
)
def test_an_identifier_is_found_as_its_kind_and_others_stay(row: dict[str, Any]) -> None:
    for example in row["finds"]:
        for around in (
            "{}",
            "It is {} , going on.",
            "<td>{}</td>",
            "one\n{}\ntwo",
            "a,b\n12.00,{},x",
        ):
            assert redact(around.replace("{}", example)).counts == {row["kind"]: 1}, around
    for example in row["keeps"]:
        for text in (example, f"one\n{example} \ntwo"):
            assert redact(text).value == text


@pytest.mark.parametrize(
    ("kind", "written"),
    [(kind, written) for kind, rows in CASES["identifiers"].items() for written in rows],
)
def test_an_identifier_goes_unless_the_level_is_private(kind: str, written: str) -> None:
    for around in ("Contact {} about it.", "({})", '{{"to": "{}"}}', "地址{}。"):
        text = around.format(f"/home/{written}/app.py" if kind == "home_path" else written)
        # That it is harmless at one level is remembered for that level alone.
        assert redact({"text": text}, level="private") == Redaction({"text": text}, {})
        for level in ("aggregated", "federated"):
            result = redact({"text": text}, level=level)
            assert written not in result.value["text"]
            assert result.counts == {kind: 1}


# ------------------------------------------------------------------ any text


def test_an_unknown_level_is_refused_with_the_three_known() -> None:
    with pytest.raises(ConfigError) as error:
        redact("x", level="secret")
    for word in ("secret", *LEVELS):
        assert repr(word) in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1." * 8000,
        "a@a@a@" * 8000,
        "a@" + "a." * 24_000,
        '"' * 48_000,
        "-" * 48_000,
        "\\" * 48_000 + '"',
        "password:'" * 5000,
        'password:{"":"",' * 3000,
        "password=" * 5000,
        "token-" * 8000,
        "http://a:" * 5000,
        "-----BEGIN RSA PRIVATE KEY-----\n" * 1500,
        "eyJ-" * 12_000,
        "mysql " * 8000,
        "x(at)" * 10_000,
        "+1 555 " * 7000,
        "[REDACTED:a]" * 4000 + "password=hunter22",
        "\ud800\udfff" * 1000 + "password=hunter22",
        "İ" * 5000 + "password=hunter22",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_a_hostile_text_comes_back_whole_and_settled(text: str) -> None:
    once = redact(text)
    assert "hunter22" not in once.value
    assert "failed" not in once.counts
    assert redact(once.value) == Redaction(once.value, {})


def test_a_long_list_of_passwords_in_sentences_goes_to_its_end() -> None:
    assert redact("the password is hunter22x. " * 4000).counts == {"password": 4000}
    assert redact("the token of it " * 8000 + "password=hunter22x").counts == {"password": 1}
