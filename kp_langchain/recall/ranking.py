"""Which of a domain's kept traces help most with a task.

A trace helps if its task is similar, if it is right, and if it did what such tasks take:

    similarity * (0.5 + usable / 2) * (0.5 + confidence / 2) * (0.5 + agreement / 2) * (1 + credit)

The similarity counts in full where the agent has the tools that the trace calls, and half where it
has none of them: so does it when it is held against the floor. Not less, because a trace also has
calls that no agent asks for, such as those of a retriever in a graph around it.

The confidence is 1 for a success that a verdict states, that of the outcome for a run of this store
that nobody judged, and 0 for a unit of a registry. So a verdict outranks a run that only looks
right, unless that one is much more similar. Units of a registry come after all others: who
contributes one chooses its task, and so the similarity.

The agreement is what the trace's plan has in common with those of the ten that help most without
it: the mean F1, weighted by their confidences, so that what comes from a registry has no say. A
success by chance, or by a detour, is seldom shared.

On recorded runs of which one in five had a verdict, what that shows has better plans than the
nearest trace of all, beyond chance in three of four sources. With verdicts before similarity, 0.05
of the F1 would be lost where tasks differ much (AgentDojo), because the nearest trace with a
verdict is often of another kind, and 0.01 won in HotpotQA. See tests/benchmarks/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kp_langchain.recall.floor import plan_f1

Trust = Literal["verdict", "own", "registry"]
"""Who says that a trace succeeded: a verdict, the run itself, or a registry."""

_PLACE: Mapping[str, int] = MappingProxyType({"verdict": 0, "own": 1, "registry": 2})
# Traces whose values agree in so many decimals help about equally; trust and worth decide.
_DECIMALS = 2
_MOST_COMPARED = 10


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
        plan: How often it called each tool, by the tool's name; empty if unknown.
        weight: How much of its similarity counts, 0.5 to 1, as `similarity_weight` says.
        task: A number that candidates have in common whose tasks are the same; None if unknown.
    """

    trace_id: str
    similarity: float
    trust: Trust
    success: bool
    confidence: float
    worth: float
    credit: float
    hurts: bool
    plan: Mapping[str, int] = field(default_factory=dict, hash=False)
    weight: float = 1.0
    task: int | None = None

    @property
    def counted_similarity(self) -> float:
        """Its similarity as it counts: half of it if the agent has none of its tools."""
        return self.similarity * max(_within(self.weight, 0.5), 0.5)


def rank(candidates: Iterable[Candidate], *, floor: float) -> list[Candidate]:
    """Return the traces to show, the most helpful first, in an order that their ids decide at last.

    Failures and traces that hurt are never among them.

    Args:
        candidates: The kept traces.
        floor: The similarity (0 to 1) that the tasks must have, as it counts.
    """
    may_be_shown = [
        one
        for one in candidates
        if one.success and not one.hurts and one.counted_similarity >= floor  # false of NaN
        if math.isfinite(one.similarity)
    ]
    values = [_value(one) for one in may_be_shown]
    by_value = sorted(zip(values, may_be_shown, strict=True), key=lambda pair: _order(*pair))
    first, others = by_value[:_MOST_COMPARED], by_value[_MOST_COMPARED:]
    agreements = _agreements([one for _, one in first])
    first = [
        (value * (0.5 + agreement / 2), one)
        for (value, one), agreement in zip(first, agreements, strict=True)
    ]
    first.sort(key=lambda pair: _order(*pair))
    return [one for _, one in (*first, *others)]


def _order(value: float, one: Candidate) -> tuple[bool, float, int, float, float, str]:
    # Whoever contributes to a registry chooses the task, and so the similarity.
    is_foreign = one.trust not in ("verdict", "own")
    place = _PLACE.get(one.trust, len(_PLACE))
    similarity, worth = _within(one.counted_similarity, 0.0), _within(one.worth, 0.0)
    return is_foreign, -round(value, _DECIMALS), place, -worth, -similarity, one.trace_id


def _value(one: Candidate) -> float:
    """Return how much a trace is expected to help, 0 to 2, whatever the others do."""
    similarity, credit = _within(one.counted_similarity, 0.0), _within(one.credit, -1.0)
    return similarity * (0.5 + _confidence(one) / 2) * (1.0 + credit)


def _confidence(one: Candidate) -> float:
    """Return how far a trace's success is trusted, 0 to 1."""
    if one.trust == "verdict":
        return 1.0
    return _within(one.confidence, 0.0) if one.trust == "own" else 0.0


def _agreements(candidates: Sequence[Candidate]) -> list[float]:
    """Return what the plan of each has in common with those of all, itself included, 0 to 1."""
    confidences = [_confidence(one) for one in candidates]
    whole = sum(confidences)
    sums = confidences.copy()  # a plan has everything in common with itself
    for at, one in enumerate(candidates):
        for place, other in enumerate(candidates[:at]):
            f1 = plan_f1(one.plan, other.plan)
            sums[at] += f1 * confidences[place]
            sums[place] += f1 * confidences[at]
    return [one / whole if whole else 0.0 for one in sums]


def _within(value: float, low: float) -> float:
    """Return a number no lower than `low` and no higher than 1; 0 for one that is not finite."""
    return min(max(value, low), 1.0) if math.isfinite(value) else 0.0
