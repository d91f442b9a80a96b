"""The pace of requests to a registry: when the next one may be sent. Pure functions, no I/O.

A registry revokes the key at the third 429 within an hour. So requests stop before the limit of the
rate window is reached, and after a second 429 nothing is sent until the first is an hour old.

The registry counts contributions in one window and all other requests in another, which allows ten
times as many. The standing stores the first window; each answer states the second.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kp_langchain.registry.answers import LONGEST_WAIT_S, Allowance, Answer
from kp_langchain.store import Standing
from kp_langchain.store.backoff import pause_s

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
    """Return the wait after a number of failures in a row, in seconds; an hour at most."""
    return pause_s(failures, _FIRST_BACKOFF_S, LONGEST_BACKOFF_S)


def wait_s(standing: Standing, now: datetime) -> float:
    """Return the seconds until the next request may be sent; 0 if it may be sent now."""
    return 0.0 if standing.quiet_until is None else seconds_until(standing.quiet_until, now)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Return the seconds until a moment; 0 if it is past.

    It is also 0 if it is farther away than any wait, because then the clock was set back.
    """
    left_s = (moment - now).total_seconds()
    return left_s if 0.0 < left_s <= LONGEST_WAIT_S + _HOUR_S else 0.0


def before_request(standing: Standing, now: datetime, *, contributes: bool = True) -> Standing:
    """Count a request before it is sent, because its answer may be lost.

    Args:
        standing: The standing before the request.
        now: The current time.
        contributes: Whether the request is a contribution.
    """
    if not contributes or standing.window_ends_at is None or standing.remaining is None:
        return standing
    if now >= standing.window_ends_at:
        return replace(standing, remaining=None, window_ends_at=None)
    standing = replace(standing, remaining=standing.remaining - 1)
    return _pause_at_limit(standing, _window(standing, now), now)


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
    allowance = answer.allowance
    if contributes:
        standing = _update_window(standing, allowance, now)
        allowance = _window(standing, now)
    throttles = _throttles_in_last_hour(standing, now)
    if answer.is_throttled:
        throttles.append(now)
    standing = replace(
        standing,
        throttled_at=tuple(time.isoformat() for time in throttles),
        stopped=answer.kind == "stopped" and not answer.is_stale,
    )
    if answer.kind in ("done", "refused") or answer.is_stale:
        standing = replace(standing, failures=0, quiet_until=None, quiet_reason=None)
        return _pause_at_limit(standing, allowance, now)
    if answer.kind == "stopped":
        seconds = LONGEST_BACKOFF_S
    else:
        standing = replace(standing, failures=standing.failures + 1)
        seconds = backoff_s(standing.failures)
        if answer.is_throttled:
            seconds = max(seconds, _after_throttle_s(answer, throttles, now))
    return _pause(standing, max(seconds, answer.retry_after_s or 0.0), answer.reason, now)


def _after_throttle_s(answer: Answer, throttles: list[datetime], now: datetime) -> float:
    stated_s = answer.retry_after_s
    if stated_s is None:
        stated_s = answer.allowance.resets_in_s
    seconds = _THROTTLE_WAIT_S if stated_s is None else stated_s + _MARGIN_S
    if len(throttles) >= _THROTTLES_BEFORE_REVOKING - 1:
        first = throttles[1 - _THROTTLES_BEFORE_REVOKING]
        seconds = max(seconds, _HOUR_S - (now - first).total_seconds() + _MARGIN_S)
    return seconds


def _pause(standing: Standing, seconds: float, reason: str, now: datetime) -> Standing:
    until = now + timedelta(seconds=seconds)
    return replace(standing, quiet_until=until, quiet_reason=reason)


def _pause_at_limit(standing: Standing, allowance: Allowance, now: datetime) -> Standing:
    """Start a quiet period if an allowance is used up or unknown."""
    if allowance.remaining is None or allowance.resets_in_s is None:
        reason = "the registry does not state its rate limit"
        return _pause(standing, _DEFAULT_INTERVAL_S, reason, now)
    if allowance.remaining > _RESERVE:
        return standing
    limit = "" if allowance.limit is None else f"{allowance.limit} "
    reason = f"its limit of {limit}requests is reached"
    return _pause(standing, allowance.resets_in_s + _MARGIN_S, reason, now)


def _update_window(standing: Standing, allowance: Allowance, now: datetime) -> Standing:
    """Store the allowance for contributions that an answer states."""
    if allowance.limit == 0 or allowance.remaining is None or allowance.resets_in_s is None:
        return standing
    return replace(
        standing,
        remaining=allowance.remaining,
        window_limit=allowance.limit,
        window_ends_at=now + timedelta(seconds=allowance.resets_in_s),
    )


def _window(standing: Standing, now: datetime) -> Allowance:
    """Return the allowance for contributions, as it was stored."""
    if standing.window_ends_at is None:
        return Allowance()
    left_s = seconds_until(standing.window_ends_at, now)
    return Allowance(standing.window_limit, standing.remaining, left_s)


def _throttles_in_last_hour(standing: Standing, now: datetime) -> list[datetime]:
    times = [datetime.fromisoformat(time).astimezone(UTC) for time in standing.throttled_at]
    # The clock of a machine that shares the store may be ahead.
    return [time for time in times if abs((now - time).total_seconds()) <= _HOUR_S]
