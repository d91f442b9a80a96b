"""What recall has to do with a run: which traces it was shown, and what it did for other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.recall.credit import Credit
    from kp_langchain.store import StoredRun, TraceStore


@dataclass(frozen=True, slots=True)
class RecallFacts:
    """What recall has to do with a run.

    Attributes:
        shown: The traces that it was shown as examples, or held out from, the best first.
        objectives: The objectives of those that the store still has, by trace id.
        credit: What its own trace did for the runs that were shown it; None if none was, and none
            was held out from it.
        planted: What looks like planted instructions in its trace, so that no run is shown it.
    """

    shown: Sequence[ShownTrace] = ()
    objectives: Mapping[str, str] = field(default_factory=dict)
    credit: Credit | None = None
    planted: str | None = None


def recall_facts(store: TraceStore, run: StoredRun) -> RecallFacts:
    """Return what recall has to do with a run.

    Args:
        store: The store of the run.
        run: The run.

    Raises:
        StoreError: The store cannot be read.
    """
    shown = store.shown.of_run(run.trace_id)
    eligibility = store.recall_tasks.eligibility([run.trace_id, *(one.trace_id for one in shown)])
    own = eligibility.get(run.trace_id)
    credit = None
    if store.shown.is_shown(run.trace_id):  # else the whole domain need not be counted
        from kp_langchain.recall.credit import credits_of

        credit = credits_of(store.shown.outcome_counts(run.domain)).get(run.trace_id)
    return RecallFacts(
        shown=shown,
        objectives={trace_id: one.objective for trace_id, one in eligibility.items()},
        credit=credit,
        planted=None if own is None else own.planted,
    )


def credit_text(credit: Credit) -> str:
    """Return a credit in one line, such as `+0.12 +- 0.08: shown to 14 runs, held out from 2`."""
    if not credit.shown:
        return f"none yet: shown to no run, held out from {credit.held_out}"
    runs = count_text(credit.shown, "run")
    text = f"{figures(credit)}: shown to {runs}, held out from {credit.held_out:,}"
    hurts = "; runs ended worse with it, so it is no longer shown"
    return f"{text}{hurts if credit.hurts else ''}"


def figures(credit: Credit) -> str:
    """Return a credit with its deviation, such as `+0.12 +- 0.08`."""
    return f"{round(credit.value, 2) + 0.0:+.2f} +- {credit.deviation:.2f}"  # + 0.0: no "-0.00"


def planted_text(planted: str) -> str:
    """Return in words that recall never shows a trace, and why.

    Args:
        planted: What looks like planted instructions in it, as `RecallTasks.planted` has it.
    """
    from kp_langchain.store.recall_tasks import UNREADABLE  # loads the store

    if planted == UNREADABLE:
        return f"no run is shown it, because {planted}"
    return f"no run is shown it, because it has what looks like planted instructions: {planted}"
