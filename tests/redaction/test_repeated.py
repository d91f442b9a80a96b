"""A secret that is named in one place also goes where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kp_langchain.redaction import Redaction, redact

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
