"""What answers of a registry mean: every status, and whatever else a server may put into one.

Each is sent by a real server; the client makes an `Answer` of it.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import Registry
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
LONGEST_WAIT_S = 86_400.0
IMPATIENT_S = 0.1
OBJECTIVE = "Refund the customer of invoice 5512 because the parcel never came"


def body_of(number: int = 0, text: str = "größer\nals") -> bytes:
    """A unit as the registry takes it."""
    unit = {
        "@context": "https://openknowledgepulse.org/schema/v1", "@type": "ReasoningTrace",
        "id": f"kp:trace:{number}", "task": {"objective": OBJECTIVE}, "steps": [{"text": text}],
        "metadata": {
            "created_at": "2026-02-01T12:00:00.000Z", "task_domain": "finance",
            "quality_score": 0.5, "visibility": "network", "success": True,
        },
        "outcome": {"confidence": 0.8},
    }  # fmt: skip
    return json.dumps(unit, ensure_ascii=False).encode()


def give(registry: Registry, body: bytes | None = None) -> Any:
    body = body_of() if body is None else body
    return registry.contribute(body, hashlib.sha256(body).hexdigest())


def http(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + body


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackRegistry]:
    with LoopbackRegistry() as server:
        yield server


@pytest.fixture
def answer(server):
    """What the client makes of bytes that a server answers with."""
    here = Registry(server.url, api_key=KEY)

    def ask(raw: bytes, how: str = "contribute") -> Any:
        server.misbehave = lambda *_: raw
        return give(here) if how == "contribute" else getattr(here, how)("x")

    yield ask
    server.misbehave = lambda *_: None


STORED = b'{"data": {"id": "kp:trace:1"}, "quality_score": 0.75}'
IDS = [b"null", b"7", b'""', b'"%s"' % (b"x" * 4001)]
NO_SUCCESS = [
    b"", b"{}", b"null", b"[1]", STORED[:-1], b'\xff{"data": {"id": "x"}}', b'{"data": "x"}',
    *(b'{"data": {"id": %s}}' % one for one in IDS), b"[" * 100_000, b"9" * 100_000,
]  # fmt: skip
HEAD = b"HTTP/1.1 201 Created\r\n"
NO_ANSWERS = [
    b"", HEAD, HEAD + b"Content-Length: 999\r\n\r\n" + STORED,
    HEAD + b"Content-Length: 3\r\n\r\n" + STORED, HEAD + b"Content-Length: many\r\n\r\n" + STORED,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + STORED,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n15\r\n" + STORED,
    HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\0\0",
    HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n" + STORED,
    HEAD + b"\r\n" + STORED.ljust(2**20 + 1), b"HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n",
    b"<html>" * 1000,
]  # fmt: skip


def test_only_a_whole_answer_with_a_usable_id_is_a_success(answer):
    got = answer(http(201, STORED))
    assert (got.kind, got.registry_id, got.status) == ("done", "kp:trace:1", 201)
    assert (got.retry_after_s, got.is_throttled) == (None, False)
    for raw in (*(http(201, body) for body in NO_SUCCESS), *NO_ANSWERS):
        got = answer(raw)
        assert (got.kind, got.registry_id) == ("later", None), raw[:99]
    assert answer(http(201, STORED.ljust(2**20))).kind == "done"  # up to the bound it is read
    assert answer(http(400, STORED)).registry_id is None
    assert answer(b"HTTP/1.1 204 -\r\n\r\n", "withdraw").kind == "done"
    for how in ("contribute", "find", "withdraw"):
        for raw in (
            http(200, b"<html>Please log in"), http(200, b"\n  <!DOCTYPE html>"),
            *([http(404, b"not found")] if how == "withdraw" else []),
        ):  # fmt: skip
            assert answer(raw, how).kind == "stopped"
            assert "does not seem to be the URL of a registry" in answer(raw, how).reason


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        ("refused", [400, 409, 413, 415, 422, 431, 451]),
        ("stopped", [300, 302, 303, 304, 307, 401, 402, 403, 404, 405, 407, 410, 418, 421, 499]),
        ("later", [408, 425, 429, 500, 501, 502, 503, 504, 507, 511, 599, 999]),
    ],
)
def test_what_statuses_mean(answer, kind, statuses):
    for status in statuses:
        half = f"HTTP/1.1 {status} -\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n{{".encode()
        for raw in (http(status, b'{"error": "because"}'), half):  # half of it says the same
            got = answer(raw)
            assert (got.kind, got.registry_id, got.is_throttled) == (kind, None, status == 429)
            assert status == 999 or got.status == status
    if kind == "later":
        assert answer(half.replace(b"999", b"429")).retry_after_s == 7.0
        # What allows nothing does not know the key.
        got = answer(http(429, X_RateLimit_Limit="0", Retry_After="60"))
        assert (got.kind, got.is_throttled) == ("stopped", False)
        assert "does not know the key" in got.reason
    if kind == "stopped":
        assert answer(http(403, Idempotency_Replayed="true")).is_replayed
        assert not answer(http(403, Idempotency_Replayed="false")).is_replayed
        target = "https://user:pw@login.example:8443/sso?token=t"
        reason = answer(http(302, location=target)).reason
        assert "redirects elsewhere" in reason
        assert not any(part in reason for part in ("pw", "sso", "token"))


def test_issues_are_told_within_bounds(answer):
    def message_of(issues: Any) -> str:
        return answer(http(422, json.dumps({"error": "no", "issues": issues}).encode())).message

    issue = {"path": ["steps", 0, "type"], "message": "not\x1b[31m one\nof ours"}
    told = "no; steps.0.type: not [31m one of ours"
    assert message_of([issue]) == told
    long = message_of([issue, *[{"path": "x" * 1000, "message": "m" * 1000}] * 99])
    assert (long.startswith(told), len(long)) == (True, 300)
    for empty in ("none", [None, "text", {}, {"path": 1, "message": 5}]):
        assert message_of(empty) == "no"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("3", 3.0), ("0.25", 0.25), ("86400", 86_400.0), ("100000", LONGEST_WAIT_S),
        *((text, None) for text in ("", "-1", "nan", "inf", "1e3", "1_0", "0x10", "soon", "3, 5",
                                    "9" * 15, "1" * 5000, "3;w=60", "1.", ".5")),
    ],
)  # fmt: skip
def test_waiting_times(answer, text, seconds):
    got = answer(http(429, Retry_After=text, X_RateLimit_Reset=text))
    assert got.retry_after_s == seconds
    assert got.allowance.resets_in_s == seconds


def test_the_allowance_and_a_time_since_1970(answer):
    for headers, expected in (
        ({"X_RATELIMIT_LIMIT": "30", "x_ratelimit_remaining": "0", "X_RateLimit_Reset": "9"},
         (30, 0, 9.0)),
        ({}, (None, None, None)), ({"x_ratelimit_limit": "lots"}, (None, None, None)),
        ({"x_ratelimit_remaining": "-1", "x_ratelimit_limit": "9"}, (9, None, None)),
    ):  # fmt: skip
        got = answer(http(201, STORED, **headers)).allowance
        assert (got.limit, got.remaining, got.resets_in_s) == expected
    soon = str(int(time.time()) + 1000)
    assert 0.0 < answer(http(503, retry_after=soon)).retry_after_s <= 1000.0
    assert answer(http(503, retry_after="1000000000")).retry_after_s == 0.0


def test_what_a_server_echoes_is_not_told(answer):
    said = f"Authorization: Bearer {KEY} for {body_of().decode()} and {OBJECTIVE}, {'pad ' * 60}"
    for echo in (said, said.upper().lower(), f"x{KEY}x", "pad " * 73 + KEY, OBJECTIVE):
        content = {"error": {"message": echo}, "data": {},
                   "issues": [{"path": echo, "message": echo}]}  # fmt: skip
        for status in (201, 400, 401, 403, 422, 500, 307):
            location = f"https://{KEY}.example/{KEY}"
            got = answer(http(status, json.dumps(content).encode(), Location=location))
            assert got.registry_id is None
            assert len(got.reason) <= 300
            assert KEY[:12] not in repr(got)
    short = answer(http(422, b'{"error": "objective is too long"}'))
    assert short.reason.startswith("422 ")
    assert short.reason.endswith(": objective is too long")
    for text, told in (
        ("Bearer abcdefghijklmnop1234", "Bearer [REDACTED:autho"),
        ("a\x00b\u202ec", "a b c"),
    ):  # fmt: skip
        assert told in answer(http(422, json.dumps({"error": text}).encode())).reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "id", "error", "message", "issues", "path", "quality_score"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
NAMES = st.sampled_from(
    ["Retry-After", "DATE", "x-ratelimit-reset", "X-RateLimit-Limit", "location", "Content-Type"]
)
VALUES = (
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
    | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(format_datetime)
    | st.from_regex(r"[A-Za-z]{3}, [0-9]{2} [A-Z][a-z]{2} [0-9]{1,5} [0-9:]{8} [+-][0-9]{4}",
                    fullmatch=True)
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    status=st.integers(200, 999), headers=st.dictionaries(NAMES, VALUES),
    body=st.binary(max_size=200) | JSON.map(lambda one: json.dumps(one).encode()),
    how=st.sampled_from(["contribute", "find", "withdraw"]),
)  # fmt: skip
def test_no_answer_does_harm(answer, status, headers, body, how):
    got = answer(http(status, body, **headers), how)
    assert got.kind in ("done", "refused", "stopped", "later")
    if got.kind == "done":
        assert status == 404 or 200 <= status < 300
        assert got.registry_id or how != "contribute"
    assert all(text.isprintable() and len(text) <= 300 for text in (got.reason, got.message))
    assert got.reason
    waits = [got.retry_after_s, got.allowance.resets_in_s]
    assert all(wait is None or 0.0 <= wait <= LONGEST_WAIT_S for wait in waits)


def test_a_server_that_does_not_read_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        here = Registry(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=IMPATIENT_S)
        assert give(here, body_of(text="x" * 20_000_000)).kind == "later"
