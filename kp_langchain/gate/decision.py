"""Whether a score passes, and whether runs may leave this machine."""

from __future__ import annotations

from typing import Literal

Decision = Literal["contributed", "below_threshold"]


def decide(value: float, threshold: float) -> Decision:
    """Return `contributed` when a score or worth reaches the threshold (both 0 to 1)."""
    return "contributed" if value >= threshold else "below_threshold"


def gated_value(gate: str, score: float, worth: float | None) -> float:
    """Return what is held against the threshold: the worth if that is the gate, else the score."""
    return worth if gate == "worth" and worth is not None else score


def decision_word(
    decision: str,
    *,
    has_registry: bool,
    twin_of: str | None = None,
    replaced_by: str | None = None,
) -> str:
    """Return the word for a decision that people read; data has the decision itself.

    Args:
        decision: `contributed` or `below_threshold`.
        has_registry: Whether there is a registry. Without one, what passes is kept here, and
            contributed to nobody.
        twin_of: The kept trace that it repeats, if it is not kept for that.
        replaced_by: The trace that took its place.
    """
    if decision == "below_threshold" and (twin_of or replaced_by):
        return "twin" if twin_of else "replaced"
    return "kept" if decision == "contributed" and not has_registry else decision


def may_leave(visibility: str, privacy_level: str) -> bool:
    """Return whether runs may leave this machine at all.

    At the privacy level `private` only secrets are redacted, so such runs stay local. `org` is no
    less public than `network`: a registry need not know who belongs to an organisation.
    """
    return visibility != "private" and privacy_level != "private"
