"""Which of a domain's kept traces help most with a task.

A trace helps if its task is similar and it is right:

    similarity * (0.5 + trusted confidence / 2) * (1 + credit)

The trusted confidence is 1 for a success that a verdict states, that of the outcome for a run of
this store that nobody judged, and 0 for a unit of a registry. So a verdict outranks a run that only
looks right, unless that one is much more similar.

On recorded runs of which one in five had a verdict, that is better in every source than the nearest
trace of all. Putting verdicts before similarity is not: where tasks differ much (AgentDojo), the
nearest trace with a verdict is often of another kind. See tests/benchmarks/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Trust = Literal["verdict", "own", "registry"]
"""Who says that a trace succeeded: a verdict, the run itself, or a registry."""

_PLACE: Mapping[str, int] = MappingProxyType({"verdict": 0, "own": 1, "registry": 2})
# Traces whose values agree in so many decimals help about equally; trust and worth decide.
_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kept trace that a run may be shown.

    A number that is not finite counts as absent, one beyond its range as the end of it.

    Attributes:
        trace_id: The id of the trace.
        similarity: The similarity of its task to that of the run, 0 to 1, counted from the
            embedder's baseline. A trace without one is never shown.
        trust: Who says that it succeeded.
        success: Whether it succeeded.
        confidence: The outcome's confidence, 0 to 1.
        worth: Its worth, 0 to 1, or its score if its domain has no confidence model.
        credit: By how much more runs succeeded that were shown it, -1 to 1; 0 if unknown.
        hurts: Whether runs ended worse with it.
    """

    trace_id: str
    similarity: float
    trust: Trust
    success: bool
    confidence: float
    worth: float
    credit: float
    hurts: bool


def rank(candidates: Iterable[Candidate], *, floor: float, limit: int) -> list[Candidate]:
    """Return the traces to show, the most helpful first, in an order that their ids decide at last.

    Failures and traces that hurt are never among them.

    Args:
        candidates: The kept traces.
        floor: The similarity (0 to 1) that the tasks must have.
        limit: At most so many.
    """
    may_be_shown = [
        one
        for one in candidates
        if one.success and not one.hurts and one.similarity >= floor  # false of NaN
        if math.isfinite(one.similarity)
    ]
    return sorted(may_be_shown, key=_order)[: max(limit, 0)]


def _order(one: Candidate) -> tuple[float, int, float, float, str]:
    place = _PLACE.get(one.trust, len(_PLACE))
    similarity, worth = _within(one.similarity, 0.0), _within(one.worth, 0.0)
    return -round(_value(one), _DECIMALS), place, -worth, -similarity, one.trace_id


def _value(one: Candidate) -> float:
    """Return how much a trace is expected to help, 0 to 2."""
    confidence = 0.0
    if one.trust == "verdict":
        confidence = 1.0
    elif one.trust == "own":
        confidence = _within(one.confidence, 0.0)
    weight = 0.5 + confidence / 2
    return _within(one.similarity, 0.0) * weight * (1.0 + _within(one.credit, -1.0))


def _within(value: float, low: float) -> float:
    """Return a number no lower than `low` and no higher than 1; 0 for one that is not finite."""
    return min(max(value, low), 1.0) if math.isfinite(value) else 0.0
