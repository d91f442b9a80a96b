"""Which of a domain's kept traces help most with a task, and how similar they must be.

A trace helps if its task is similar, if it is right, and if it did what such tasks take:

    similarity * (0.5 + usable / 2) * (0.5 + confidence / 2) * (0.5 + agreement / 2) * (1 + credit)

`usable` is the share of the trace's calls whose tools the agent has. The floor is compared with
similarity * (0.5 + usable / 2), too. Half counts in any case: a trace also has calls that no agent
asks for, such as those of a retriever in a graph around it.

A pattern is ranked like a trace; its confidence is the mean of its members'. The kind
that the caller names second counts nine tenths: by default a pattern is shown before a trace only
if it is clearly more similar.

The confidence is 1 for a success that a verdict states, that of the outcome for a run of this store
that nobody judged, and 0 for a unit of a registry. So a verdict outranks a run that only looks
right, unless that one is much more similar. Units of a registry come after all others: who
contributes one chooses its task, and so the similarity.

The agreement is what the trace's plan has in common with those of the ten that help most without
it: the mean F1, weighted by their confidences, so that what comes from a registry has no say. A
success by chance, or by a detour, is seldom shared.

It was measured on recorded runs of which one in five had a verdict. What it shows has better plans
than the nearest trace of all; in three of four sources that is beyond chance. With verdicts before
similarity, 0.05 of the F1 would be lost where tasks differ much (AgentDojo): there, the nearest
trace with a verdict is often of another kind. In HotpotQA, 0.01 would be won. See
tests/benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from kp_langchain.errors import ConfigError
from kp_langchain.pattern_schema import PATTERN_ID_PREFIX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Trust = Literal["verdict", "own", "registry"]
"""Who says that a trace succeeded: a verdict, the run itself, or a registry."""

Kind = Literal["trace", "pattern"]

KINDS: tuple[Kind, ...] = ("trace", "pattern")
"""What may be shown. Of a pattern and a trace that show the same plan, the first kind is preferred.

That mined procedures help more than single runs is not shown here yet; traces are what was
measured.
"""

_SECOND_KIND = 0.9  # of its value counts

_ORDER_OF_TRUST: tuple[Trust, ...] = ("verdict", "own", "registry")
# Traces whose values agree in so many decimals help about equally; trust and worth decide.
_DECIMALS = 2
_MOST_COMPARED = 10
_REDACTED = "[REDACTED"
# Traces whose tasks are at least so similar, of 1, are taken as runs of one task.
_SAME_TASK = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kept success, or a pattern, that a run may be shown.

    Attributes:
        trace_id: The id of the trace, or of the pattern.
        similarity: The similarity of its task to that of the run, 0 to 1, counted from the
            embedder's baseline.
        trust: Who says that it succeeded.
        confidence: The outcome's confidence, 0 to 1.
        worth: Its worth, 0 to 1, or its score if its domain has no confidence model.
        credit: By how much more runs succeeded that were shown it, -1 to 1; 0 if unknown.
        plan: How often it called each tool, by the tool's name; empty if unknown.
        tools: The names of the agent's tools; empty if unknown.
        vector: The embeddings of its task, normalised together, shape (2 * dimensions,).
    """

    trace_id: str
    similarity: float
    trust: Trust
    confidence: float
    worth: float
    credit: float
    plan: Mapping[str, int] = field(default_factory=dict)
    tools: Collection[str] = ()
    vector: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)

    @property
    def kind(self) -> Kind:
        """Whether it is a trace or a pattern."""
        return "pattern" if self.trace_id.startswith(PATTERN_ID_PREFIX) else "trace"

    @property
    def counted_similarity(self) -> float:
        """Its similarity as it counts: half of it if the agent has none of its tools.

        A name of which a part was redacted may be that of any tool.
        """
        calls = sum(self.plan.values())
        if not calls or not self.tools:
            return self.similarity
        usable = sum(
            count for name, count in self.plan.items() if name in self.tools or _REDACTED in name
        )
        return self.similarity * (0.5 + usable / calls / 2)

    @property
    def trusted_confidence(self) -> float:
        """How far its success is trusted, 0 to 1."""
        if self.trust == "verdict":
            return 1.0
        return self.confidence if self.trust == "own" else 0.0


