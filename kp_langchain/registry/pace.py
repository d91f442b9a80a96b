"""The pace of requests to a registry: when the next one may be sent. Pure functions, no I/O.

A registry revokes the key at the third 429 within an hour. So requests stop before the limit of the
rate window is reached, and after a second 429 nothing is sent until the first is an hour old.

The registry counts contributions in one window and all other requests in another, which allows ten
times as many. The standing stores the first window; each answer states the second.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kp_langchain.registry.responses import Answer
from kp_langchain.store import Contribution, Standing

LONGEST_BACKOFF_S = 3600.0
"""The longest wait between attempts of a contribution, or after failures, in seconds."""

_FIRST_BACKOFF_S = 1.0
_HOUR_S = 3600.0
_THROTTLES_BEFORE_REVOKING = 3
# For a registry that does not state its limits: the limit of the lowest tier, 30 per minute.
_DEFAULT_INTERVAL_S = 2.0
# Requests left unused in each window, for a registry whose count is off by one.
_RESERVE = 1
# Added to the times that a registry states, which may be rounded to seconds.
_MARGIN_S = 1.0
_THROTTLE_WAIT_S = 60.0


def backoff_s(failures: int) -> float:
    """Return the wait after a number of failures, in seconds: doubles each time, half is random.

    Source: exponential backoff with equal jitter, M. Brooker 2015,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    longest = min(LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)


def wait_s(standing: Standing, now: datetime) -> float:
    """Return the seconds until the next request may be sent; 0 if it may be sent now."""
    if standing.quiet_until is None:
        return 0.0
    return max(0.0, (standing.quiet_until - now).total_seconds())


def due_in_s(contribution: Contribution, now: datetime) -> float:
    """Return the seconds until the next attempt of a contribution is due; 0 if it is due now."""
    left_s = (contribution.due_at - now).total_seconds()
    # A change in the future, or a wait longer than possible: the clock was set back meanwhile.
    if now < contribution.changed_at or left_s > LONGEST_BACKOFF_S + 1.0:
        return 0.0
    return max(0.0, left_s)


def restart_quiet_period(standing: Standing, now: datetime) -> Standing:
    """Restart the quiet period if the clock was set back.

    It was, if the remaining time is longer than the whole quiet period.
    """
    if wait_s(standing, now) > standing.quiet_s + 1.0:
        return replace(standing, quiet_until=now + timedelta(seconds=standing.quiet_s))
    return standing


def shift_times(standing: Standing, seconds: float) -> Standing:
    """Move all times of the standing by the number of seconds by which the clock was set."""
    shift = timedelta(seconds=seconds)
    return replace(
        standing,
        quiet_until=standing.quiet_until and standing.quiet_until + shift,
        window_ends_at=standing.window_ends_at and standing.window_ends_at + shift,
        throttled_at=tuple(
            (datetime.fromisoformat(time) + shift).isoformat() for time in standing.throttled_at
        ),
    )


def before_request(standing: Standing, now: datetime, *, contributes: bool = True) -> Standing:
    """Count a request before it is sent, because its answer may be lost.

    Args:
        standing: The standing before the request.
        now: The current time.
        contributes: Whether the request is a contribution.
    """
    if not contributes:
        return standing
    if standing.window_ends_at is None or standing.remaining is None:
        return standing
    if now >= standing.window_ends_at:
        return replace(standing, remaining=None, window_ends_at=None)
    return _pause_at_limit(replace(standing, remaining=standing.remaining - 1), now)


