"""Objects of any kind: what they hold is redacted, what is unknown is only named."""

from __future__ import annotations

import base64
import hashlib
import random
import uuid
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from kp_langchain.redaction import Rules, redact

TOKEN = "ghp_" + "a1B2" * 9
GONE = "[REDACTED:github_token]"


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
        (deque([TOKEN, 1]), [GONE, 1]),
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
        (PurePosixPath("/home/bob/x"), "/home/[REDACTED:home_path]/x"),
        (Rude(), "<Rude>"),
        (iter([TOKEN]), "<list_iterator>"),
        (memoryview(b"hunter2"), "<memoryview>"),
        (Rude, "<type>"),
        (print, "<builtin_function_or_method>"),
    ],
)
def test_an_object_becomes_what_it_holds_or_its_kind(value, expected):
    assert redact([value]).value == [expected]


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=7), datetime(2026, 2, 1, tzinfo=UTC), Decimal("1.5"), 1.5, 1j, True, None,
        float("inf"), range(3),
    ],
)  # fmt: skip
def test_numbers_dates_and_ids_stay(value):
    assert redact({"x": value}).value == {"x": value}


def test_an_iterator_is_not_consumed():
    source = iter([1, 2])
    redact({"x": source})
    assert list(source) == [1, 2]


def test_notes_of_an_exception_are_read():
    error = KeyError("k")
    error.add_note(f"token {TOKEN}")
    assert redact(error).value["notes"] == [f"token {GONE}"]


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ({"auth": ("bob", "hunter2")}, ["hunter2"]),
        ({"password": {"old": "a1!x", "new": "b2?y"}}, ["a1!x", "b2?y"]),
        ({"credentials": {"user": "x", "value": "hunter2"}}, ["hunter2"]),
        ({"session": {"id": "s3ssion-0123-abcdefgh"}}, ["s3ssion-0123-abcdefgh"]),
        ({"token": {"value": "a1b2c3d4e5f6g7h8"}}, ["a1b2c3d4e5f6g7h8"]),
    ],
)
def test_what_lies_under_a_telling_name(value, gone):
    written = repr(redact(value).value)
    assert not any(secret in written for secret in gone)


@pytest.mark.parametrize(
    "value",
    [{"token": {"count": 5}}, {"session": {"duration": 3, "state": "open"}}, {"pin": {"x": 1.5}}],
)
def test_ordinary_things_under_a_telling_name_stay(value):
    assert redact(value).value == value


def test_deep_down_nothing_leaks():
    value: Any = TOKEN
    for _ in range(5000):
        value = [value]
    done = redact(value)
    assert done.counts == {"depth": 1}
    at = done.value
    while isinstance(at, list):
        (at,) = at
    assert at == "[REDACTED:depth]"


DATA = random.Random(5).randbytes(3000)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("%s", "", ""),
        ("see data:image/png;base64,%s!", "see ", "!"),
        ('{"image": "%s", "n": 1}', '{"image": "', '", "n": 1}'),
    ],
)
def test_long_base64_becomes_its_length_and_hash(text, before, after):
    kind = "image/png " if "png" in text else ""
    digest = hashlib.sha256(DATA).hexdigest()[:16]
    for encoded in (base64.b64encode(DATA), base64.urlsafe_b64encode(DATA)):
        done = redact(text % encoded.decode())
        assert done.value == f"{before}[BLOB:{kind}3000 bytes sha256:{digest}]{after}"
        assert done.counts == {"blob": 1}
        assert redact(done.value).value == done.value


def test_wrapped_base64_too():
    done = redact(base64.encodebytes(DATA).decode())
    assert done.value.startswith("[BLOB:3000 bytes sha256:")
    assert len(done.value) < 60


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
def test_what_is_no_blob_stays(text):
    assert redact(text).value == text


def test_a_secret_inside_a_long_run_is_a_secret():
    jwt = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0" * 60 + ".dozjgNryP4J3jVmNHl0w5N"
    assert redact(jwt).counts == {"jwt": 1}


def test_binary_becomes_its_length_and_hash_and_stays_bytes():
    for value in (DATA, "password=hunter2".encode("utf-16"), bytearray(DATA)):
        done = redact(value).value
        assert type(done) is type(value)
        assert bytes(done).startswith(b"[BLOB:%d bytes sha256:" % len(value))
        assert redact(done).value == done
    assert redact(b"password=hunter2").value == b"password=[REDACTED:password]"
    assert redact(b"caf\xe9").value == b"caf\xe9"


def test_rules_reach_into_objects():
    rules = Rules(names=["user"])
    assert redact(Login("bob", "x1"), rules=rules).value["user"] == "[REDACTED:user]"
