"""The state of a contribution after the registry's answer. Pure functions, no I/O."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from kp_langchain.registry import pace
from kp_langchain.registry.responses import Answer
from kp_langchain.store import Contribution
from kp_langchain.store.contribution import with_new_idempotency_key


def after_attempt(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution after the answer to sending or withdrawing it.

    Args:
        unit: The contribution at the attempt.
        answer: The answer.
        now: When the answer arrived.
    """
    unit = replace(unit, changed_at=now)
    backoff_s = pace.backoff_s(unit.attempts)
    if unit.withdraw_asked:
        if answer.kind == "done":
            return replace(unit, state="withdrawn", reason=None, issues=None, body=None)
        if answer.kind == "refused":
            backoff_s = pace.LONGEST_BACKOFF_S
        due_at = now if answer.kind == "stopped" or answer.is_throttled else _after(now, backoff_s)
        return replace(unit, due_at=due_at, reason=answer.reason, issues=answer.issues)
    if answer.kind == "done" and answer.is_replayed:
        # The answer repeats one to an earlier request, whose unit may have been deleted since.
        return replace(
            unit, body=_fresh_body(unit), due_at=_after(now, backoff_s), reason=answer.reason
        )
    if answer.kind == "done":
        return _mark_sent(unit, answer)
    if answer.is_rejected:
        # The registry has nothing of it, and would repeat its refusal of the same text.
        unit = replace(unit, first_attempt_at=None, body=_fresh_body(unit))
    if pace.is_stale(answer):
        return replace(unit, due_at=_after(now, backoff_s), reason=answer.reason)
    if answer.kind == "refused":
        return replace(unit, state="dead", reason=answer.reason, issues=answer.issues)
    due_at = now
    if answer.kind == "later" and not answer.is_throttled:
        # To the end of the queue, so that a unit that always fails does not block the others.
        due_at = _after(now, backoff_s)
    return replace(unit, due_at=due_at, reason=answer.reason)


def after_lookup(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution after the registry was asked whether it has it.

    Args:
        unit: The contribution, whose last attempt had no answer.
        answer: The answer.
        now: When the answer arrived.
    """
    # A missing unit is due at once, even if the clock was set back meanwhile.
    to_send = replace(unit, first_attempt_at=None, changed_at=now, due_at=min(unit.due_at, now))
    if answer.kind == "refused":
        return replace(to_send, registry_id=None)
    if answer.kind != "done":
        first = unit.first_attempt_at
        return replace(after_attempt(unit, answer, now), first_attempt_at=first, body=unit.body)
    if _is_same_verdict(unit, answer.unit):
        return _mark_sent(replace(unit, changed_at=now), answer)
    # The registry has an earlier text of the unit, which this one replaces.
    return replace(to_send, registry_id=answer.registry_id or unit.registry_id)


def _mark_sent(unit: Contribution, answer: Answer) -> Contribution:
    id_ = answer.registry_id or unit.registry_id
    return replace(unit, state="sent", registry_id=id_, reason=None, issues=None, body=None)


def _fresh_body(unit: Contribution) -> str | None:
    return unit.body and with_new_idempotency_key(unit.body, unit.attempts)


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def _is_same_verdict(unit: Contribution, copy: Any) -> bool:
    """Return whether the registry's copy has the same verdict as this text.

    The rest of a unit never changes. The registry's copy may have more confirmations.
    """
    if copy is None:  # the registry does not send its copy
        return unit.registry_id is None
    try:
        own_verdict, registry_verdict = (
            _read_verdict(json.loads(unit.body or "")),
            _read_verdict(copy),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return own_verdict[0] == registry_verdict[0] and own_verdict[1] <= registry_verdict[1]


def _read_verdict(unit: Any) -> tuple[list[Any], set[Any]]:
    metadata = unit["metadata"]
    figures = [metadata["success"], metadata["quality_score"], unit["outcome"]["confidence"]]
    return figures, set(metadata.get("validated_by") or ())