def rank(
    candidates: Iterable[Candidate], *, floor: float, preferred: Kind = "trace"
) -> list[Candidate]:
    """Return the traces to show, the most helpful first; ties are broken by id.

    Args:
        candidates: The kept traces, and patterns.
        floor: The similarity (0 to 1) that the tasks must have, as it counts.
        preferred: The kind of which all counts.
    """
    in_order = [one for one in candidates if one.counted_similarity >= floor]
    in_order.sort(key=lambda one: _order(one, preferred))
    first, others = in_order[:_MOST_COMPARED], in_order[_MOST_COMPARED:]
    agreements = {one.trace_id: _agreement(one, first) for one in first}
    first.sort(key=lambda one: _order(one, preferred, agreements[one.trace_id]))
    return first + others


def check_kinds(kinds: Sequence[Kind]) -> None:
    """Check which kinds are to be shown.

    Raises:
        ConfigError: There is none, or one is unknown.
    """
    if isinstance(kinds, str) or not kinds or not set(kinds) <= set(KINDS):
        raise ConfigError(f"kinds={kinds!r} must be some of {KINDS}, the preferred first")


def _order(
    one: Candidate, preferred: Kind, agreement: float = 1.0
) -> tuple[bool, float, int, float, float, str]:
    similarity = one.counted_similarity
    value = similarity * (0.5 + one.trusted_confidence / 2) * (1.0 + one.credit)
    value *= 1.0 if one.kind == preferred else _SECOND_KIND
    return (
        # Whoever contributes to a registry chooses the task, and so the similarity.
        one.trust == "registry",
        -round(value * (0.5 + agreement / 2), _DECIMALS),
        _ORDER_OF_TRUST.index(one.trust),
        -one.worth,
        -similarity,
        one.trace_id,
    )


def _agreement(one: Candidate, others: Sequence[Candidate]) -> float:
    """Return what its plan has in common with those of all, itself included, 0 to 1."""
    weights = [other.trusted_confidence for other in others]
    f1s = [plan_f1(one.plan, other.plan) for other in others]
    common = sum(weight * f1 for weight, f1 in zip(weights, f1s, strict=True))
    return common / sum(weights) if any(weights) else 0.0


