"""Which of a domain's kept traces help most with a task.

A trace helps if its task is similar, if it is right, and if it did what such tasks take:

    similarity * (0.5 + confidence / 2) * (0.5 + agreement / 2) * (0.5 + usable / 2) * (1 + credit)

The confidence is 1 for a success that a verdict states, that of the outcome for a run of this store
that nobody judged, and 0 for a unit of a registry. So a verdict outranks a run that only looks
right, unless that one is much more similar. Units of a registry come after all others: who
contributes one chooses its task, and so the similarity.

The agreement is what the trace's plan has in common with those of the ten that help most without
it: the mean F1, weighted by their confidences, so that what comes from a registry has no say. A
success by chance, or by a detour, is seldom shared.

What is usable is the share of its calls whose tools the agent has; 1 where these are not known. A
trace that calls none of them is not shown.

On recorded runs of which one in five had a verdict, that is better in every source than the nearest
trace of all. Putting verdicts before similarity is not: where tasks differ much (AgentDojo), the
nearest trace with a verdict is often of another kind. See tests/benchmarks/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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
        task: A number that candidates have in common whose tasks are the same; None if there are
            none.
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
    task: int | None = None


def rank(
    candidates: Iterable[Candidate],
    *,
    floor: float,
    limit: int,
    tools: Collection[str] = (),
) -> list[Candidate]:
    """Return the traces to show, the most helpful first, in an order that their ids decide at last.

    Failures and traces that hurt are never among them, and of those with the same task one alone.

    Args:
        candidates: The kept traces.
        floor: The similarity (0 to 1) that the tasks must have.
        limit: At most so many.
        tools: The names of the tools that the agent has; empty if unknown.
    """
    may_be_shown = [
        one
        for one in candidates
        if one.success and not one.hurts and one.similarity >= floor  # false of NaN
        if math.isfinite(one.similarity) and usable_share(one.plan, tools)
    ]
    values = [_value(one, tools) for one in may_be_shown]
    by_value = sorted(zip(values, may_be_shown, strict=True), key=lambda pair: _order(*pair))
    first, others = by_value[:_MOST_COMPARED], by_value[_MOST_COMPARED:]
    agreements = _agreements([one for _, one in first])
    first = [
        (value * (0.5 + agreement / 2), one)
        for (value, one), agreement in zip(first, agreements, strict=True)
    ]
    first.sort(key=lambda pair: _order(*pair))
    return _of_different_tasks([one for _, one in (*first, *others)])[: max(limit, 0)]


def usable_share(plan: Mapping[str, int], tools: Collection[str]) -> float:
    """Return the share of a trace's calls whose tools an agent has, 0 to 1; 1 where unknown.

    Args:
        plan: How often the trace called each tool, by the tool's name.
        tools: The names of the agent's tools; empty if unknown.
    """
    calls = sum(max(count, 0) for count in plan.values())
    if not calls or not tools:
        return 1.0
    return sum(max(count, 0) for name, count in plan.items() if name in tools) / calls


def _of_different_tasks(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the first of each task."""
    found: list[Candidate] = []
    tasks: set[int] = set()
    for one in ranked:
        if one.task is None or one.task not in tasks:
            found.append(one)
        if one.task is not None:
            tasks.add(one.task)
    return found


def _order(value: float, one: Candidate) -> tuple[bool, float, int, float, float, str]:
    # Whoever contributes to a registry chooses the task, and so the similarity.
    is_foreign = one.trust not in ("verdict", "own")
    place = _PLACE.get(one.trust, len(_PLACE))
    similarity, worth = _within(one.similarity, 0.0), _within(one.worth, 0.0)
    return is_foreign, -round(value, _DECIMALS), place, -worth, -similarity, one.trace_id


def _value(one: Candidate, tools: Collection[str]) -> float:
    """Return how much a trace is expected to help, 0 to 2, whatever the others do."""
    similarity, credit = _within(one.similarity, 0.0), _within(one.credit, -1.0)
    trusted = similarity * (0.5 + _confidence(one) / 2) * (1.0 + credit)
    return trusted * (0.5 + usable_share(one.plan, tools) / 2)


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
