"""The pace: under the limit, silent after a 429, never three of them within an hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.registry import pace
from kp_langchain.registry.responses import Allowance, Answer
from kp_langchain.store import Contribution, Standing

START = datetime(2026, 2, 1, 12, tzinfo=UTC)
FRESH = Standing("https://registry.example.org", "key")


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ask(standing: Standing, answer: Answer, now: datetime) -> Standing:
    return pace.after_answer(pace.before_request(standing, now), answer, now)


answers = st.builds(
    Answer,
    kind=st.sampled_from(["done", "refused", "later"]),
    reason=st.just("so it is"),
    status=st.sampled_from([201, 400, 429, 429, 500, None]),
    retry_after_s=st.none() | st.floats(0, 86_400),
    allowance=st.none()
    | st.builds(
        Allowance,
        limit=st.none() | st.integers(0, 2000),
        remaining=st.none() | st.integers(0, 2000),
        resets_in_s=st.none() | st.floats(0, 86_400),
    ),
).map(lambda one: replace(one, kind="later") if one.status in (429, 500, None) else one)


@given(st.lists(answers, max_size=40))
def test_whatever_it_answers_three_429_never_fall_into_an_hour(listed):
    standing, now, throttled = FRESH, START, []
    for answer in listed:
        now += timedelta(seconds=pace.wait_s(standing, now))
        standing = ask(standing, answer, now)
        if answer.is_throttled:
            throttled.append(now)
            told = answer.retry_after_s or 0.0
            assert pace.wait_s(standing, now) >= told
    for first, third in zip(throttled, throttled[2:], strict=False):
        assert (third - first).total_seconds() > 3600


@given(
    limit=st.integers(2, 60),
    window_s=st.floats(1, 120),
    truncated=st.booleans(),
    off_by_one=st.booleans(),
    took_s=st.floats(0, 3),
)
def test_a_registry_that_tells_its_limit_is_never_asked_too_often(
    limit, window_s, truncated, off_by_one, took_s
):
    standing, now = FRESH, START
    began, used = START, 0
    for _ in range(3 * limit):
        now += timedelta(seconds=pace.wait_s(standing, now))
        if (now - began).total_seconds() >= window_s:
            began, used = now, 0
        assert used < limit
        told = limit - used - (0 if off_by_one else 1)
        used += 1
        left_s = window_s - (now - began).total_seconds()
        allowance = Allowance(limit, told, float(int(left_s)) if truncated else left_s)
        standing = ask(standing, Answer("done", "201", 201, allowance=allowance), now)
        now += timedelta(seconds=took_s)


def test_a_request_without_an_answer_counts_against_the_limit():
    allowance = Allowance(30, 3, 60.0)
    standing = ask(FRESH, Answer("done", "201", 201, allowance=allowance), START)
    standing = ask(standing, Answer("later", "timed out"), START)
    assert standing.remaining == 2
    assert pace.before_request(standing, later(2)).remaining == 1
    assert pace.wait_s(pace.before_request(standing, later(2)), later(2)) >= 58


def test_a_registry_that_tells_no_limit_gets_thirty_a_minute_at_most():
    standing = ask(FRESH, Answer("done", "201", 201), START)
    assert pace.wait_s(standing, START) == 2.0


def test_rests_grow_and_end():
    longest = [max(pace.backoff_s(failures) for _ in range(50)) for failures in range(1, 30)]
    shortest = [min(pace.backoff_s(failures) for _ in range(50)) for failures in range(1, 30)]
    assert longest[0] <= 1.0 <= shortest[3]
    assert longest[-1] <= pace.LONGEST_BACKOFF_S
    assert shortest[-1] >= pace.LONGEST_BACKOFF_S / 2
    assert pace.backoff_s(10**6) <= pace.LONGEST_BACKOFF_S


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_given_a_rest(status):
    standing = ask(FRESH, Answer("stopped", "no such key", status), START)
    assert (standing.stopped, standing.quiet_reason) == (True, "no such key")
    assert pace.wait_s(standing, START) == 3600.0
    again = ask(standing, Answer("done", "201", 201), later(3600))
    assert (again.stopped, again.failures) == (False, 0)


def test_retry_after_of_a_busy_registry_is_honoured():
    standing = ask(FRESH, Answer("later", "503", 503, retry_after_s=120.0), START)
    assert pace.wait_s(standing, START) == 120.0


def test_a_clock_set_back_does_not_silence_for_longer():
    standing = ask(FRESH, Answer("later", "503", 503, retry_after_s=120.0), START)
    year = timedelta(days=365)
    assert pace.wait_s(pace.restart_quiet_period(standing, START - year), START - year) == 120.0
    assert pace.restart_quiet_period(standing, START) == standing


def test_a_clock_set_back_does_not_hold_a_contribution_up():
    waits = Contribution("t", "r", "pending", START, START, due_at=later(600))
    assert pace.due_in_s(waits, START) == 600.0
    assert pace.due_in_s(waits, later(700)) == 0.0
    assert pace.due_in_s(waits, START - timedelta(days=365)) == 0.0
    assert pace.due_in_s(waits, START - timedelta(minutes=10)) == 0.0


def test_reading_is_counted_apart_from_contributing():
    contributed = Answer("done", "201", 201, allowance=Allowance(30, 3, 60.0))
    standing = ask(FRESH, contributed, START)
    read = Answer("done", "200", 200, allowance=Allowance(300, 299, 60.0))
    standing = pace.before_request(standing, START, contributes=False)
    standing = pace.after_answer(standing, read, START, contributes=False)
    assert (standing.remaining, standing.window_limit) == (3, 30)
    last = Answer("done", "200", 200, allowance=Allowance(300, 1, 20.0))
    standing = pace.after_answer(standing, last, START, contributes=False)
    assert pace.wait_s(standing, START) == 21.0


def test_a_refusal_that_is_given_again_stops_nothing():
    stale = Answer("stopped", "403", 403, is_replayed=True, allowance=Allowance(30, 20, 60.0))
    standing = ask(FRESH, stale, START)
    assert (standing.stopped, pace.wait_s(standing, START)) == (False, 0.0)
