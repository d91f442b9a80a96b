"""Values after sensitive names: lists, headers, strings that end, codes in groups."""

from __future__ import annotations

import random

import pytest

from kp_langchain.redaction import Redaction, redact
from tests.redaction.drawn import fill

_SOURCE = random.Random(61)


@pytest.mark.parametrize(
    "template",
    [
        "recovery codes: {l5}-{l5}, {l5}-{l5}, {l5}-{l5}",
        "Save these backup codes:\n\n{d4} {d4}\n{d4} {d4}\n{d4} {d4}\n\nEach works once.",
        "Your backup codes\n1. {d4}-{d4}\n2. {d4}-{d4}\n3. {d4}-{d4}",
    ],
)
def test_every_item_of_a_list_of_codes_is_redacted(template: str) -> None:
    text = fill(template, _SOURCE)
    assert redact(text, level="private").counts.get("otp", 0) == 3
    digits = sum(map(str.isdigit, redact(text).value))
    assert digits == (3 if "1." in template else 0)


@pytest.mark.parametrize(
    "text",
    [
        "Set-Cookie: theme=dark; Path=/; SameSite=Lax",
        "Cookie: lang=en; theme=light",
        'name = input("Password: ")\nage = input("Age: ")',
        "the recovery codes, each of which works once, are in the safe",
        "next tokens: the, quick, brown",
        "run with --token TOKEN or --password string",
    ],
)
def test_what_only_looks_like_a_value_stays(text: str) -> None:
    assert redact(text) == Redaction(text, {})


@pytest.mark.parametrize(
    "template",
    [
        "Cookie: theme=dark; sid={x24}",
        "Set-Cookie: sessionid={a8}; Path=/",
        "Cookie: {x24}",
        "Authorization: Digest username=bob, response={h32}",
        "curl -H 'Authorization: Token {x32}' https://a.io",
        "one-time code: {d3} {d3}",
    ],
)
def test_headers_and_codes_in_groups_are_redacted(template: str) -> None:
    text = fill(template, _SOURCE)
    name, _, value = text.partition(": ")
    clean = redact(text, level="private").value
    assert clean.startswith(name)
    assert max(value.split(), key=len).rstrip(";,'").rpartition("=")[2] not in clean


@pytest.mark.parametrize(
    "template",
    [
        "I set the password of the service account to {v} yesterday.",
        "Let's use {v} for all three admin accounts' passwords.",
        "sudo asks for a password, give it {v}",
        "[10:02] dana: db password?\n[10:03] lee: {v}",
        'config.api_key = ENV.fetch("K", "{v}")',
        'parser.add_argument("--api-key", default="{v}")',
        "https://a.io/reset-password/{v}x?lang=en",
        "I typed {v} into the password box and clicked Sign in.",
    ],
)
@pytest.mark.parametrize("value", ["uRWi2I2XqZ!v5V", "k8fTq2LmZx91VbNw", "Maple_Lantern4254"])
def test_an_unmistakable_value_beside_a_name_is_redacted(template: str, value: str) -> None:
    if "_" in value and ("api" in template or "https" in template):
        return  # of two words, only a password is composed
    assert value not in redact(template.replace("{v}", value), level="private").value


@pytest.mark.parametrize(
    "text",
    [
        "the token limit of gpt-4o-mini-2024-07-18 is 128000",
        "the password field of OAuth2PasswordRequestForm is required",
        "the api key for run call_Ab3dE9fGh1Kx0 was accepted",
        "password reset mail sent, id: aB3dE9fGh1Kx0pQ2",
        "the password file has the SHA 3f786850e387550fdab836ed7e6dc881de23001b",
        "password rules: see https://a.io/docs/security#Section12B",
    ],
)
def test_names_of_things_beside_a_sensitive_name_stay(text: str) -> None:
    assert redact(text) == Redaction(text, {})


@pytest.mark.parametrize(
    "password",
    [
        "the cat is not here",
        "k{fQx!}zR",
        "$ecretword",
        "[hello]",
        "admin:password",
        "tiger/pass",
        "hunter2.key",
        "0x1234567890abcdef",
        "/wJalrXUtnFEMIK7MDENG",
        "@dmin2024x",
    ],
)
def test_a_password_of_an_odd_form_is_redacted(password: str) -> None:
    assert redact({"password": password}).value == {"password": "[REDACTED:password]"}
    assert password not in redact(f"<password>{password}</password>").value


@pytest.mark.parametrize(
    "value",
    [
        {"access_token": "ABCD-1234"},
        {"private_key": "3f786850e387550fdab836ed7e6dc881de23001b"},
        {"secret_key": "a1:b2:c3:d4:e5:f6:07:18:29:3a:4b:5c:6d:7e:8f:90"},
        {"mnemonic": "abandon use ability key about above absent absorb all any absurd abuse"},
    ],
)
def test_keys_and_codes_of_an_odd_form_are_redacted(value: dict[str, str]) -> None:
    assert "[REDACTED:" in next(iter(redact(value).value.values()))


@pytest.mark.parametrize(
    "text",
    [
        "INFO:root:Processed2Items and npm run test:e2eChromium1",
        "the code is 2048 lines long",
        "Use 8080 to log requests; enter 4096 to confirm the size",
        'Run this code:\n\n    1234\n\nif token != "B-PER1": pass',
        "https://example.com/verify/2024-01-15-release-notes-v2",
        'nx.connect(g, "node1x")',
        "wp.Password(min_length='eight', label='Type it')",
    ],
)
def test_code_and_counts_stay(text: str) -> None:
    assert redact(text) == Redaction(text, {})


def test_a_long_list_of_passwords_in_sentences_is_redacted_to_its_end() -> None:
    text = "the password is hunter22x. " * 4000
    assert redact(text).counts == {"password": 4000}
    assert redact("the token of it " * 8000 + "password=hunter22x").counts == {"password": 1}
