"""A secret that is named in one place also goes where it is not."""

from __future__ import annotations

import json
from typing import Any

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
