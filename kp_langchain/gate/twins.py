"""The twin rule: no twin is kept twice.

A run that repeats a kept one is decided on as its `twin`, unless it is surer and takes its place.
With the gate `worth`, a run repeats every kept run of its task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from kp_langchain.gate.run import ScoredTrace, may_leave

if TYPE_CHECKING:
    from kp_langchain.scoring.novelty_memory import MemoryEntry, Window

SURER_BY = 0.15
"""By how much more confidence (0 to 1) a run takes the place of a kept one that it repeats.

Of pairs of recorded runs that were twins and of which one was right, that was the surer one in 77 %
of the cases with this margin, and in 66 % with none (tests/benchmarks/README.md). A confirmed
success (1.0) takes the place of a run that only looked like one (0.8).
"""

OFF = 1.0
"""The similarity at which the rule is off."""


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """A kept run as others are compared with it.

    Attributes:
        entry: Its text and its vector; the id in it is that of the trace.
        run_id: LangChain's id of the root run. Traces of one run, as several handlers recorded it,
            are no twins.
        confidence: How sure the gate is of it, 0 to 1: the confidence of its worth if it has one.
        is_stated: Whether a verdict states whether it succeeded.
        may_leave: Whether its visibility and privacy level let it leave this machine.
        namespace: Its namespace, as the store has it; runs of different ones are no twins.
        task: What is equal for the runs of its task, if that is known.
    """

    entry: MemoryEntry
    run_id: str
    confidence: float
    is_stated: bool
    may_leave: bool
    namespace: str | None = None
    task: str | None = None

    @classmethod
    def of(cls, run: ScoredTrace, entry: MemoryEntry) -> KeptTrace:
        """Return a run as others are compared with it, with the entry of its trace."""
        metadata, breakdown = run.trace.metadata, run.breakdown
        confidence = breakdown.outcome_confidence.value
        return cls(
            entry,
            str(run.run_id).lower(),
            confidence if breakdown.worth is None else breakdown.worth.confidence,
            run.is_stated,
            may_leave(metadata.visibility, metadata.privacy_level),
            None if run.keys is None else run.keys.namespace,
            run.task,
        )


def drop_repeats(run: ScoredTrace, candidate: KeptTrace, kept: Window[KeptTrace]) -> ScoredTrace:
    """Apply the twin rule: return the run, perhaps as a twin of a kept one.

    Args:
        run: A run; only one that passed its threshold is compared with others.
        candidate: The same run as others would be compared with it.
        kept: The kept runs of its domain.

    Returns:
        The run; a `twin`, with `twin_of`, if it repeats a kept one without being surer; with
        `replaces` if it is surer than all that it repeats. One that was judged again because of
        other runs of its task, and not by a verdict, takes the place of none.
    """
    if run.decision != "kept" or run.twin_similarity >= OFF:
        return run
    similar = kept.similar(candidate.entry, run.twin_similarity)
    if run.gate == "worth" and candidate.task is not None:
        known = {one.entry.trace_id for one, _ in similar}
        of_task = (one for one in kept.items.values() if one.task == candidate.task)
        similar += [(one, 0.0) for one in of_task if one.entry.trace_id not in known]
    twins = [(one, similarity) for one, similarity in similar if _may_repeat(candidate, one)]
    may_replace = run.previous is None or run.verdict is not None
    stronger = [twin for twin in twins if not (may_replace and _is_surer(candidate, twin[0]))]
    if not stronger:
        return replace(run, replaces=tuple(one.entry.trace_id for one, _ in twins))
    nearest, similarity = max(stronger, key=itemgetter(1))
    return replace(
        run,
        decision="twin",
        keep_body=run.keep_body and run.keep_days != 0,
        twin_of=nearest.entry.trace_id,
        similarity_to_twin=similarity or None,
        repeats_task=run.gate == "worth" and nearest.task is not None and nearest.task == run.task,
    )


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
