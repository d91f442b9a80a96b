"""What a human decided on a paused run, read from the value with which it is resumed.

LangGraph leaves the form of that value to the graph. This module reads truth values, English words,
and what langchain's middleware and the agent inbox send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, attribute, default_on_error

HumanDecision = Literal["approved", "rejected", "unclear"]

_APPROVED = frozenset(
    "accept accepted allow allowed approve approved confirm confirmed continue edit edited ok okay "
    "proceed true y yes".split()
)
_REJECTED = frozenset(
    "abort aborted cancel cancelled decline declined denied deny disallow false ignore n no refuse "
    "refused reject rejected stop".split()
)
_FIELDS = ("type", "action", "decision", "choice", "answer", "status")
_MAX_WORD_CHARS = 20
_INTERRUPT_ID = re.compile("[0-9a-f]{32}")


@default_on_error("unclear")
def decision_in(command: object) -> HumanDecision:
    """Return what a human decided.

    Args:
        command: LangGraph's `Command` with which a run is resumed.

    Returns:
        "unclear" if the value does not show it, or some calls were approved and others were not.
    """
    value = attribute(command, "resume")
    if isinstance(value, MAPPING) and _names_interrupts(value):
        return _unanimous(map(_decision, islice(value.values(), MAX_ITEMS)))
    return _decision(value)


def _names_interrupts(value: Mapping[Any, Any]) -> bool:
    key = next(iter(value), None)
    return isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) is not None


def _decision(value: object) -> HumanDecision:
    if isinstance(value, MAPPING):
        value = value.get("decisions", value)
    if isinstance(value, (list, tuple)):
        return _unanimous(map(_one_decision, value[:MAX_ITEMS]))
    return _one_decision(value)


def _one_decision(value: object) -> HumanDecision:
    if not isinstance(value, MAPPING):
        return _scalar_decision(value)
    decisions = [_scalar_decision(value[field]) for field in _FIELDS if field in value]
    decisions += [_scalar_decision(value[word]) for word in _APPROVED if word in value]
    decisions += [_OPPOSITE[_scalar_decision(value[word])] for word in _REJECTED if word in value]
    return _unanimous(decisions)


def _scalar_decision(value: object) -> HumanDecision:
    if isinstance(value, bool):
        return "approved" if value else "rejected"
    if not isinstance(value, str):
        return "unclear"
    word = re.split("[,.;:!]", value[:_MAX_WORD_CHARS], maxsplit=1)[0].strip().lower()
    return "approved" if word in _APPROVED else "rejected" if word in _REJECTED else "unclear"


def _unanimous(decisions: Iterable[HumanDecision]) -> HumanDecision:
    """Return the decision that all agree on; "unclear" if they differ or there are none."""
    distinct = set(decisions)
    return distinct.pop() if len(distinct) == 1 else "unclear"


_OPPOSITE: dict[HumanDecision, HumanDecision] = {
    "approved": "rejected",
    "rejected": "approved",
    "unclear": "unclear",
}
