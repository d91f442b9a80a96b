"""What answers mean: every status, and whatever else a server may put into one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from kp_langchain.registry.responses import (
    LONGEST_WAIT_S,
    Allowance,
    Answer,
    read_answer,
    safe_texts,
)

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
KEY = SecretStr("kp_0123456789abcdef0123456789abcdef")
STORED = b'{"data": {"id": "kp:trace:1"}, "quality_score": 0.75}'


def answer(status: int, content: Any = None, **headers: str) -> Answer:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_answer(status, told, body, expects_id=True)


def test_a_success_has_the_id() -> None:
    got = answer(201, STORED)
    assert (got.kind, got.registry_id) == ("done", "kp:trace:1")
    assert (got.status, got.issues, got.retry_after_s, got.is_throttled) == (201, (), None, False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[1]",
        STORED[:-1],
        b'\xff{"data": {"id": "x"}}',
        b'{"data": "x"}',
        b'{"data": {"id": null}}',
        b'{"data": {"id": 7}}',
        b'{"data": {"id": ""}}',
        b'{"data": {"id": "  "}}',
        b'{"data": {"id": "a\\nb"}}',
        b'{"data": {"id": "\\ud800"}}',
        b'{"data": {"id": "%s"}}' % (b"x" * 301),
        b'{"data": {"id": "%s"}}' % KEY.get_secret_value().encode(),
        b"[" * 100_000,
        b"9" * 100_000,
    ],
)
def test_a_success_without_a_usable_id_is_none(body: bytes) -> None:
    got = read_answer(201, {}, body, expects_id=True, key=KEY)
    assert (got.kind, got.registry_id) == ("later", None)


@pytest.mark.parametrize("expects_id", [True, False])
def test_half_a_success_is_none(expects_id: bool) -> None:
    assert read_answer(200, {}, None, expects_id=expects_id).kind == "later"


@pytest.mark.parametrize("expects_id", [True, False])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"<html>Please log in", {}),
        (b"\n  <!DOCTYPE html>", {}),
        (b"Please log in", {"Content-Type": "text/html; charset=utf-8"}),
    ],
)
def test_a_web_page_is_no_success(body: bytes, headers: dict[str, str], expects_id: bool) -> None:
    got = read_answer(200, headers, body, expects_id=expects_id)
    assert (got.kind, got.is_json) == ("stopped", False)
    assert "does not seem to be the URL of a registry: it answers with a web page" in got.reason


def test_what_allows_nothing_does_not_know_the_key() -> None:
    got = answer(429, {"error": "Rate limit exceeded"}, X_RateLimit_Limit="0", Retry_After="60")
    assert (got.kind, got.is_throttled) == ("stopped", False)
    assert "does not know the key" in got.reason
    got = answer(429, {}, X_RateLimit_Limit="30", Retry_After="60")
    assert (got.kind, got.is_throttled) == ("later", True)


def test_an_answer_that_is_given_again_says_so() -> None:
    assert answer(403, {}, Idempotency_Replayed="true").is_replayed
    assert not answer(403, {}, Idempotency_Replayed="false").is_replayed
    assert not answer(403, {}).is_replayed


def test_a_success_that_needs_no_id() -> None:
    assert read_answer(204, {}, b"", expects_id=False).kind == "done"


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        ("refused", [400, 409, 413, 415, 422, 431, 451]),
        ("stopped", [401, 403]),
        ("stopped", [300, 301, 302, 303, 304, 307, 308, 402, 404, 405, 407, 410, 418, 421, 499]),
        ("later", [408, 425, 429, 500, 501, 502, 503, 504, 507, 511, 599, 100, 101, 0, 999]),
    ],
)
def test_what_statuses_mean(kind: str, statuses: list[int]) -> None:
    for status in statuses:
        got = answer(status, {"error": "because"})
        assert (got.kind, got.status, got.registry_id) == (kind, status, None)
        assert got.reason.startswith(str(status))
        assert got.is_throttled == (status == 429)
        # Half of it says the same.
        assert read_answer(status, {}, None, expects_id=True).kind == kind


def test_a_conflict_with_the_id_is_there_already() -> None:
    assert answer(409, {"data": {"id": "x"}}).kind == "done"
    assert answer(400, {"data": {"id": "x"}}).registry_id is None


def test_a_wrong_address_is_told() -> None:
    assert "does not seem to be the URL of a registry" in answer(404, b"<html>").reason
    reason = answer(302, location="https://user:pw@login.example:8443/sso?token=t").reason
    assert "https://login.example," in reason
    assert not any(part in reason for part in ("pw", "sso", "token"))
    assert answer(307, location="http://[").kind == "stopped"


def test_issues_are_kept_within_bounds() -> None:
    issues = [{"path": ["steps", 0, "type"], "message": "not\x1b[31m one\nof ours"}]
    issues += [{"path": "x" * 1000, "message": "m" * 1000}] * 99
    got = answer(422, {"issues": [*issues, None, "text", {"message": 5}]})
    assert len(got.issues) == 50
    assert got.issues[0] == {"path": "steps.0.type", "message": "not [31m one of ours"}
    assert {len(text) for text in got.issues[1].values()} == {300}
    assert answer(422, {"issues": [None, "text", {}, {"path": 1, "message": 5}]}).issues == (
        {"path": "", "message": ""},
        {"path": "", "message": ""},
    )
    assert answer(422, {"issues": "none"}).issues == ()
    assert answer(500, {"issues": issues}).issues == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("3", 3.0),
        ("0.25", 0.25),
        ("86400", 86_400.0),
        ("100000", LONGEST_WAIT_S),
        (str(int(NOW.timestamp()) + 30), 30.0),
        (str(int(NOW.timestamp()) - 30), 0.0),
        (str((int(NOW.timestamp()) + 30) * 1000), 30.0),
        (str((int(NOW.timestamp()) + 10**6) * 1000), LONGEST_WAIT_S),
        (format_datetime(NOW + timedelta(seconds=45), usegmt=True), 45.0),
        (format_datetime(NOW - timedelta(days=45), usegmt=True), 0.0),
        ("Sunday, 01-Feb-26 12:00:05 GMT", 5.0),
        ("Sun Feb  1 12:00:05 2026", 5.0),
        ("Sun, 01 Feb 2026 12:00:05 +0000", 5.0),
        *[(text, None) for text in ("", " ", "-1", "nan", "inf", "1e3", "1_0", "0x10", "soon")],
        *[(text, None) for text in ("3, 5", "٣", "9" * 15, "1" * 5000, "3;w=60", "1.", ".5")],
        ("Sun, 01 Feb 99999 12:00:05 GMT", None),
        ("Sun, 01 Feb 2026 12:00:05 GMT, Sun, 01 Feb 2026 12:00:09 GMT", None),
    ],
)
def test_waiting_times_by_the_registrys_own_clock(text: str, seconds: float | None) -> None:
    date = format_datetime(NOW, usegmt=True)
    got = answer(429, Date=date, Retry_After=text, X_RateLimit_Reset=text)
    assert got.retry_after_s == seconds
    assert (got.allowance.resets_in_s if got.allowance else None) == seconds


def test_without_a_date_our_own_clock_counts() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=1000), usegmt=True)
    got = answer(503, retry_after=soon, date="yesterday").retry_after_s
    assert got is not None
    assert 0.0 < got <= 1000.0


def test_the_allowance() -> None:
    got = answer(
        201, STORED, X_RATELIMIT_LIMIT="30", x_ratelimit_remaining="0", X_RateLimit_Reset="9"
    )
    assert got.allowance == Allowance(30, 0, 9.0)
    assert answer(201, STORED).allowance is None
    assert answer(201, STORED, x_ratelimit_limit="lots").allowance is None
    assert answer(201, STORED, x_ratelimit_remaining="-1", x_ratelimit_limit="9").allowance == (
        Allowance(9, None, None)
    )


def test_what_a_server_echoes_is_not_told() -> None:
    secret = KEY.get_secret_value()
    objective = "Refund the customer of invoice 5512 because the parcel never came"
    request_body = json.dumps({"task": {"objective": objective}, "note": "größer\nals"}).encode()
    said = (
        f"Authorization: Bearer {secret} for {request_body.decode()} and {objective}, {'pad ' * 60}"
    )
    for echo in (said, said.upper().lower(), f"x{secret}x", "pad " * 73 + secret, objective):
        content = {"error": {"message": echo}, "issues": [{"path": echo, "message": echo}]}
        got = read_answer(
            400,
            {},
            json.dumps(content).encode(),
            expects_id=True,
            key=KEY,
            request_body=request_body,
        )
        assert len(got.reason) <= 300
        for text in (got.reason, *got.issues[0].values()):
            assert secret[:12] not in text
            assert "customer of invoice" not in text.lower()
    told = read_answer(
        422, {}, b'{"error": "objective is too long"}', expects_id=True, request_body=request_body
    )
    assert told.reason == "422 Unprocessable Entity: objective is too long" or (
        told.reason == "422 Unprocessable Content: objective is too long"
    )


def test_quotes_are_cut_where_they_are() -> None:
    request_body = json.dumps(
        ["the quick brown fox jumps over the lazy dog", {"b": "a\ttab, été as ever"}]
    )
    lines = ["fox: the quick brown fox jumps over the lazy dog, twice", "(a tab, été as ever)"]
    assert safe_texts(lines, request_body=request_body.encode()) == [
        "fox: […], twice",
        "(a tab, été as ever)",
    ]
    longer = request_body.replace("as ever", "as ever and ever")
    assert safe_texts(["(a tab, été as ever and ever)"], request_body=longer.encode()) == ["([…])"]
    assert safe_texts(["the quick brown fox jump"], request_body=request_body.encode()) == ["[…]"]
    assert safe_texts(["the quick brown fox"], request_body=request_body.encode()) == [
        "the quick brown fox"
    ]
    assert safe_texts(["Bearer abcdefghijklmnop1234", "a\x00b\u202ec"]) == [
        "Bearer [REDACTED:authorization]",
        "a b c",
    ]


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
BODIES = st.none() | st.binary(max_size=200) | JSON.map(lambda one: json.dumps(one).encode())
NAMES = st.sampled_from(
    ["Retry-After", "DATE", "x-ratelimit-reset", "X-RateLimit-Limit", "location"]
)
VALUES = (
    st.text(max_size=40)
    | st.floats().map(str)
    | st.integers().map(str)
    | st.datetimes().map(lambda one: format_datetime(one))
    | st.from_regex(r"[A-Za-z]{3}, [0-9]{2} [A-Z][a-z]{2} [0-9]{1,5} [0-9:]{8} [+-][0-9]{4}")
)


@given(
    status=st.integers(-5, 1000),
    headers=st.dictionaries(NAMES, VALUES),
    body=BODIES,
    expects_id=st.booleans(),
    request_body=st.binary(max_size=100),
)
def test_no_answer_does_harm(
    status: int, headers: dict[str, str], body: bytes | None, expects_id: bool, request_body: bytes
) -> None:
    got = read_answer(
        status, headers, body, expects_id=expects_id, key=KEY, request_body=request_body
    )
    assert got.kind in ("done", "refused", "stopped", "later")
    if got.kind == "done":
        assert status == 409 or 200 <= status < 300
        assert body is not None
        assert got.registry_id or not expects_id
    assert got.kind == "done" or got.registry_id is None
    told = [got.reason, *(text for issue in got.issues for text in issue.values())]
    assert all(text.isprintable() and len(text) <= 300 for text in told)
    assert got.reason
    waits = [got.retry_after_s, got.allowance.resets_in_s if got.allowance else None]
    assert all(wait is None or 0.0 <= wait <= LONGEST_WAIT_S for wait in waits)
