"""One contribution: the next request about it, its state after the answer, what is logged.

Each attempt is recorded before and after its request. So another process can continue after this
one ends: if it is unknown whether a unit arrived, the registry is asked before the unit is sent
again, with the same idempotency key. When a request may be sent is up to `pace`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain._logging import warn_once
from kp_langchain.gate.decision import may_leave
from kp_langchain.registry import pace
from kp_langchain.registry.answers import Answer
from kp_langchain.store import Contribution
from kp_langchain.store.contribution import with_new_idempotency_key

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry

log = logging.getLogger("kp_langchain")

Request = Literal["contribute", "find", "withdraw"]

# By the kind of the answer, or "kept" for a deletion that is refused.
_WARNINGS = {
    "stopped": "the registry at %s accepts nothing (%s); runs that passed stay pending in the "
    "outbox. Check the key (kp-langchain register, KP_API_KEY) and registry_url, then run: "
    "kp-langchain outbox send",
    "later": "the registry at %s cannot accept a trace now (%s); it is retried later. "
    "See kp-langchain outbox",
    "refused": "the registry at %s refuses %s (%s). See this and later ones with: "
    "kp-langchain outbox",
    "kept": "the registry at %s does not delete %s (%s), so the trace stays public; the deletion "
    "is retried every hour. See this and later ones with: kp-langchain outbox, kp-langchain doctor",
}


def next_request(unit: Contribution) -> Request:
    """Return the next request about a contribution: `find` if its last attempt had no answer."""
    if unit.withdraw_asked:
        return "withdraw"
    return "contribute" if unit.first_attempt_at is None else "find"


def is_private(unit: Contribution) -> bool:
    """Return whether a contribution must not leave this machine; earlier versions queued some."""
    try:
        metadata = json.loads(unit.body or "")["metadata"]
        return not may_leave(metadata["visibility"], metadata["privacy_level"])
    except (ValueError, KeyError, TypeError):
        return True


def give_up_private(unit: Contribution, now: datetime) -> Contribution:
    """Return a private contribution as one that is never sent, and warn once."""
    reason = "not sent: its metadata says visibility or privacy_level 'private'"
    warn_once(
        f"kept here:{unit.registry}",
        "%s is %s. See this and later ones with: kp-langchain outbox",
        unit.trace_id,
        reason,
    )
    return replace(unit, state="dead", reason=reason, changed_at=now)


def before_request(unit: Contribution, now: datetime) -> Contribution:
    """Return the contribution as it is to be recorded before a request, whose answer may be lost.

    Args:
        unit: The contribution.
        now: The current time.
    """
    return replace(
        unit,
        attempts=unit.attempts + 1,
        first_attempt_at=unit.first_attempt_at or now,
        changed_at=now,
    )


def make_request(registry: Registry, unit: Contribution, request: Request) -> Answer:
    """Send a request about a contribution and return the answer. Never raises."""
    if request == "contribute":
        return registry.contribute((unit.body or "").encode(), unit.idempotency_key)
    return registry.find(unit.unit_id) if request == "find" else registry.withdraw(unit.unit_id)


def after_answer(
    unit: Contribution, request: Request, answer: Answer, now: datetime
) -> Contribution:
    """Return the contribution after an answer.

    Args:
        unit: The contribution, as `before_request` left it.
        request: The request.
        answer: The answer.
        now: When it arrived.
    """
    unit = replace(unit, changed_at=now)
    if request == "withdraw":
        return _after_withdrawal(unit, answer, now)
    return _after_lookup(unit, answer, now) if request == "find" else _after(unit, answer, now)


def _after(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution after the answer to its text."""
    if answer.kind == "done" and not answer.is_replayed:
        return _sent(unit, answer)
    if answer.kind == "done" or answer.is_rejected:
        # The answer would be repeated to the same text. If it is a repetition itself, it concerns
        # an earlier request, whose unit may have been deleted since.
        body = unit.body and with_new_idempotency_key(unit.body, unit.attempts)
        first_attempt_at = None if answer.is_rejected else unit.first_attempt_at
        unit = replace(unit, body=body, first_attempt_at=first_attempt_at)
    if answer.kind == "refused" and not answer.is_stale:
        return replace(unit, state="dead", reason=answer.reason, issues=answer.issues)
    return _try_again(unit, answer, now)


