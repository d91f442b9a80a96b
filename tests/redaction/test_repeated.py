"""A secret that is named in one place also goes where it is not."""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from kp_langchain.redaction import Redaction, redact
from kp_langchain.redaction.repeated import Secrets
from kp_langchain.redaction.spans import PLACEHOLDER

_PASSWORD = "nectar-tiger-bottle-816"  # noqa: S105 - not in use


def test_a_secret_goes_wherever_it_occurs_again() -> None:
    given = {
        "messages": [
            {"role": "user", "content": f"Log in, the password is {_PASSWORD}."},
            {"role": "assistant", "tool_calls": [{"name": "type", "args": {"text": _PASSWORD}}]},
            {"role": "tool", "content": f"Typed {_PASSWORD} into index 5"},
        ],
        _PASSWORD: 1,
        f"{_PASSWORD} ": (_PASSWORD.encode(), {_PASSWORD}),
    }
    result = redact(given)
    assert _PASSWORD not in repr(result.value)
    assert len(result.value) == len(given)
    assert result.counts == {"password": 7}
    assert redact(result.value) == Redaction(result.value, {})


def test_json_stays_json_where_a_secret_occurs_again() -> None:
    text = json.dumps({"password": _PASSWORD, "log": [f"typed {_PASSWORD}", {"n": 1}]})
    result = json.loads(redact(text).value)
    assert result == {
        "password": "[REDACTED:password]",
        "log": ["typed [REDACTED:password]", {"n": 1}],
    }


def test_a_number_or_a_word_is_not_replaced_elsewhere() -> None:
    given = {"password": "production", "pin": 4711, "env": "production", "n": 4711}
    assert redact(given).value["env"] == "production"
    assert redact(given).value["n"] == 4711
    assert redact({"password": "abc12345", "word": "xabc12345x"}).value["word"] == "xabc12345x"


def test_shared_containers_cost_no_more_than_one() -> None:
    shared: list[Any] = ["x"]
    for _ in range(60):
        shared = [shared, shared]
    assert redact({"password": _PASSWORD, "shared": shared}).counts["password"] == 1


def test_a_line_break_before_a_letter_is_not_the_start_of_a_secret() -> None:
    text = '{"password": "nectar-tiger-816", "a": "line\\nectar-tiger-816"}'
    assert json.loads(redact(text).value)["a"] == "line\nectar-tiger-816"


def test_names_of_files_and_chats_are_not_replaced_elsewhere() -> None:
    given = {"session": "chat-2024-report", "file": "/data/chat-2024-report.csv"}
    assert redact(given).value["file"] == given["file"]
    given = {"password": "postgres15", "image": "postgres15:latest"}
    assert redact(given).value["image"] == given["image"]


def test_a_redactor_gets_no_text_with_a_secret_that_another_part_names() -> None:
    seen: list[str] = []

    def look(text: str) -> str:
        seen.append(text)
        return text.upper()

    result = redact({"password": _PASSWORD, "a": f"typed {_PASSWORD}"}, redactor=look)
    assert not any(_PASSWORD in text for text in seen)
    assert result.value["A"] == "TYPED [REDACTED:PASSWORD]"


_VALUES = [f"Zk{n}#mQ{n + 3}v!pLd" for n in range(12)]


@pytest.mark.parametrize("between", ["\n", " ", ", ", " | ", '" "'])
@pytest.mark.parametrize("name", ["password=", "password: ", "the password ", "api key for bob: "])
@pytest.mark.parametrize("wrap", [str, lambda text: json.dumps([json.dumps({"a": text})])])
@pytest.mark.parametrize("values", [_VALUES[:1] * 12, _VALUES[:2] * 6, _VALUES])
def test_no_text_is_given_up_because_secrets_repeat(
    between: str, name: str, wrap: Callable[[str], str], values: list[str]
) -> None:
    for text in (name + between.join(values), between.join(name + value for value in values)):
        result = redact(wrap(text))
        assert "failed" not in result.counts
        assert values[0] not in result.value
        assert redact(result.value) == Redaction(result.value, {})