def plan_f1(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Return what two plans have in common, 0 to 1: the F1 of their calls, by tool and number.

    Args:
        one: How often each tool was called, by its name.
        other: The same of the other.
    """
    calls = sum(one.values()) + sum(other.values())
    common = sum(min(count, other.get(tool, 0)) for tool, count in one.items())
    return 2 * common / calls if calls else 1.0


def same_task_cosine(baseline: float) -> float:
    """Return the cosine similarity from which two tasks are taken as the same.

    Args:
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    return baseline + _SAME_TASK * (1.0 - baseline)


# ------------------------------------------------------------------ the floor

DEFAULT_FLOOR = 0.4
"""The floor of a domain of which nothing is known.

Nine in ten recorded runs are less similar to the nearest success of another source.
"""

LOWEST_FLOOR, HIGHEST_FLOOR = 0.15, 0.7
"""No floor lies outside these."""

_USEFUL_F1 = 0.2
_BEYOND_CHANCE = 2.0
_SHARE_OF_STRANGERS = 0.02  # of a domain's own tasks, so many may have no example
_PRIOR_TASKS = 3  # for so many the default counts
_OTHERS = 3  # the similarity to this one says how similar the tasks of a domain are
_MOST_SAMPLED = 1000


class _Pair(NamedTuple):
    """Two successes of different tasks, one of which is an example for the other.

    Attributes:
        similarity: Of the tasks, 0 to 1.
        f1: Of the plans.
    """

    similarity: float
    f1: float


def calibrate_floor(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float = 0.0
) -> float:
    """Return the similarity (0 to 1) below which no trace of a domain should be shown.

    It is `DEFAULT_FLOOR`, unless a domain's own successes prove another. Each of their tasks is
    taken for a new one, and two of another task for its examples: the most similar one, and any.
    The plans are compared: how often each tool was called. An example helps if the plans have more
    than a fifth in common, and else misleads: by as much as the F1 of the plans is above 0.2 or
    below.

    The floor is lower if examples below the default help, and higher if those above it mislead: as
    far as the sum over them is greatest. That sum must be more than chance may explain, which is
    twice the root of the sum of the squares. The floor is not lower than the similarity that 49 of
    50 tasks have to others: to the third most similar one, because the first may be the same task
    in other words. What is less similar to everything kept is hardly a task of the domain. Finally,
    the floor is drawn towards the default, because a few tasks may agree by chance:

        default + (proven_floor - default) * tasks / (tasks + 3)

    So where the plans are alike whatever the task (FEVER, HotpotQA), the floor sinks to what the
    tasks of the domain need, and no further. See tests/benchmarks/README.md.

    Args:
        vectors: The embeddings of the tasks of its successes, each normalised, shape (n, size).
        plans: How often each of them called each tool, by the tool's name.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    import numpy as np

    pairs, usual = _pairs(vectors, plans, baseline)
    above = sorted(one for one in pairs if one.similarity >= DEFAULT_FLOOR)
    below = sorted((one for one in pairs if one.similarity < DEFAULT_FLOOR), reverse=True)
    proven_floor = DEFAULT_FLOOR
    if misleading := _certain_length([_USEFUL_F1 - one.f1 for one in above]):
        proven_floor = above[misleading - 1].similarity
    elif helping := _certain_length([one.f1 - _USEFUL_F1 for one in below]):
        lowest = below[helping - 1].similarity if helping < len(below) else 0.0
        proven_floor = max(lowest, float(np.quantile(usual, _SHARE_OF_STRANGERS)))
        proven_floor = min(proven_floor, DEFAULT_FLOOR)
    proven_floor = min(max(proven_floor, LOWEST_FLOOR), HIGHEST_FLOOR)
    tasks = len(usual)
    return DEFAULT_FLOOR + (proven_floor - DEFAULT_FLOOR) * tasks / (tasks + _PRIOR_TASKS)


def _certain_length(gains: Sequence[float]) -> int:
    """Return how many of the first gains have the greatest sum; 0 if that may be chance."""
    import numpy as np

    sums, by_chance = np.cumsum(gains), np.sqrt(np.cumsum(np.square(gains)))
    certain = np.where(sums > _BEYOND_CHANCE * by_chance + 1e-9, sums, 0.0)
    return int(certain.argmax()) + 1 if certain.any() else 0


def _pairs(
    vectors: NDArray[np.float32], plans: Sequence[Mapping[str, int]], baseline: float
) -> tuple[list[_Pair], list[float]]:
    """Return examples for tasks, and how similar each task is to others.

    Of the runs of a task the first alone counts, and none without a call.
    """
    import numpy as np

    with_calls = [at for at, plan in enumerate(plans) if plan]
    sample = np.linspace(0, len(with_calls) - 1, min(len(with_calls), _MOST_SAMPLED)).astype(int)
    places = _different_tasks(vectors, [with_calls[at] for at in sample.tolist()], baseline)
    number = len(places)
    if number <= _OTHERS:
        return [], []
    rows = vectors[places]
    similarities = np.clip((rows @ rows.T - baseline) / (1.0 - baseline), 0.0, 1.0)
    np.fill_diagonal(similarities, -1.0)
    pairs: dict[tuple[int, int], _Pair] = {}  # each two once, whichever is taken for the task
    for others in (similarities.argmax(axis=1), np.roll(np.arange(number), number // 2)):
        for one, other in enumerate(others.tolist()):
            f1 = plan_f1(plans[places[one]], plans[places[other]])
            pairs[min(one, other), max(one, other)] = _Pair(float(similarities[one, other]), f1)
    usual = np.partition(similarities, -_OTHERS, axis=1)[:, -_OTHERS]
    return list(pairs.values()), usual.tolist()


def _different_tasks(
    vectors: NDArray[np.float32], places: Sequence[int], baseline: float
) -> list[int]:
    """Return the places of vectors without those whose task is that of an earlier one."""
    import numpy as np

    different: list[int] = []
    others = np.array(places, dtype=int)
    while len(others):
        different.append(int(others[0]))
        cosines = vectors[others] @ vectors[others[0]]
        others = others[1:][cosines[1:] < same_task_cosine(baseline)]
    return different
