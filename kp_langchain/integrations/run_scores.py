"""The numbers that score receivers send of a run, the same for every tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from kp_langchain.redaction import redact

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

PREFIX = "kp_"
"""How the names of all scores of this package begin."""

_NAMESPACE = UUID("3f2c1c7e-0d0b-5d3a-9a52-6b1f8f0f5a0e")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """One number about a run.

    Attributes:
        id: The same whenever this number of this run is sent, so that a later one replaces it.
        name: `kp_quality_score`, `kp_worth`, or `kp_` and the name of a dimension.
        value: 0 to 1.
        label: What the gate decided: `kept`, `below_threshold` or `twin`; None for a dimension.
        comment: How the number came about. It has numbers and the names of rules, no text of the
            run.
    """

    id: UUID
    name: str
    value: float
    label: str | None
    comment: str


def send_each(send: Callable[[RunScore], object], scores: Sequence[RunScore]) -> None:
    """Send scores one by one: the first one alone, then the others at once.

    Args:
        send: Sends one score.
        scores: At least one.

    Raises:
        Exception: What `send` raises for one of them; the others are sent all the same, unless it
            is the first one.
    """
    send(scores[0])  # where nothing answers, one request is enough to learn it
    sent: list[Future[object]] = []
    with ThreadPoolExecutor(len(scores), "kp_langchain scores") as pool:
        for score in scores[1:]:
            try:
                sent.append(pool.submit(copy_context().run, send, score))
            except RuntimeError:  # the interpreter is ending, and starts no threads
                send(score)
    for one in sent:
        one.result()


def run_scores(scored: ScoredTrace) -> list[RunScore]:
    """Return the score of a run, each of its dimensions, and its worth if there is one."""
    breakdown = scored.breakdown
    trace_id = scored.stored_id or scored.trace.id
    decision = scored.decision
    decided = f"{decision} (threshold {scored.threshold:.2f} of {scored.gate})"
    numbers: list[tuple[str, float, str | None, str]] = [
        (f"{PREFIX}quality_score", breakdown.total, decision, f"{decided}; {breakdown.line()}")
    ]
    if scored.worth is not None:
        numbers.append((f"{PREFIX}worth", scored.worth, decision, decided))
    numbers += [
        # Redacted, because where a verdict came from is a text that a program chose.
        (f"{PREFIX}{name}", part.value, None, f"{redact(part.why).value}; weight {part.weight:.2f}")
        for name, part in breakdown.dimensions.items()
    ]
    return [
        RunScore(
            id=uuid5(_NAMESPACE, f"{trace_id} {name}"),
            name=name,
            value=value,
            label=label,
            comment=comment,
        )
        for name, value, label, comment in numbers
    ]
