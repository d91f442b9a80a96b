"""What recall has to do with a run: which traces it was shown, and what it did for other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain.review.usage_facts import seconds_text, tokens_text
from kp_langchain.text import count_text, one_line

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.recall.credit import Credit
    from kp_langchain.recall.effect import Effect
    from kp_langchain.store import StoredRun, TraceStore

_NOTE_CHARS = 300


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


def effect_lines(effect: Effect) -> list[str]:
    """Return in words what examples do for the runs of a domain, the proof first."""
    shown, held_out = effect.shown, effect.held_out
    lines = [f"{_proof_text(effect)}; {_word_text(effect)}"]
    if took := _took_text(effect):
        lines.append(took)
    if shown.runs > shown.judged or held_out.runs > held_out.judged:
        seemed, seemed_without = (
            f"{group.seemed_successful:,} of {group.runs - group.judged:,}"
            for group in (shown, held_out)
        )
        lines.append(
            "As runs without a verdict ended, which decides nothing: with examples "
            f"{seemed} look successful, without {seemed_without}."
        )
    decision = effect.decision
    if decision is not None:
        what = "shown again" if decision.shows else "stopped"
        note = f": {one_line(decision.note, _NOTE_CHARS)}" if decision.note else ""
        who = one_line(decision.source, _NOTE_CHARS)
        lines.append(f"Examples were {what} on {decision.at:%Y-%m-%d %H:%M} UTC by {who}{note}.")
    if decision is not None and decision.counted_from is not None:
        lines.append(f"Counted are runs since {decision.counted_from:%Y-%m-%d %H:%M} UTC.")
    if effect.stop_reason:
        lines.append(f"Nothing is shown: {effect.stop_reason}.")
    return lines


def _proof_text(effect: Effect) -> str:
    """Return how many succeeded with and without, and the difference with its interval."""
    shown, held_out = effect.shown, effect.held_out
    judged = "no judged run"
    if shown.rate is not None:
        judged = f"{100 * shown.rate:.0f} % of {count_text(shown.judged, 'judged run')} succeeded"
    without = "no judged run"
    if held_out.rate is not None:
        without = f"{100 * held_out.rate:.0f} % of {held_out.judged:,}"
    text = f"with examples {judged}, without (held out) {without}"
    if effect.difference is None:
        return text
    low, high = _points(effect.low), _points(effect.high)
    return f"{text}: {_points(effect.difference)} ({low} to {high})"


def _points(share: float) -> str:
    """Return a difference in hundredths; a small one with a decimal, so that its sign is true."""
    points = 100 * share
    return f"{points:+.{0 if abs(points) >= 1 or not points else 1}f}"


def _word_text(effect: Effect) -> str:
    if effect.word == "helps":
        return "examples help"
    if effect.word == "hurts":
        return "examples hurt"
    if effect.rests_on_one_namespace:
        return "not proven: without the runs of one namespace it does not hold"
    return "not proven yet"


def _took_text(effect: Effect) -> str:
    shown, held_out = effect.shown, effect.held_out
    sides: tuple[list[str], list[str]] = ([], [])
    for texts, group in zip(sides, (shown, held_out), strict=True):
        if shown.tokens is not None and held_out.tokens is not None:
            texts.append(f"{tokens_text(round(group.tokens or 0))} tokens")
        if shown.seconds is not None and held_out.seconds is not None:
            texts.append(seconds_text(1000 * (group.seconds or 0)))
    if not sides[0]:
        return ""
    with_, without = map(" and ".join, sides)
    return f"A run took {with_} on the average with examples, {without} without."


def planted_text(planted: str) -> str:
    """Return in words that recall never shows a trace, and why.

    Args:
        planted: What looks like planted instructions in it, as `RecallTasks.planted` has it.
    """
    from kp_langchain.store.recall_tasks import UNREADABLE  # loads the store

    if planted == UNREADABLE:
        return f"no run is shown it, because {planted}"
    return f"no run is shown it, because it has what looks like planted instructions: {planted}"
