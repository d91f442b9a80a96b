"""Which patterns of this store's runs may be shown to runs: those that a person admitted.

Memory that was mined and that nobody looked at can be worse than none, so nothing is shown by
itself. What is admitted is the pattern as it is then; admitted again, it is as later runs make it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from kp_langchain.calibration.planted_instructions import find_planted
from kp_langchain.errors import KPError
from kp_langchain.recall.skill_file import unit_of
from kp_langchain.store.registry_units import ExaminedUnit

if TYPE_CHECKING:
    from kp_langchain.recall.patterns import Pattern
    from kp_langchain.store import TraceStore


def admit_patterns(store: TraceStore, patterns: Iterable[Pattern], *, by: str) -> None:
    """Let runs be shown patterns of this store; of those with a namespace, the runs of that.

    Args:
        store: The store.
        patterns: The patterns, as `patterns_of` returns them.
        by: Who decides.

    Raises:
        KPError: There is an obstacle to one; none is admitted then.
        StoreError: The store cannot be written.
    """
    patterns = list(patterns)
    for one in patterns:
        if obstacle := obstacle_to(one):
            raise KPError(f"{one.id} cannot be admitted: {obstacle}")
    store.own_patterns.decide([_examined(one) for one in patterns], "admitted", by=by)


def reject_patterns(store: TraceStore, patterns: Iterable[Pattern], *, by: str) -> None:
    """Never show patterns to runs, whether they were admitted or not.

    Args:
        store: The store.
        patterns: The patterns.
        by: Who decides.

    Raises:
        StoreError: The store cannot be written.
    """
    store.own_patterns.decide([_examined(one) for one in patterns], "rejected", by=by)


def obstacle_to(pattern: Pattern) -> str:
    """Return why a pattern may not be admitted; "" if nothing speaks against it.

    Args:
        pattern: The pattern.
    """
    kinds = sorted({one.kind for one in find_planted(unit_of(pattern).as_trace())})
    if kinds:
        return f"it may hold planted instructions ({', '.join(kinds)})"
    if pattern.metadata.privacy_level == "private" and pattern.namespace is None:
        # Nor is a trace of such a run shown.
        return "its runs keep identifiers (the privacy level private), and have no namespace"
    return ""


def digest_of(pattern: Pattern) -> str:
    """Return the hash of what is admitted of a pattern, in hexadecimal.

    Args:
        pattern: The pattern.
    """
    return sha256(unit_of(pattern).model_dump_json().encode()).hexdigest()


def _examined(pattern: Pattern) -> ExaminedUnit:
    unit, digest = unit_of(pattern), digest_of(pattern)
    return ExaminedUnit(unit, digest, namespace=pattern.namespace, members=pattern.members)