def _after_lookup(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution after the registry was asked whether it has it."""
    if answer.kind == "refused":
        return replace(unit, first_attempt_at=None, registry_id=None)
    if answer.kind != "done":
        return _try_again(unit, answer, now)
    if _has_same_verdict(unit, answer.data.get("unit")):
        return _sent(unit, answer)
    # The registry has an earlier text of the unit, which this one replaces.
    registry_id = answer.registry_id or unit.registry_id
    return replace(unit, first_attempt_at=None, registry_id=registry_id)


def _after_withdrawal(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    if answer.kind == "done":
        return replace(unit, state="withdrawn", reason=None, issues=None, body=None)
    unit = replace(_try_again(unit, answer, now), issues=answer.issues)
    if answer.kind == "refused":
        return replace(unit, due_at=now + timedelta(seconds=pace.LONGEST_BACKOFF_S))
    return unit


def _sent(unit: Contribution, answer: Answer) -> Contribution:
    id_ = answer.registry_id or unit.registry_id
    return replace(unit, state="sent", registry_id=id_, reason=None, issues=None, body=None)


def _try_again(unit: Contribution, answer: Answer, now: datetime) -> Contribution:
    """Return the contribution as it waits for another attempt.

    An answer that concerns the registry as a whole starts a quiet period there. After any other, it
    goes to the end of the queue, so that a unit that always fails does not block the others.
    """
    is_quiet = answer.is_throttled or (answer.kind == "stopped" and not answer.is_stale)
    due_at = now if is_quiet else now + timedelta(seconds=pace.backoff_s(unit.attempts))
    return replace(unit, due_at=due_at, reason=answer.reason)


def _has_same_verdict(unit: Contribution, copy: Any) -> bool:
    """Return whether the registry's copy has the same verdict as this text.

    The rest of a unit never changes. The registry's copy may have more confirmations.
    """
    if copy is None:  # the registry does not send its copy
        return unit.registry_id is None
    try:
        figures, confirmations = _verdict(json.loads(unit.body or ""))
        registry_figures, registry_confirmations = _verdict(copy)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return figures == registry_figures and confirmations <= registry_confirmations


def _verdict(unit: Mapping[str, Any]) -> tuple[list[Any], set[Any]]:
    metadata = unit["metadata"]
    figures = [metadata["success"], metadata["quality_score"], unit["outcome"]["confidence"]]
    return figures, set(metadata.get("validated_by") or ())


def log_answer(unit: Contribution, request: Request, answer: Answer, registry: Registry) -> None:
    """Log what became of a contribution; warn of each kind of trouble once.

    Args:
        unit: The contribution after the answer.
        request: The request.
        answer: The answer.
        registry: The registry.
    """
    if request == "find" and unit.first_attempt_at is None:
        return  # the registry does not have it, so it is sent next
    kind = "kept" if answer.kind == "refused" and request == "withdraw" else answer.kind
    if kind in _WARNINGS and not answer.is_stale:
        trace = (unit.trace_id,) if kind in ("refused", "kept") else ()
        warning = f"{kind}:{registry.url}:{registry.key_id}"
        warn_once(warning, _WARNINGS[kind], registry.url, *trace, answer.reason)
    with suppress(Exception):  # the host's handlers and filters may raise
        log.info(
            "kp.contribution %s %s (attempt %d)%s",
            unit.status,
            unit.trace_id,
            unit.attempts,
            f": {unit.reason}" if unit.reason else "",
        )


def warn_of_no_key(registry: Registry) -> None:
    """Warn once that nothing is sent to a registry, because there is no key for it."""
    warn_once(
        f"no key:{registry.url}",
        "nothing is sent to the registry at %s, because there is no key for it; runs that "
        "passed stay pending in the outbox. Get a key: "
        "kp-langchain register --agent-id kp:agent:NAME",
        registry.url,
    )
