"""YAML, TOML, code and CSV keep their form: what replaces a bare value is quoted where it must be."""

from __future__ import annotations

import ast
import csv
import io
import json
import pprint
import re
import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kp_langchain.redaction import redact
from tests.redaction.test_documents import documents

YAML = [
    ("mail: bob@example.com", 'mail: "[REDACTED:email]"'),
    ("- bob@example.com\n- x\n", '- "[REDACTED:email]"\n- x\n'),
    ("db:\n  password: hunter22 # old\n", 'db:\n  password: "[REDACTED:password]" # old\n'),
    ("a: 1\nhosts: [84.23.117.9, x]\n", 'a: 1\nhosts: ["[REDACTED:ip]", x]\n'),
    ("{pin: 4821, on: true}", '{pin: "[REDACTED:pin]", on: true}'),
    ("a: &x bob@example.com\nb: *x\n", 'a: &x "[REDACTED:email]"\nb: *x\n'),
    ("a: !!str bob@example.com\nb: 1\n", 'a: !!str "[REDACTED:email]"\nb: 1\n'),
    ("host: 84.23.117.9:8443\nn: 1\n", 'host: "[REDACTED:ip]:8443"\nn: 1\n'),
    ("bob@example.com: 3\nx: 4\n", '"[REDACTED:email]": 3\nx: 4\n'),
    ("n: 1\n---\nto: bob@example.com\n", 'n: 1\n---\nto: "[REDACTED:email]"\n'),
    ('a: 84.23.117.9 "x"\nb: 1\n', "a: '[REDACTED:ip] \"x\"'\nb: 1\n"),
    ("a: |\n  bob@example.com\nb: 1\n", "a: |\n  [REDACTED:email]\nb: 1\n"),
    ("a: mail to bob@example.com\nb: 1\n", "a: mail to [REDACTED:email]\nb: 1\n"),
    ("a: 'bob@example.com'\nb: 1\n", "a: '[REDACTED:email]'\nb: 1\n"),
    (
        "So:\n```yaml\nmail: bob@example.com\n```\nAsk ann@example.com",
        'So:\n```yaml\nmail: "[REDACTED:email]"\n```\nAsk [REDACTED:email]',
    ),
]
TOML = [
    ("pin = 4821", 'pin = "[REDACTED:pin]"'),
    ("pin=4821\nname='x'\n", "pin=\"[REDACTED:pin]\"\nname='x'\n"),
    ("[a]\nt = { otp = 482193, n = 1 }\n", '[a]\nt = { otp = "[REDACTED:otp]", n = 1 }\n'),
    ("pin = 4821 # new\nday = 2024-01-02\n", 'pin = "[REDACTED:pin]" # new\nday = 2024-01-02\n'),
    ('a = """\npin = 4821\nx"""\nn = 1\n', 'a = """\npin = "[REDACTED:pin]"\nx"""\nn = 1\n'),
    ('[a.iban]\nid = "x1234"\nn = 1\n', '[a.iban]\nid = "x1234"\nn = 1\n'),
]
CODE = [
    ("run(pin=4821, n=1)", 'run(pin="[REDACTED:pin]", n=1)'),
    ("import x\npin = 4821\nx.go(pin)\n", 'import x\npin = "[REDACTED:pin]"\nx.go(pin)\n'),
    ("cards = [4111111111111111, 7]", 'cards = ["[REDACTED:card]", 7]'),
]
NO_FORM = [
    "Password: hunter22",
    "The password is hunter22.",
    "PASSWORD=hunter22",
    "[db]\npassword = hunter22\n",
    "Authorization: Bearer abcdef0123456789abcdef",
    "GET /?pin=4821&x=1 HTTP/1.1",
    "2026-03-04 10:11:12 INFO password: hunter22\n2026-03-04 10:11:13 INFO mail: bob@example.com",
    "Dear Ann,\n\npassword: hunter22\n\nBye",
    "deploy --pin=4821 --verbose",
    "my pin is 4821",
]


@pytest.mark.parametrize(("text", "clean"), [*YAML, *TOML, *CODE])
def test_a_bare_value_becomes_a_quoted_placeholder(text: str, clean: str) -> None:
    assert redact(text).value == clean
    assert redact(clean).value == clean
    assert redact({"content": text}).value == {"content": clean}
    assert json.loads(redact(json.dumps({"content": text})).value) == {"content": clean}


@pytest.mark.parametrize("text", NO_FORM)
def test_other_texts_get_no_quotes(text: str) -> None:
    clean = redact(text).value
    assert "[REDACTED:" in clean
    assert '"' not in clean


def test_a_secret_that_occurs_again_is_quoted_where_it_must_be() -> None:
    text = "password: Zk7#mQ2v!pLd\nnote: x\nagain: Zk7#mQ2v!pLd\n"
    assert yaml.safe_load(redact(text).value) == {
        "password": "[REDACTED:password]",
        "note": "x",
        "again": "[REDACTED:password]",
    }


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list | tuple) else ""


@given(documents, st.sampled_from([False, None, True]), st.sampled_from([30, 80]))
@example({"to": ['0"0@0.AA']}, None, 80)
@example({"to": ['mail "bob@example.com" now']}, None, 80)
def test_yaml_stays_yaml(document: dict[str, Any], flow: bool | None, width: int) -> None:
    # Of one entry with a capital, as in "Password: ...", a text may be a sentence.
    fields = {"n": 1, **document}
    text = yaml.safe_dump(fields, default_flow_style=flow, width=width, allow_unicode=True)
    assume(re.search(r"\\[xuU]", text) is None)  # escapes that JSON has not
    clean = redact(text).value
    assert _shape(yaml.safe_load(clean)) == _shape(fields)
    assert redact(clean).value == clean


@given(documents)
@example({"password": [None, "{'password': 'hunter22', 'said': \"it's\"}"]})
def test_printed_python_stays_python(document: dict[str, Any]) -> None:
    clean = redact(pprint.pformat(document, width=30)).value
    assert _shape(ast.literal_eval(clean)) == _shape(document)


_NAMES = st.sampled_from(("pin", "otp", "password", "api_key", "port", "phone", "user"))
_TOML_VALUES = st.one_of(
    st.integers(0, 10**16).map(str),
    st.sampled_from(("true", "1.5", "2024-01-02", '"bob@example.com"', "'hunter22'", "[4821, 1]")),
)


@given(st.dictionaries(_NAMES, _TOML_VALUES, min_size=1), st.sampled_from(("=", " = ")))
def test_toml_stays_toml(fields: dict[str, str], sign: str) -> None:
    text = "[a]\n" + "\n".join(f"{name}{sign}{value}" for name, value in fields.items())
    clean = redact(text).value
    assert _shape(tomllib.loads(clean)) == _shape(tomllib.loads(text))
    assert redact(clean).value == clean


@pytest.mark.parametrize(
    "text",
    [
        'id,note,password\n1,"line\npassword: hunter22",hunter33\n2,x,y1z2w3v4\n',
        "user|secret\nbob|DE89370400440532013000\n|x\n",
        "token|ip|n\nBearer abc0123456789defabc0123456789def|84.23.117.9|1\n",
    ],
)
def test_rows_keep_their_cells(text: str) -> None:
    def rows(table: str) -> list[int]:
        sign = "|" if "|" in table else ","
        return [len(row) for row in csv.reader(io.StringIO(table), delimiter=sign)]

    clean = redact(text).value
    assert "[REDACTED:" in clean
    assert rows(clean) == rows(text)
