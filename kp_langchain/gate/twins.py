"""No twin twice: a run that repeats a kept one is kept only in its place, and only if it is surer.

A kept run is one whose decision is `kept`; what repeats it is decided on as its `twin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain._forksafe import fork_gate
from kp_langchain.gate.scored_trace import may_leave
from kp_langchain.scoring.dimensions import novelty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.gate.scored_trace import ScoredTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.novelty_memory import MemoryEntry

SURER_BY = 0.15
"""By how much more confidence (0 to 1) a run takes the place of a kept one that it repeats.

Of pairs of recorded runs that were twins and of which one was right, that was the surer one in 77 %
of the cases with this margin, and in 66 % with none (tests/benchmarks/README.md). A confirmed
success (1.0) takes the place of a run that only looked like one (0.8).
"""

# Between these lengths, products in single precision are exact enough, and three times as fast.
_SHORTEST, _LONGEST = 1e-6, 1e6

OFF = 1.0
"""The similarity at which the rule is off."""


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """A kept run as others are compared with it.

    Attributes:
        entry: Its text and its vector; the id in it is that of the trace.
        run_id: LangChain's id of the root run. Traces of one run, as several handlers recorded it,
            are no twins.
        confidence: How sure the gate is of it, 0 to 1.
        is_stated: Whether a verdict states whether it succeeded.
        may_leave: Whether its visibility and privacy level let it leave this machine.
        namespace: Its namespace, as the store has it; runs of different ones are no twins.
    """

    entry: MemoryEntry
    run_id: str
    confidence: float
    is_stated: bool
    may_leave: bool
    namespace: str | None = None

    @classmethod
    def of(cls, run: ScoredTrace, entry: MemoryEntry) -> KeptTrace:
        """Return a run as others are compared with it, with the entry of its trace."""
        metadata = run.trace.metadata
        return cls(
            entry,
            str(run.run_id).lower(),
            trusted_confidence(run.breakdown),
            run.is_stated,
            may_leave(metadata.visibility, metadata.privacy_level),
            None if run.keys is None else run.keys.namespace,
        )


class Twin(NamedTuple):
    """A kept run that another one repeats, and their similarity, 0 to 1."""

    kept: KeptTrace
    similarity: float


def trusted_confidence(breakdown: ScoreBreakdown) -> float:
    """Return how sure the gate is of a run, 0 to 1: the confidence of its worth if it has one."""
    if breakdown.worth is not None:
        return breakdown.worth.confidence
    return breakdown.outcome_confidence.value


def hold_against_twins(
    run: ScoredTrace, candidate: KeptTrace, kept: Iterable[KeptTrace]
) -> ScoredTrace:
    """Return the run as it is decided on beside the kept runs that it repeats.

    Args:
        run: A run; only one that passed its threshold is held against others.
        candidate: The same run as others would be compared with it.
        kept: The kept runs of its domain.

    Returns:
        The run; a `twin`, with `twin_of`, if it repeats a kept one without being surer; with
        `replaces` if it is surer than all that it repeats.
    """
    if run.decision != "kept":
        return run
    twins = find_twins(candidate, kept, run.twin_similarity)
    stronger = [twin for twin in twins if not _is_surer(candidate, twin.kept)]
    if not stronger:
        return replace(run, replaces=tuple(twin.kept.entry.trace_id for twin in twins))
    nearest = max(stronger, key=attrgetter("similarity"))
    return replace(
        run,
        decision="twin",
        keep_body=run.keep_body and run.keep_days != 0,
        twin_of=nearest.kept.entry.trace_id,
        similarity_to_twin=nearest.similarity,
    )


def find_twins(
    candidate: KeptTrace, kept: Iterable[KeptTrace], least_similarity: float
) -> list[Twin]:
    """Return the kept runs that a run repeats.

    Args:
        candidate: The run.
        kept: The kept runs.
        least_similarity: The similarity from which it repeats one, 0 to 1; with 1 it repeats none.
    """
    if least_similarity >= OFF:
        return []
    others = [one for one in kept if _may_repeat(candidate, one)]
    similarities = _similarities(candidate.entry, [one.entry for one in others])
    return [
        Twin(one, similarity)
        for one, similarity in zip(others, similarities, strict=True)
        if similarity >= least_similarity
    ]


def _may_repeat(candidate: KeptTrace, one: KeptTrace) -> bool:
    if candidate.run_id == one.run_id or candidate.entry.trace_id == one.entry.trace_id:
        return False
    # Otherwise a tenant would learn of another's run, and be shown neither.
    if candidate.namespace != one.namespace:
        return False
    # What is kept for this machine alone must not hold back what others may see.
    return one.may_leave or not candidate.may_leave


def _is_surer(one: KeptTrace, other: KeptTrace) -> bool:
    """Return whether one run takes the place of another; an estimate never that of a verdict."""
    if other.is_stated and not one.is_stated:
        return False
    return one.confidence - other.confidence >= SURER_BY


def _similarities(entry: MemoryEntry, others: Sequence[MemoryEntry]) -> list[float]:
    """Return how similar entries are to one, 0 to 1; 1 for the same text.

    The cosine similarity is counted from the embedder's baseline, as for novelty. Without two
    vectors of one embedder it is 0.
    """
    similarities = [
        float(entry.fingerprint is not None and entry.fingerprint == other.fingerprint)
        for other in others
    ]
    if entry.vector is None:
        return similarities
    comparable = [at for at, other in enumerate(others) if _are_comparable(entry, other)]
    if comparable:
        cosines = _cosines(entry.vector, [others[at].vector for at in comparable])
        baseline = entry.identity.baseline
        for at, cosine in zip(comparable, cosines, strict=True):
            if cosine > baseline:
                similarities[at] = max(similarities[at], 1.0 - novelty(cosine, baseline))
    return similarities


def _cosines(vector: NDArray[np.float32], others: Sequence[object]) -> list[float]:
    """Return the cosine similarity of a vector with others of its length; 0 for one of zeros."""
    import numpy as np

    # A child forked in the middle of a matrix product may hang in its own.
    with fork_gate, np.errstate(over="ignore", invalid="ignore"):
        query = np.asarray(vector, dtype=np.float32)
        rows = np.array(others, dtype=np.float32)
        lengths, own_length = np.linalg.norm(rows, axis=1), np.linalg.norm(query)
        shortest, longest = min(own_length, lengths.min()), max(own_length, lengths.max())
        if not _SHORTEST < shortest <= longest < _LONGEST:
            rows, query = rows.astype(np.float64), query.astype(np.float64)
            lengths, own_length = np.linalg.norm(rows, axis=1), np.linalg.norm(query)
        lengths *= own_length
        products = rows @ query
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    values: list[float] = cosines.tolist()
    return values


def _are_comparable(one: MemoryEntry, other: MemoryEntry) -> bool:
    if one.vector is None or other.vector is None or len(one.vector) != len(other.vector):
        return False
    return one.identity is other.identity or one.identity == other.identity
