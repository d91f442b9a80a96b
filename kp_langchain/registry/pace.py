"""When the next request to a registry may go out. Pure: standings and answers in, standings out.

A registry revokes the key at the third 429 within an hour. So requests stop before the window's
allowance is used up, and after a second 429 nothing is sent until the first is an hour old.

It counts contributions in one window and all other requests in another, which allows ten times as
many. The standing holds the first; of the second each answer tells enough by itself.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kp_langchain.registry.answers import Answer
from kp_langchain.store import Contribution, Standing

LONGEST_REST_S = 3600.0
"""Most seconds between two attempts for the same contribution, or after failures in a row."""

_FIRST_REST_S = 1.0
_HOUR_S = 3600.0
_THROTTLES_BEFORE_REVOKING = 3
# A registry that says nothing of its limits gets what its smallest tier allows: 30 a minute.
_UNTOLD_REST_S = 2.0
# Kept unused in every window, for a registry that counts one off.
_RESERVE = 1
# Added to the times that a registry tells, which may be in whole seconds.
_MARGIN_S = 1.0
_THROTTLED_REST_S = 60.0


def rest_s(failures: int) -> float:
    """Return the seconds to wait after so many failures: doubled each time, half of it random.

    Source: exponential backoff with equal jitter, M. Brooker 2015,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    longest = min(LONGEST_REST_S, _FIRST_REST_S * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


def wait_s(standing: Standing, now: datetime) -> float:
    """Return the seconds until something may be sent; 0 for now."""
    if standing.quiet_until is None:
        return 0.0
    return max(0.0, (standing.quiet_until - now).total_seconds())


def due_in_s(contribution: Contribution, now: datetime) -> float:
    """Return the seconds until a contribution is to be tried; 0 for now."""
    left = (contribution.due_at - now).total_seconds()
    # Changed in the future, or a rest longer than any: the clock was set back meanwhile.
    if now < contribution.changed_at or left > LONGEST_REST_S + 1.0:
        return 0.0
    return max(0.0, left)


def set_right(standing: Standing, now: datetime) -> Standing:
    """Return the standing with a silence that cannot be right begun anew.

    If the time left is longer than the whole silence was, the clock was set back meanwhile.
    """
    if wait_s(standing, now) > standing.quiet_s + 1.0:
        return replace(standing, quiet_until=now + timedelta(seconds=standing.quiet_s))
    return standing


def shifted(standing: Standing, seconds: float) -> Standing:
    """Return the standing with all its times moved, as the clock was that they are read by."""
    by = timedelta(seconds=seconds)
    return replace(
        standing,
        quiet_until=standing.quiet_until and standing.quiet_until + by,
        window_ends_at=standing.window_ends_at and standing.window_ends_at + by,
        throttled_at=tuple(
            (datetime.fromisoformat(time) + by).isoformat() for time in standing.throttled_at
        ),
    )


def before_request(standing: Standing, now: datetime, *, contributes: bool = True) -> Standing:
    """Return the standing with one request counted, before it goes out: its answer may be lost."""
    if not contributes:
        return standing
    if standing.window_ends_at is None or standing.remaining is None:
        return standing
    if now >= standing.window_ends_at:
        return replace(standing, remaining=None, window_ends_at=None)
    return _within_window(replace(standing, remaining=standing.remaining - 1), now)


def after_answer(
    standing: Standing, answer: Answer, now: datetime, *, contributes: bool = True
) -> Standing:
    """Return the standing that an answer leaves behind.

    Args:
        standing: The standing before.
        answer: The answer.
        now: When it came.
        contributes: Whether it is to a contribution, or else to another request.
    """
    if contributes:
        standing = _counted(standing, answer, now)
    throttled = _last_hour(standing, now)
    if answer.throttled:
        throttled.append(now)
    standing = replace(
        standing,
        throttled_at=tuple(time.isoformat() for time in throttled),
        stopped=answer.verdict == "stopped" and not is_stale(answer),
    )
    if answer.verdict in ("done", "refused") or is_stale(answer):
        standing = replace(standing, failures=0, quiet_until=None, quiet_s=0.0, quiet_reason=None)
        if contributes:
            return _within_window(standing, now)
        return _after_reading(standing, answer, now)
    if answer.verdict == "stopped":
        seconds = max(LONGEST_REST_S, answer.retry_after_s or 0.0)
        return _quiet(standing, seconds, answer.reason, now)
    standing = replace(standing, failures=standing.failures + 1)
    seconds = max(rest_s(standing.failures), answer.retry_after_s or 0.0)
    if answer.throttled:
        seconds = max(seconds, _after_throttle_s(answer, throttled, now))
    return _quiet(standing, seconds, answer.reason, now)


def is_stale(answer: Answer) -> bool:
    """Whether a refusal is one of an earlier request, which says nothing of the present."""
    return answer.replayed and answer.verdict in ("refused", "stopped")


def _after_throttle_s(answer: Answer, throttled: list[datetime], now: datetime) -> float:
    told = answer.retry_after_s
    if told is None and answer.allowance is not None:
        told = answer.allowance.resets_in_s
    seconds = _THROTTLED_REST_S if told is None else told + _MARGIN_S
    if len(throttled) >= _THROTTLES_BEFORE_REVOKING - 1:
        first = throttled[1 - _THROTTLES_BEFORE_REVOKING]
        seconds = max(seconds, _HOUR_S - (now - first).total_seconds() + _MARGIN_S)
    return seconds


def _quiet(standing: Standing, seconds: float, reason: str, now: datetime) -> Standing:
    until = now + timedelta(seconds=seconds)
    return replace(standing, quiet_until=until, quiet_s=seconds, quiet_reason=reason)


def _counted(standing: Standing, answer: Answer, now: datetime) -> Standing:
    """Take over what an answer says of the registry's window."""
    told = answer.allowance
    if told is None or told.remaining is None or told.resets_in_s is None or told.limit == 0:
        return standing
    return replace(
        standing,
        remaining=told.remaining,
        window_limit=told.limit,
        window_ends_at=now + timedelta(seconds=told.resets_in_s),
    )


def _within_window(standing: Standing, now: datetime) -> Standing:
    """Add the silence that the rest of the window asks for."""
    if standing.remaining is None or standing.window_ends_at is None:
        return _quiet(standing, _UNTOLD_REST_S, "the registry does not tell its rate limit", now)
    if standing.remaining > _RESERVE:
        return standing
    left = max(0.0, (standing.window_ends_at - now).total_seconds())
    limit = standing.window_limit
    why = f"its limit{f' of {limit} requests' if limit else ''} is reached"
    return _quiet(standing, left + _MARGIN_S, why, now)


def _after_reading(standing: Standing, answer: Answer, now: datetime) -> Standing:
    """Add the silence that the other window asks for, or its rest."""
    told = answer.allowance
    if told is None or told.remaining is None or told.resets_in_s is None:
        return _quiet(standing, _UNTOLD_REST_S, "the registry does not tell its rate limit", now)
    if told.remaining > _RESERVE:
        return standing
    return _quiet(standing, told.resets_in_s + _MARGIN_S, "its limit of requests is reached", now)


def _last_hour(standing: Standing, now: datetime) -> list[datetime]:
    times = [datetime.fromisoformat(time).astimezone(UTC) for time in standing.throttled_at]
    # One in the future comes from a clock that was set back since: taken as of now.
    times = [min(time, now) for time in times]
    return [time for time in times if (now - time).total_seconds() <= _HOUR_S]
