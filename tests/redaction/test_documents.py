"""JSON, Python and CSV in a text: what was valid stays valid, whatever is redacted."""

from __future__ import annotations

import ast
import csv
import io
import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kp_langchain.redaction import redact
from tests.redaction.cases import fill

_SOURCE = random.Random(7)
AWS_KEY = fill("AKIA{A16}", _SOURCE)
GITHUB_TOKEN = fill("ghp_{x36}", _SOURCE)
SECRET_TEXTS = (
    "bob@example.com",
    "@maria.lopez",
    f"\u201c{AWS_KEY}\u201d",
    f"\x1b[32m{AWS_KEY}\x1b[0m",
    f"token={GITHUB_TOKEN}",
    "\u5bc6\u7801\u662fhunter2xyz9",
    "Das Passwort lautet hunter2xyz9",
    "login: bob / hunter22",
    "\n@app.route('/x')",
    'say "hi", it\'s \\ here',
    f"/home/maria/{GITHUB_TOKEN}",
    json.dumps({"password": "hunter22", "n": [1, "a"]}),
    json.dumps({"body": json.dumps({"api_key": AWS_KEY})}),
    repr({"password": "hunter22", "said": "it's"}),
    "line\nPASSWORD=hunter22\nline",
)
NAMES = ("to", "q", "content", "password", "api_key", "url", "items", "user", "max_tokens", "id")
texts = st.one_of(
    st.sampled_from(SECRET_TEXTS),
    st.text(max_size=20),
    st.builds("{} {}".format, st.text(max_size=8), st.sampled_from(SECRET_TEXTS)),
)
values = st.recursive(
    st.one_of(
        texts,
        st.none(),
        st.booleans(),
        st.integers(0, 9999),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    ),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=4)


def shape(value: Any) -> Any:
    """The keys and types of a value; a number or date that is redacted becomes a text."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shape(item) for item in value]
    return "constant" if value is None or isinstance(value, bool) else "text or number"


@given(documents, st.booleans(), st.sampled_from([None, 2]))
@example({"password": [1000], "items": [{"to": None, "content": 1000}], "id": 1000}, False, 8)
def test_json_stays_json_and_is_redacted_as_the_values_in_it(
    document: dict[str, Any], ensure_ascii: bool, indent: int | None
) -> None:
    text = json.dumps(document, ensure_ascii=ensure_ascii, indent=indent)
    clean = redact(text).value
    read = json.loads(clean)
    assert shape(read) == shape(document)
    assert read == redact(document).value
    assert redact(clean).value == clean


@given(documents)
@example({"password": [None, "{'password': 'hunter22', 'said': \"it's\"}"]})
def test_a_python_literal_stays_one(document: dict[str, Any]) -> None:
    assert shape(ast.literal_eval(redact(repr(document)).value)) == shape(document)


@pytest.mark.parametrize(
    "text",
    [
        'id,note,password\n1,"line\npassword: hunter22",hunter33\n2,x,y1z2w3v4\n',
        "user|secret\nbob|DE89370400440532013000\n|x\n",
        "token|ip|n\nBearer abc0123456789defabc0123456789def|84.23.117.9|1\n",
    ],
)
def test_a_row_keeps_its_cells(text: str) -> None:
    def rows(table: str) -> list[int]:
        sign = "|" if "|" in table else ","
        return [len(row) for row in csv.reader(io.StringIO(table), delimiter=sign)]

    clean = redact(text).value
    assert "[REDACTED:" in clean
    assert rows(clean) == rows(text)


@pytest.mark.parametrize("secret", SECRET_TEXTS[:5])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_only_changed_strings_differ(secret: str, ensure_ascii: bool) -> None:
    other = '{"kept": "\\u00e9\\/ \\ud83d\\ude00 \u00e9", "n": 1.50e3,\t"also" :[ "x" ],"to": %s}'
    text = other % json.dumps(f"see {secret}", ensure_ascii=ensure_ascii)
    clean = redact(text).value
    head, _, tail = other.partition("%s")
    assert clean.startswith(head)
    assert clean.endswith(tail)
    assert json.loads(clean)["to"] == redact(f"see {secret}").value


@pytest.mark.parametrize("depth", [3, 100, 149, 150, 151, 199, 201, 5000])
def test_deep_json_keeps_its_form_and_loses_its_secrets(depth: int) -> None:
    text = '{"a": ' * depth + '"bob@example.com"' + "}" * depth
    clean = redact(text).value
    assert clean == text.replace("bob@example.com", "[REDACTED:email]")


@pytest.mark.parametrize(
    "unit", ['{"', "{'", '{"a":', "[[", '{"a": "\\', "[{", '["a",', "A(a='", '"{\\"', "{'\\'"]
)
def test_reading_gives_up_what_does_not_end(unit: str) -> None:
    assert redact(unit * 20_000).value == unit * 20_000


def test_json_within_json_is_read_once_at_each_depth() -> None:
    text = json.dumps({"password": "hunter22"})
    for _ in range(15):  # three readings at each depth would be 14 million
        text = json.dumps({"args": text})
    clean = redact(text).value
    for _ in range(15):
        clean = json.loads(clean)["args"]
    assert json.loads(clean) == {"password": "[REDACTED:password]"}


@pytest.mark.parametrize(
    "document",
    [
        [1, "密码是'hunter2xyz9"],
        [None, "密码是'hunter2xyz9", 2],
        "密码是'hunter2xyz9",
        [True, {"password": "hunter22"}],
    ],
)
def test_a_document_that_begins_with_a_constant_or_is_a_string_stays_valid(document: Any) -> None:
    clean = redact(json.dumps(document, ensure_ascii=False)).value
    assert json.loads(clean) == redact(document).value
    assert "hunter" not in clean