def after_answer(
    standing: Standing, answer: Answer, now: datetime, *, contributes: bool = True
) -> Standing:
    """Return the standing after an answer.

    Args:
        standing: The standing before the answer.
        answer: The answer.
        now: When it arrived.
        contributes: Whether it answers a contribution, rather than another request.
    """
    if contributes:
        standing = _update_window(standing, answer, now)
    throttles = _throttles_in_last_hour(standing, now)
    if answer.is_throttled:
        throttles.append(now)
    standing = replace(
        standing,
        throttled_at=tuple(time.isoformat() for time in throttles),
        stopped=answer.kind == "stopped" and not is_stale(answer),
    )
    if answer.kind in ("done", "refused") or is_stale(answer):
        standing = replace(standing, failures=0, quiet_until=None, quiet_s=0.0, quiet_reason=None)
        if contributes:
            return _pause_at_limit(standing, now)
        return _pause_at_read_limit(standing, answer, now)
    if answer.kind == "stopped":
        seconds = max(LONGEST_BACKOFF_S, answer.retry_after_s or 0.0)
        return _pause(standing, seconds, answer.reason, now)
    standing = replace(standing, failures=standing.failures + 1)
    seconds = max(backoff_s(standing.failures), answer.retry_after_s or 0.0)
    if answer.is_throttled:
        seconds = max(seconds, _after_throttle_s(answer, throttles, now))
    return _pause(standing, seconds, answer.reason, now)


def is_stale(answer: Answer) -> bool:
    """Return whether a refusal repeats the answer to an earlier request, so it may be outdated."""
    return answer.is_replayed and answer.kind in ("refused", "stopped")


def _after_throttle_s(answer: Answer, throttles: list[datetime], now: datetime) -> float:
    stated_s = answer.retry_after_s
    if stated_s is None and answer.allowance is not None:
        stated_s = answer.allowance.resets_in_s
    seconds = _THROTTLE_WAIT_S if stated_s is None else stated_s + _MARGIN_S
    if len(throttles) >= _THROTTLES_BEFORE_REVOKING - 1:
        first = throttles[1 - _THROTTLES_BEFORE_REVOKING]
        seconds = max(seconds, _HOUR_S - (now - first).total_seconds() + _MARGIN_S)
    return seconds


def _pause(standing: Standing, seconds: float, reason: str, now: datetime) -> Standing:
    until = now + timedelta(seconds=seconds)
    return replace(standing, quiet_until=until, quiet_s=seconds, quiet_reason=reason)


def _update_window(standing: Standing, answer: Answer, now: datetime) -> Standing:
    """Copy the window for contributions from an answer."""
    allowance = answer.allowance
    if (
        allowance is None
        or allowance.remaining is None
        or allowance.resets_in_s is None
        or allowance.limit == 0
    ):
        return standing
    return replace(
        standing,
        remaining=allowance.remaining,
        window_limit=allowance.limit,
        window_ends_at=now + timedelta(seconds=allowance.resets_in_s),
    )


def _pause_at_limit(standing: Standing, now: datetime) -> Standing:
    """Start a quiet period if the window for contributions is used up or unknown."""
    if standing.remaining is None or standing.window_ends_at is None:
        return _pause(
            standing, _DEFAULT_INTERVAL_S, "the registry does not state its rate limit", now
        )
    if standing.remaining > _RESERVE:
        return standing
    left_s = max(0.0, (standing.window_ends_at - now).total_seconds())
    limit = standing.window_limit
    why = f"its limit{f' of {limit} requests' if limit else ''} is reached"
    return _pause(standing, left_s + _MARGIN_S, why, now)


def _pause_at_read_limit(standing: Standing, answer: Answer, now: datetime) -> Standing:
    """Start a quiet period if the window for other requests is used up or unknown."""
    allowance = answer.allowance
    if allowance is None or allowance.remaining is None or allowance.resets_in_s is None:
        return _pause(
            standing, _DEFAULT_INTERVAL_S, "the registry does not state its rate limit", now
        )
    if allowance.remaining > _RESERVE:
        return standing
    return _pause(
        standing, allowance.resets_in_s + _MARGIN_S, "its limit of requests is reached", now
    )


def _throttles_in_last_hour(standing: Standing, now: datetime) -> list[datetime]:
    times = [datetime.fromisoformat(time).astimezone(UTC) for time in standing.throttled_at]
    # A time in the future means that the clock was set back; it counts as now.
    times = [min(time, now) for time in times]
    return [time for time in times if (now - time).total_seconds() <= _HOUR_S]