_STRONG = 'Zk7#mQ2v!pL/d"x9'
_KEY = "b3f0a9c2d1e84f7796a5c4d3e2f1a0b9"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("secret", [_STRONG, _KEY, _PASSWORD])
@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda secret: json.dumps(json.dumps({"a": secret})),
        repr,
        urllib.parse.quote,
        lambda secret: re.sub("%..", lambda code: code[0].lower(), urllib.parse.quote(secret)),
        urllib.parse.quote_plus,
        html.escape,
        str.upper,
        str.lower,
        _base64,
        lambda secret: _base64(f"bob:{secret}").rstrip("="),
        lambda secret: base64.urlsafe_b64encode(f"a-user?>:{secret}".encode()).decode(),
        lambda secret: f"Basic {_base64(f'bobby:{secret}')[:-6]}…",
        lambda secret: secret.encode().hex(),
        lambda secret: f"{secret[:12]}…",
        lambda secret: f"{secret[:14]}...",
    ],
)
def test_a_secret_goes_in_every_form(secret: str, write: Callable[[str], str]) -> None:
    form = write(secret)
    value = redact({"password": secret, "a": ["before", f"it is {form} here"]}).value["a"][1]
    assert value.startswith("it is ")
    assert value.endswith(" here")
    kept = PLACEHOLDER.sub("", value.removeprefix("it is ").removesuffix(" here"))
    assert PLACEHOLDER.search(value)
    assert kept.strip("\"'{}:\\ a….") in ("", "Basic"), value


@pytest.mark.parametrize("text", ["release-4-5-6-beta", "my-release-4-5-6", "xrelease-4-5-6"])
def test_words_and_numbers_with_hyphens_are_only_whole_words(text: str) -> None:
    assert redact({"password": "release-4-5-6", "a": text}).value["a"] == text


def test_an_answer_is_cleaned_of_whole_words() -> None:
    secrets = Secrets()
    secrets.note_answer("plover83, myplover83, plover83x9", [("password", "plover83")])
    cleaned = secrets.clean_answer("plover83, myplover83, plover83x9")
    assert cleaned == "[REDACTED:password], myplover83, plover83x9"


def test_of_a_passphrase_its_words_go_in_every_form() -> None:
    words = ["ripple", "sunset", "velvet", "orbit", "canyon"]
    for joint in (" ", ", ", "-", "\n", '", "'):
        text = f"typed [{joint.join(words)}] there"
        value = redact({"seed_phrase": " ".join(words), "a": text}).value["a"]
        assert value == "typed [[REDACTED:private_key]] there"


@pytest.mark.parametrize(
    ("secret", "kept"),
    [
        ({"password": "sunflower"}, "We sell sunflower oil, olive oil and a sunflower."),
        ({"password": "sunflower"}, '{"oil": "sunflower", "price": 3}'),
        (
            {"password": "sunflower"},
            "Fill sunflower bags. Types of sunflower oil; input sunflower data.",
        ),
        ({"pin": "4471"}, "I filled 4471 forms and typed 4471 lines."),
        ({"credentials": "s3_client"}, "s3_client = make(); s3_client.put(x); grep s3_client"),
        ({"token": "RefreshTokenV2"}, "class RefreshTokenV2: ..."),
        ({"pin": "4471"}, "There are 4471 rows; 4471 of them are new."),
        ({"pin": "4471"}, '{"count": 4471, "rows": 4471}'),
        ({"password": "admin"}, "The admin typed a command."),
        ({"password": "test"}, "Typed test data; the test is in /test/test.py."),
        ({"password": "changeme"}, "typed changeme"),
        ({"password": "password"}, "typed password into the password field"),
        ({"password": "postgres15"}, "image: postgres15:latest, postgres15-alpine, my-postgres15"),
        ({"api_key": "www.shop-24.example"}, "see www.shop-24.example"),
    ],
)
def test_what_is_also_an_ordinary_word_stays(secret: dict[str, str], kept: str) -> None:
    assert redact({**secret, "a": kept}).value["a"] == kept


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ({"password": "sunflower"}, "typed sunflower into #x"),
        ({"password": "sunflower"}, "Ich habe sunflower eingetippt: tippe sunflower"),
        ({"password": "sunflower"}, "the password (sunflower) was wrong"),
        ({"password": "sunflower"}, "sunflower is the password"),
        ({"password": "sunflower"}, '{"element": 5, "value": "sunflower"}'),
        ({"pin": "4471"}, "I entered the PIN: 4471."),
        ({"pin": "4471"}, "typed 4471; done"),
        ({"password": "plover83"}, "login as bob/plover83 failed"),
    ],
)
def test_a_word_goes_where_something_beside_it_says_what_it_is(
    secret: dict[str, str], text: str
) -> None:
    value = redact({**secret, "a": text}).value["a"]
    assert next(iter(secret.values())) not in value.replace("habe sunflower", "")


