"""Whether a score passes, and whether runs may leave this machine."""

from __future__ import annotations

from typing import Literal

Decision = Literal["kept", "below_threshold", "twin"]
"""What the gate decides on a run.

- `kept`: it passed. What a registry does with it is no part of the decision; the outbox knows that.
- `below_threshold`: its score or worth is below the threshold, or it is withheld.
- `twin`: it repeats a kept run that it is not surer than, or one that is surer took its place.
"""


def decide(value: float, threshold: float) -> Decision:
    """Return `kept` when a score or worth reaches the threshold (both 0 to 1)."""
    return "kept" if value >= threshold else "below_threshold"


def gated_value(gate: str, score: float, worth: float | None) -> float:
    """Return what is held against the threshold: the worth if that is the gate, else the score."""
    return worth if gate == "worth" and worth is not None else score


def may_leave(visibility: str, privacy_level: str) -> bool:
    """Return whether runs may leave this machine at all.

    At the privacy level `private` only secrets are redacted, so such runs stay local. `org` is no
    less public than `network`: a registry need not know who belongs to an organisation.
    """
    return visibility != "private" and privacy_level != "private"
