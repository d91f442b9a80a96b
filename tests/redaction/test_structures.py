"""Structures and objects of any kind: shape and harmless parts stay, no secret is left in any."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import random
import uuid
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from kp_langchain.redaction import Redaction, redact

TOKEN = "ghp_" + "a1B2" * 9
GONE = "[REDACTED:github_token]"
Point = namedtuple("Point", "name password")


def test_every_structure_keeps_its_shape() -> None:
    email = "bob@example.com"
    given = {
        "list": [email, 1, 2.5, None, True],
        "tuple": (email, (email,)),
        "named": Point(email, 3),
        "frozen": frozenset({email, "keep"}),
        "bytes": email.encode() + b"\xff",
        "array": bytearray(email.encode()),
        email: 1,
        ("pair", email): 2,
        7: 3,
    }
    before = copy.deepcopy(given)
    value = redact(given).value
    mark = "[REDACTED:email]"
    assert given == before
    assert value == {
        "list": [mark, 1, 2.5, None, True],
        "tuple": (mark, (mark,)),
        "named": Point(mark, 3),
        "frozen": frozenset({mark, "keep"}),
        "bytes": mark.encode() + b"\xff",
        "array": bytearray(mark.encode()),
        mark: 1,
        ("pair", mark): 2,
        7: 3,
    }
    assert type(value["named"]) is Point
    assert type(value["array"]) is bytearray


def test_numbers_under_telling_names_and_card_numbers_go() -> None:
    value = redact({"pin": 4821, "password": 99887766, "note": 4111111111111111, "n": 12}).value
    assert value == {
        "pin": "[REDACTED:pin]",
        "password": "[REDACTED:password]",
        "note": "[REDACTED:card]",
        "n": 12,
    }


def test_entries_are_not_lost_when_their_keys_are_redacted() -> None:
    many = {f"user{n}@example.com": n for n in range(50)}
    result = redact({"map": many, "set": set(many)})
    assert sorted(result.value["map"].values()) == list(range(50))
    assert len(result.value["set"]) == 50
    assert "example" not in str(result.value)
    assert redact(result.value) == Redaction(result.value, {})


def test_cycles_sharing_and_depth_are_bounded() -> None:
    loop: list[Any] = ["bob@example.com"]
    loop.append(loop)
    assert redact(loop).value == ["[REDACTED:email]", "[REDACTED:cycle]"]

    shared: Any = ["bob@example.com"]
    for _ in range(60):
        shared = [shared, shared]  # 2**60 paths
    assert redact(shared).counts

    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)):
        deep: Any = "bob@example.com"
        for _ in range(20_000):
            deep = wrap(deep)
        result = redact(deep)
        assert result.counts == {"depth": 1}
        assert "bob" not in repr(result.value)
        assert redact(result.value).counts == {}


def test_what_cannot_be_judged_is_dropped() -> None:
    class Broken(str):
        def __hash__(self) -> int:
            return 1

    class Hostile:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

    class Pair(tuple):
        @classmethod
        def _make(cls, items: object) -> Any:
            raise RuntimeError("no")

    result = redact([Hostile(), Pair(["bob@example.com"]), "fine", Broken("bob@example.com")])
    assert result.value == ["[REDACTED:failed]", "[REDACTED:failed]", "fine", "[REDACTED:email]"]
    assert result.counts["failed"] == 2


def test_interrupts_pass_through() -> None:
    class Stop:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        redact([Stop()])


def test_the_columns_of_a_table_are_read_whatever_tables_came_before() -> None:
    # Keys that were read from JSON are equal to those of the table before, and not the same.
    for names, kind in (["user", "age"], ""), (["id", "password"], "password"):
        table = json.loads(json.dumps({"columns": names, "rows": [["a", "Tr0ub4dor!3"]]}))
        clean = redact(table).value["rows"][0][1]
        assert clean == (f"[REDACTED:{kind}]" if kind else "Tr0ub4dor!3")


def test_samples_in_a_schema_that_may_be_real_are_redacted() -> None:
    value = "Sunny" + "#Day42"
    schema = {"type": "string", "description": "of the user", "default": value, "examples": [value]}
    assert redact({"password": schema}).value == {
        "password": {
            "type": "string",
            "description": "of the user",
            "default": "[REDACTED:password]",
            "examples": ["[REDACTED:password]"],
        }
    }


@pytest.mark.parametrize(
    "record",
    [
        {"Type": "SecureString", "Name": "/prod/relay", "Value": "swordfish"},
        {"Name": "relay", "SecretString": "swordfish"},
        {"key": "RELAY", "value": "swordfish", "masked": True, "protected": False},
        {"relay": {"sensitive": True, "type": "string", "value": "swordfish"}},
        {"type": "CONCEALED", "label": "relay", "value": "swordfish"},
        {"kind": "Secret", "data": {"relay": "swordfish"}},
        {"kind": "Secret", "stringData": {"relay": {"inner": "swordfish"}}},
        {"question": "What is the database password?", "answer": "swordfish"},
        {"type": "password", "value": "swordfish"},
        {"cookies": [{"name": "theme", "value": "swordfish", "domain": "a.io"}]},
        {"selector": "form#login > input.wide[type=password]", "text": "swordfish"},
        {"locator": "//input[@id='password']", "text": "swordfish"},
    ],
)
def test_what_marks_a_value_as_secret_in_a_record_is_understood(record: dict[str, Any]) -> None:
    for written in (record, {"items": [record]}, json.dumps(record)):
        assert "swordfish" not in repr(redact(written, level="private").value)


def test_lines_of_a_private_key_in_a_list_go() -> None:
    body = ["MIIEpAIBAAKC" + "aB3dE5gH7jK9" * 4, "q7L9s1tU3wX5" * 5]
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    for lines in ([begin, *body, end], [begin, *body], body):
        assert not {*body} & {*redact([*lines, "after"]).value} or lines == body
        assert "aB3dE5gH7jK9" not in repr(redact(lines).value)
    quoted = "\n".join(f'"{line}\\n"' for line in [begin, *body])
    assert "q7L9s1tU3wX5" not in redact(quoted).value
    public = "ssh-rsa AAAAB3NzaC1yc2E" + "aB3dE5gH7jK9" * 20 + " bob"
    assert redact(public) == Redaction(public, {})


def test_a_label_within_a_sensitive_field_makes_nothing_else_of_it() -> None:
    given = {"password": {"label": "Phone", "text": "hunter22"}}
    assert redact(given).value["password"]["text"] == "[REDACTED:password]"
    given = {"password": {"id": "{'password': 'hunter22', 'tax id': 1}", "content": "@maria.lopez"}}
    clean = redact(given).value
    assert redact(clean) == Redaction(clean, {})
    assert json.loads(redact(json.dumps(given)).value) == clean


def test_keys_of_one_stem_are_names_and_values() -> None:
    for key, value in (("ParameterKey", "ParameterValue"), ("option_name", "option_value")):
        record = {"items": [{key: "Size", value: "t3"}, {key: "DBPassword", value: "hunter22"}]}
        clean = redact(record).value["items"]
        assert clean == [record["items"][0], {key: "DBPassword", value: "[REDACTED:password]"}]


# ------------------------------------------------------------------ objects


def noted(error: Exception) -> Exception:
    error.add_note(f"token {TOKEN}")
    return error


@dataclass
class Login:
    user: str
    password: str


class Account(BaseModel):
    name: str
    api_key: str
    inner: Any = None


class Colour(Enum):
    RED = TOKEN


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (MappingProxyType({"password": "hunter2"}), {"password": "[REDACTED:password]"}),
        (UserDict({"a": TOKEN}), {"a": GONE}),
        (OrderedDict(a=TOKEN), {"a": GONE}),
        (deque([TOKEN, 1]), "<deque>"),
        (Login("bob", "hunter2"), {"user": "bob", "password": "[REDACTED:password]"}),
        (
            Account(name="x", api_key="hunter2", inner=[Login("b", "c3")]),
            {
                "name": "x",
                "api_key": "[REDACTED:api_key]",
                "inner": [{"user": "b", "password": "[REDACTED:password]"}],
            },
        ),
        (SecretStr("hunter2"), {"secret": "[REDACTED:secret]"}),
        (Colour.RED, {"name": "RED", "value": GONE}),
        (ValueError("bad", TOKEN), {"type": "ValueError", "args": ["bad", GONE]}),
        (noted(KeyError()), {"type": "KeyError", "args": [], "notes": [f"token {GONE}"]}),
        (defaultdict(list, a=[TOKEN]), {"a": [GONE]}),
        (PurePosixPath("/home/bob/x"), "/home/[REDACTED:home_path]/x"),
        (Rude(), "<Rude>"),
        (iter([TOKEN]), "<list_iterator>"),
        (memoryview(b"hunter2"), "<memoryview>"),
        (Rude, "<type>"),
        (print, "<builtin_function_or_method>"),
    ],
)
def test_an_object_becomes_what_it_holds_or_its_kind(value: Any, expected: Any) -> None:
    assert redact([value]).value == [expected]


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=7), datetime(2026, 2, 1, tzinfo=UTC), Decimal("1.5"), 1.5, 1j, True, None,
        float("inf"), range(3),
    ],
)  # fmt: skip
def test_numbers_dates_and_ids_stay(value: Any) -> None:
    assert redact({"x": value}).value == {"x": value}


def test_an_iterator_is_not_consumed() -> None:
    source = iter([1, 2])
    redact({"x": source})
    assert list(source) == [1, 2]


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ({"auth": ("bob", "hunter2")}, ["hunter2"]),
        ({"password": {"old": "a1!x", "new": "b2?y"}}, ["a1!x", "b2?y"]),
        ({"credentials": {"user": "x", "value": "hunter2"}}, ["hunter2"]),
        ({"session": {"id": "s3ssion-0123-abcdefgh"}}, ["s3ssion-0123-abcdefgh"]),
        ({"token": {"value": "a1b2c3d4e5f6g7h8"}}, ["a1b2c3d4e5f6g7h8"]),
        ({"password": Login("bob", "hunter22")}, ["hunter22"]),
    ],
)
def test_what_lies_under_a_telling_name(value: Any, gone: Any) -> None:
    written = repr(redact(value).value)
    assert not any(secret in written for secret in gone)


@pytest.mark.parametrize(
    "value",
    [{"token": {"count": 5}}, {"session": {"duration": 3, "state": "open"}}, {"pin": {"x": 1.5}}],
)
def test_ordinary_things_under_a_telling_name_stay(value: Any) -> None:
    assert redact(value).value == value


DATA = random.Random(5).randbytes(3000)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("%s", "", ""),
        ("see data:image/png;base64,%s!", "see ", "!"),
        ('{"image": "%s", "n": 1}', '{"image": "', '", "n": 1}'),
    ],
)
def test_long_base64_becomes_its_length_and_hash(text: Any, before: Any, after: Any) -> None:
    kind = "image/png " if "png" in text else ""
    digest = hashlib.sha256(DATA).hexdigest()[:16]
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes):
        if encode is base64.encodebytes and text != "%s":  # in lines
            continue
        done = redact(text % encode(DATA).decode().rstrip())
        assert done.value == f"{before}[BLOB:{kind}3000 bytes sha256:{digest}]{after}"
        assert done.counts == {"blob": 1}
        assert redact(done.value).value == done.value


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(DATA[:300]).decode(),
        "a" * 5000,
        "0123456789abcdef" * 200,
        "-" * 3000,
        "/usr/lib/python" * 100,
        "SomeVeryLongNameWithManyWordsInIt" * 100,
    ],
    ids=["an icon", "a", "hexadecimal", "dashes", "a path", "a name"],
)
def test_what_is_no_blob_stays(text: Any) -> None:
    assert redact(text).value == text


def test_a_secret_inside_a_long_run_is_a_secret() -> None:
    jwt = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0" * 60 + ".dozjgNryP4J3jVmNHl0w5N"
    assert redact(jwt).counts == {"jwt": 1}


def test_binary_becomes_its_length_and_hash_and_stays_bytes() -> None:
    for value in (DATA, "password=hunter2".encode("utf-16"), bytearray(DATA)):
        done = redact(value).value
        assert type(done) is type(value)
        assert bytes(done).startswith(b"[BLOB:%d bytes sha256:" % len(value))
        assert redact(done).value == done
    assert redact(b"password=hunter2").value == b"password=[REDACTED:password]"
    assert redact(b"caf\xe9").value == b"caf\xe9"
