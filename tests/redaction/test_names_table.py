"""The table of telling words: each group with its examples, and names of every kind and language."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kp_langchain.redaction import redact
from kp_langchain.redaction.field_names import classify_name
from kp_langchain.redaction.tables import load_table
from tests.redaction.drawn import compose, password

_TABLE = load_table("names")
_GROUPS: list[dict[str, Any]] = [
    *_TABLE["telling"],
    *_TABLE["owned"],
    *(group for name, group in _TABLE.items() if name not in ("telling", "owned")),
]
_WORDS = [
    pytest.param(group["kind"], noun, id=f"{group['kind']} {noun}")
    for group in _TABLE["telling"]
    for nouns in group["words"].values()
    for noun in nouns.split()
]


@pytest.mark.parametrize("group", _GROUPS)
def test_every_group_redacts_and_keeps_its_examples(group: dict[str, Any]) -> None:
    text, secret = compose(group["redacted"], random.Random(7))
    name, _, value = text.partition(": ")
    given = {name: value} if group.get("keys_only") else text
    assert secret not in str(redact(given).value)
    assert redact(group["kept"]).value == group["kept"]


@pytest.mark.parametrize(("kind", "noun"), _WORDS)
def test_every_word_names_its_kind_however_it_is_written(kind: str, noun: str) -> None:
    for name in (noun, noun.replace("_", " ").title(), f"your new {noun.replace('_', ' ')}"):
        field = classify_name(name)
        assert field is not None
        assert field.kind == kind, name


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
def test_labels_of_several_words(label: str, kind: str | None) -> None:
    field = classify_name(label)
    assert (field.kind if field else None) == kind


@pytest.mark.parametrize(
    "before",
    ["Das Passwort lautet ", "Le mot de passe est ", "La contraseña es ", "密码是", "パスワードは"],
)
def test_a_value_ends_where_its_string_ends(before: str) -> None:
    secret = password(random.Random(8))
    text = f'{{"q": "{before}{secret}", "next": 1}}'
    assert redact(text).value == text.replace(secret, "[REDACTED:password]")


@pytest.mark.parametrize("quotes", ["「」", "“”", "„“", "«»", "『』", "‘’"])
@pytest.mark.parametrize(
    "before", ["密码是", "パスワードは", "пароль ", "Passwort: ", "the password is "]
)
def test_quotes_of_all_scripts(before: str, quotes: str) -> None:
    secret = password(random.Random(9))
    text = f"{before}{quotes[0]}{secret}{quotes[1]}."
    assert redact(text).value == text.replace(secret, "[REDACTED:password]")


def test_a_placeholder_does_not_give_away_the_next_line() -> None:
    text = 'api_key = "YOUR_API_KEY"\nbob42x = 7'
    assert redact(text).value == text


_SENTENCES = (
    "Invalid API Key: {x40}",
    "[warn] Valid API key: {x40} (expires in 66 days)",
    "This endpoint requires API key: {x40}",
    "DEBUG httpx: using api key {x40} for base_url=x",
    "I changed the root password to {p} yesterday",
    "We rotated the admin password from oldone to {p}.",
    "The database password was changed to {p} on Monday.",
    "Das WLAN-Passwort wurde auf {p} geändert.",
    "J'ai remplacé le mot de passe par {p} ce matin.",
    "我把密码改成了{p}，你试试",
    "Rotated signing key, now {x40}",
    "{p} is the wifi password, help yourself",
    '"{p}" is the new admin password',
    "so I am using {x40} as my api key",
    "{x40} <- that's our staging api token",
    "The access token ({x40}) will expire in an hour.",
    "found a secret key [{x40}] in a commit",
    "Here is the key:\n{x40}",
    "Your personal access token is below. Keep it private.\n\n```\n{x40}\n```",
    "**Password**\n\n{p}\n\n**Host**\n\nmail.example",
    "Your verification code is\n\n{d6}\n\nThis code expires soon.",
    "## Encryption key\n\n`{b43}=`",
    'const API_KEY: &str = "{x40}";',
    'let api_key: String = String::from("{x40}");',
    'AUTH_TOKEN: Final[str] = "{x40}"',
    'var password string = "{p}"',
    'api_key=SecretStr("{x40}"),',
    'public string Password { get; set; } = "{p}";',
    'password := []byte("{p}")',
    "API 키: {x40}",
    "la clave de API es «{x40}», guárdala",
    "Klucz API: {x40}",
    "APIキー: {x40}",
    "인증번호 [{d6}]를 입력해 주세요",
    "Il tuo codice di verifica è {d6}",
    "http://localhost:8080/?code={x40}&scope=email",
    "Save these recovery codes:\n\n{l5}-{l5}1\n{l5}2-{l5}\nab1cd-{l5}9\n",
)
_HARMLESS = (
    "fetch('/api/me', { credentials: 'include' })",
    "token: str",
    'print("Password: ")\nname = input("ok")',
    "token=userToken, key=get_key",
    "secret: String!",
    "password: changeme   # change it",
    'token: "not set"',
    "{'extract': {'token': '$.auth.token'}}",
    "Passwort: mindestens zwölf Zeichen, davon eine Ziffer",
    "Never commit your password: use a secrets manager.",
    "Пароль: обязательное поле",
    "パスワードは8文字以上で入力してください。",
    "Het wachtwoord is verlopen.",
    "passwd: password updated successfully",
    "const token = req.headers.authorization?.split(' ')[1];",
    "password: ${DB_PASSWORD:?err}",
    "fn with_api_key(mut self, api_key: impl Into<String>)",
    "message Login { string user = 1; string password = 2; }",
    "the key to success is practice",
    "password (8 characters)",
    "token\nexpires\nscope",
    "step2 is the password reset",
    "the recovery codes are shown once",
    "San Francisco, CA 94109 (location pin icon)",
)


@pytest.mark.parametrize("sentence", _SENTENCES)
def test_values_go_wherever_they_stand_to_their_name(sentence: str) -> None:
    for seed in range(5):
        text, secret = compose(sentence, random.Random(seed))
        assert secret not in redact(text, level="private").value


@pytest.mark.parametrize("text", _HARMLESS)
def test_sentences_and_code_about_secrets_stay(text: str) -> None:
    assert redact(text).value == text