def test_a_name_beside_a_value_says_what_it_is() -> None:
    given = {"password": "sunflower", "env": [{"name": "SHOP_NAME", "value": "sunflower"}]}
    assert redact(given).value["env"] == given["env"]


@pytest.mark.parametrize(("number", "is_left"), [("482913", False), ("100000", True)])
def test_a_long_number_that_answers_a_question_goes_from_everywhere(
    number: str, is_left: bool
) -> None:
    chat = [{"role": "ai", "content": "The login code?"}, {"role": "user", "content": number}]
    clean = redact({"chat": chat, "log": f"saw {number} there"}).value
    assert number not in str(clean["chat"])
    assert (number in clean["log"]) is is_left


def test_a_quote_in_a_secret_is_found_as_shells_write_it() -> None:
    for quoted in ("'Ruder'\\''s&9x!Kq2'", "'Ruder'\"'\"'s&9x!Kq2'"):
        clean = redact({"password": "Ruder's&9x!Kq2", "a": f"curl -u ann {quoted}"}).value
        assert clean["a"] == "curl -u ann '[REDACTED:password]'"


@pytest.mark.parametrize(
    ("secret", "other"),
    [
        ('{"type": "key", "id": "Zk7mQ2vpLd"}', '{"type": "k[3]"}'),
        ("[{'type': 'key', 'id': 'Zk7mQ2vpLd'}]", "[{'type': 'k[3]'}]"),
        (" {'type': 'key', 'id': 'Zk7mQ2vpLd'}", " {'type': 'k[3]'}"),
        ("login(user, 'Zk7mQ2vpLd')", "login(user, [3])"),
    ],
)
def test_json_that_is_a_secret_goes_as_a_whole_and_not_what_begins_like_it(
    secret: str, other: str
) -> None:
    value = {"password": secret, "a": f"use {secret} now", "b": f"use {other} now"}
    clean = redact(value).value
    assert clean["a"] == "use [REDACTED:password] now"
    assert clean["b"] == value["b"]
    in_text = json.dumps({"log": f"use {other} now"})
    assert redact({"password": secret, "b": in_text}).value["b"] == in_text


def test_a_secret_with_signs_is_found_where_it_was_cut_off() -> None:
    mixed = "Zk7'mQ\"2vpLd9x(KtRw"
    clean = redact({"password": mixed, "a": f"saw {mixed[:15]}... there"}).value
    assert clean["a"] == "saw [REDACTED:password]... there"


def test_a_secret_of_a_url_is_also_looked_for_decoded() -> None:
    clean = redact(
        {"a": "postgres://u:p%40ss%21Word9x@db/shop", "b": "psql -W 'p@ss!Word9x'"}
    ).value
    assert clean["b"] == "psql -W '[REDACTED:password]'"


def test_a_number_goes_from_indented_json_as_from_the_values_in_it() -> None:
    value = {"password": [1000], "rows": [{"to": None, "content": 1000}], "n": 1000}
    for indent in (None, 2, 8):
        assert json.loads(redact(json.dumps(value, indent=indent)).value) == redact(value).value


def test_a_value_of_a_manifest_is_also_looked_for_decoded() -> None:
    code = base64.b64encode(b"plover-83!Nest").decode()
    manifest = f"kind: Secret\ndata:\n  smtp: {code}\n"
    clean = redact({"a": manifest, "b": "it is plover-83!Nest"}).value
    assert code not in clean["a"]
    assert clean["b"] == "it is [REDACTED:secret]"


def test_a_secret_with_a_space_goes_wherever_it_occurs_again() -> None:
    secret = "Ruder&Anker 8?x2"  # noqa: S105 - not in use
    clean = redact({"password": secret, "a": f"?p={urllib.parse.quote(secret)}&n=1"}).value
    assert clean["a"] == "?p=[REDACTED:password]&n=1"


def test_what_is_typed_into_a_field_goes_as_a_whole() -> None:
    given = {"pin": "4471", "fill": {"selector": "#x", "text": "4471"}, "keys": 4471, "n": 4471}
    result = redact(given).value
    assert result["fill"]["text"] == result["keys"] == "[REDACTED:pin]"
    assert result["n"] == 4471


def test_a_secret_in_bytes_that_are_no_utf_8_is_looked_for_like_any_other() -> None:
    secret = b"Zk7#mQ2v\x80pLd"
    assert redact({"password": secret, "a": secret}).value == {
        "password": b"[REDACTED:password]",
        "a": b"[REDACTED:password]",
    }
