"""A secret that one place gives away also goes elsewhere: repeated, as an answer, or cut off."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from kp_langchain import trace_from_messages
from kp_langchain.redaction import Redaction, redact
from tests.redaction.cases import CASES

PLACEHOLDER = re.compile(r"\[REDACTED:[a-z_]+(?:#\w+)?\]")
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


def test_of_very_many_secrets_the_first_go_from_everywhere() -> None:
    secrets = [f"river{number}falcon" for number in range(1000, 1300)]
    *named, text = redact([*({"password": one} for one in secrets), " ".join(secrets)]).value
    assert all(one == {"password": "[REDACTED:password]"} for one in named)
    assert [one for one in secrets if one in text] == secrets[200:]


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


@pytest.mark.parametrize(
    ("before", "secret"),
    [("", "k?7?Q?z?m?2"), ("a", "k?7?Q?z?m?2"), ("ab", "k?7?Q?z?m?2"), ("", "Wq7#xT")],
)
def test_a_secret_goes_in_base64_of_urls(before: str, secret: str) -> None:
    code = base64.urlsafe_b64encode(f"{before}{secret}".encode()).decode()
    value = redact({"password": secret, "a": f"it is {code} here"}).value
    assert value["a"] == "it is [REDACTED:password] here"


@pytest.mark.parametrize("text", ["release-4-5-6-beta", "my-release-4-5-6", "xrelease-4-5-6"])
def test_words_and_numbers_with_hyphens_are_only_whole_words(text: str) -> None:
    assert redact({"password": "release-4-5-6", "a": text}).value["a"] == text


def test_of_a_passphrase_its_words_go_in_every_form() -> None:
    words = ["ripple", "sunset", "velvet", "orbit", "canyon"]
    for joint in (" ", ", ", "-", "\n", '", "'):
        text = f"typed [{joint.join(words)}] there"
        value = redact({"seed_phrase": " ".join(words), "a": text}).value["a"]
        assert value == "typed [[REDACTED:private_key]] there"


def test_a_name_beside_a_value_says_what_it_is() -> None:
    given = {"password": "sunflower", "env": [{"name": "SHOP_NAME", "value": "sunflower"}]}
    assert redact(given).value["env"] == given["env"]


@pytest.mark.parametrize(("number", "is_left"), [("482913", False), ("100000", True)])
def test_a_long_number_that_answers_a_question_goes_from_everywhere(
    number: str, is_left: bool
) -> None:
    asked = chat("The login code?", number)
    clean = redact({"chat": asked, "log": f"saw {number} there"}).value
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


def test_a_secret_of_a_url_is_also_looked_for_decoded() -> None:
    clean = redact(
        {"a": "postgres://u:p%40ss%21Word9x@db/shop", "b": "psql -W 'p@ss!Word9x'"}
    ).value
    assert clean["b"] == "psql -W '[REDACTED:password]'"


def test_a_secret_with_a_space_goes_wherever_it_occurs_again() -> None:
    secret = "Ruder&Anker 8?x2"  # noqa: S105 - not in use
    clean = redact({"password": secret, "a": f"?p={urllib.parse.quote(secret)}&n=1"}).value
    assert clean["a"] == "?p=[REDACTED:password]&n=1"


def test_a_secret_in_bytes_that_are_no_utf_8_is_looked_for_like_any_other() -> None:
    secret = b"Zk7#mQ2v\x80pLd"
    assert redact({"password": secret, "a": secret}).value == {
        "password": b"[REDACTED:password]",
        "a": b"[REDACTED:password]",
    }


@pytest.mark.parametrize(("secret", "text"), CASES["repeated"]["stays"])
def test_what_is_also_an_ordinary_word_stays(secret: dict[str, str], text: str) -> None:
    assert redact({**secret, "a": text}).value["a"] == text


@pytest.mark.parametrize(("secret", "text"), CASES["repeated"]["goes"])
def test_a_word_goes_where_something_beside_it_says_what_it_is(
    secret: dict[str, str], text: str
) -> None:
    value = redact({**secret, "a": text}).value["a"]
    assert next(iter(secret.values())) not in value.replace("habe sunflower", "")


# ------------------------------------------------------------------ questions and answers


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": question}, {"role": "user", "content": answer}]


@pytest.mark.parametrize(("question", "answer", "secret"), CASES["questions"]["secret"])
def test_an_answer_to_a_question_for_a_secret_goes(question: str, answer: str, secret: str) -> None:
    asked, clean = redact(chat(question, answer), level="private").value
    assert asked["content"] == question
    assert clean["content"] != answer
    assert secret not in clean["content"]


@pytest.mark.parametrize(("question", "answer"), CASES["questions"]["other"])
def test_another_answer_is_read_as_if_nobody_had_asked(question: str, answer: str) -> None:
    alone = redact(answer, level="private").value
    assert redact(chat(question, answer), level="private").value == chat(question, alone)
    assert alone == answer or "[REDACTED:session]" in alone  # a session that its name gives away


def test_an_answer_is_cleaned_of_whole_words() -> None:
    asked = chat("What are your username and password?", "sunflowers / sunflower")
    said = {"role": "user", "content": "typed sunflower, not sunflowers"}
    clean = redact([*asked, said]).value
    assert clean[1]["content"] == "sunflowers / [REDACTED:password]"
    assert clean[2]["content"] == "typed [REDACTED:password], not sunflowers"


@pytest.mark.parametrize(
    ("message", "answer", "clean"),
    [
        ({"role": "assistant", "content": "Please enter the PIN."}, "5937", "[REDACTED:pin]"),
        ({"type": "ai", "content": "Which API key?"}, f"use {_KEY}", "use [REDACTED:api_key]"),
        ({"from": "gpt", "value": "Your password?"}, "sunflower", "[REDACTED:password]"),
        ({"role": "tool", "content": "Please enter the PIN."}, "5937", "5937"),
        ({"role": "user", "content": "Please enter the PIN."}, "5937", "5937"),
        ({"role": "assistant", "content": "Please enter the year."}, "5937", "5937"),
    ],
)
def test_a_log_of_a_chat_is_read_as_questions_and_answers(
    message: dict[str, str], answer: str, clean: str
) -> None:
    author, text = message
    log = [message, {author: "user", text: answer}]
    expected = [message, {author: "user", text: clean}]
    assert redact(log).value == expected
    assert redact({"log": log}).value == {"log": expected}
    assert redact(f"log: {json.dumps(log)}").value == f"log: {json.dumps(expected)}"
    assert redact(expected).value == expected


def test_a_message_of_two_lists_is_read_in_each() -> None:
    question = {"role": "assistant", "content": "Please enter the PIN."}
    answer = {"role": "user", "content": "5937"}
    clean = redact({"last": [answer], "chat": [question, answer]}).value
    assert clean["chat"][1]["content"] == "[REDACTED:pin]"


@pytest.mark.parametrize("write", [lambda value: value, json.dumps])
def test_a_chat_under_the_name_of_a_secret_goes_as_a_whole(write: Callable[[Any], Any]) -> None:
    question = {"role": "assistant", "content": "What is the password?"}
    answer = {"role": "user", "content": "it's sunflower-Tulpe99 at home"}
    clean = redact(write({"password": [question, answer]})).value
    assert "at home" not in str(clean)


# ------------------------------------------------------------------ keys that were cut


BODY = base64.b64encode(random.Random(1).randbytes(2300)).decode()
LINES = [BODY[at : at + 64] for at in range(0, len(BODY), 64)]


def key(separator: str, kind: str = "RSA PRIVATE KEY") -> str:
    return separator.join([f"-----BEGIN {kind}-----", *LINES, f"-----END {kind}-----"])


@pytest.mark.parametrize("kind", ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
@pytest.mark.parametrize("separator", ["\n", "\r\n", "\\n", "\n    "])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.51, 0.9, 0.97])
def test_the_rest_of_a_key_is_removed(separator: str, kind: str, share: float) -> None:
    whole = key(separator, kind)
    cut = whole[int(len(whole) * share) :]
    for before in ("", "of it: ", "... [7 characters left out] ..."):
        redacted = redact(f"{before}{cut} and so on").value
        assert "".join(redacted.split()) == "".join(
            f"{before}[REDACTED:private_key]andsoon".split()
        )


def test_words_before_an_end_without_a_key_stay() -> None:
    text = "the file has no line before\n-----END PRIVATE KEY-----\nand a word after"
    assert redact(text).value.startswith("the file has no line ")
    assert redact(text).value.endswith("\nand a word after")


@pytest.mark.parametrize("before", range(0, 9000, 450))
def test_no_piece_of_a_key_is_left_where_a_text_is_cut(before: int) -> None:
    words = "word " * 2000
    text = words[:before] + key("\n") + words[: 9000 - before]
    written = trace_from_messages([("user", text), ("ai", text)]).model_dump_json()
    assert not [line for line in LINES if line[:20] in written or line[-20:] in written]
