"""What recall would show a run, and the credit of the traces that runs were shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.printable import one_line, short_id
from kp_langchain.recall.credit import NO_CREDIT, Credit, credits_of
from kp_langchain.review.recall_facts import credit_fields, credit_text, figures
from kp_langchain.store.rows import clean_name

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.recall.example import Example, Examples
    from kp_langchain.store import TraceStore
    from kp_langchain.store.vector_queries import Eligibility

EXPLAIN = (
    "Explain one: kp-langchain review show ID\n"
    "Explain one of a registry: kp-langchain quarantine show ID"
)
"""What to do with the ids that are printed."""

_OBJECTIVE_CHARS = 300
_WIDE = 100
_TRUST = {
    "verdict": "success by a verdict",
    "own": "success, as the run ended",
    "registry": "success, as a registry claims",
}
_WHY_NOT = {
    "hurts": "runs ended worse with it",
    "planted": "something in it looks like planted instructions",
    "not kept": "it is no kept success any more",
    "deleted": "the store no longer has it",
}


@dataclass(frozen=True, slots=True)
class CreditRow:
    """The credit of a trace that runs were shown.

    Attributes:
        domain: The domain of these runs.
        trace_id: The id of the trace.
        credit: Its credit.
        objective: Its task in words; "" if the store no longer has it.
        why_not: Why it is no longer shown: `hurts`, `planted`, `not kept` or `deleted`; None if it
            still is.
        planted: What looks like planted instructions in it, if something does.
    """

    domain: str
    trace_id: str
    credit: Credit
    objective: str
    why_not: str | None
    planted: str | None


# ---------------------------------------------------------------- what a run would be shown


def print_examples(examples: Examples, credits_: Mapping[str, Credit], console: Console) -> None:
    """Print what a run would be shown, or why it would be shown nothing.

    Args:
        examples: What was found.
        credits_: The credit of the traces that were shown before, by trace id.
        console: Where to print it.
    """
    for one in examples.found:
        console.print(
            Text(
                f"{one.rank}. {short_id(one.trace_id)}, similarity {one.similarity:.2f}, "
                f"{_TRUST[one.trust]}",
                style="bold",
            )
        )
        credit = _credit_of(one, credits_)
        text = "none yet: shown to no run" if credit == NO_CREDIT else credit_text(credit)
        for line in (f"credit {text}", visible(one_line(_objective(one), _OBJECTIVE_CHARS))):
            console.print(Padding(Text(line), (0, 0, 0, 3), expand=False))
    if examples.found:
        console.print(Text(f"No trace is shown whose similarity is below {examples.floor:.2f}."))
        console.print(Text(EXPLAIN))
    else:
        console.print(Text(f"Nothing is shown: {examples.reason}."))


def examples_json(
    examples: Examples, credits_: Mapping[str, Credit], domain: str, *, with_text: bool
) -> dict[str, Any]:
    """Return what `print_examples` prints as plain values, ready for JSON.

    Args:
        examples: What was found.
        credits_: The credit of the traces that were shown before, by trace id.
        domain: The domain of the run.
        with_text: Whether to add the text that a model would get.
    """
    fields = {
        "domain": domain,
        "floor": examples.floor,
        "reason": examples.reason,
        "examples": [
            {
                "trace_id": one.trace_id,
                "rank": one.rank,
                "similarity": one.similarity,
                "trust": one.trust,
                "credit": credit_fields(_credit_of(one, credits_)),
                "objective": _objective(one),
            }
            for one in examples.found
        ],
    }
    text = {"few_shot": examples.compose().text} if with_text else {}
    return fields | text


def _credit_of(example: Example, credits_: Mapping[str, Credit]) -> Credit:
    return credits_.get(example.trace_id, NO_CREDIT)


def _objective(example: Example) -> str:
    return " ".join(example.trace.task.objective.split())


# ---------------------------------------------------------------- credit


def credit_rows(store: TraceStore, domain: str | None, limit: int) -> tuple[list[CreditRow], int]:
    """Return the traces that runs were shown, the best credit first, and how many there are.

    Args:
        store: The store.
        domain: Only runs of this domain; None for all.
        limit: Return at most so many.

    Raises:
        StoreError: The store cannot be read.
    """
    if domain is None:
        counts = store.shown.outcome_counts_by_domain()
    else:
        counts = {clean_name(domain): store.shown.outcome_counts(domain)}
    shown = [
        (name, trace_id, credit)
        for name, of_domain in counts.items()
        for trace_id, credit in credits_of(of_domain).items()
        if credit.shown
    ]
    shown.sort(key=lambda one: (-one[2].value, -one[2].shown, one[1], one[0]))
    first = shown[:limit]
    eligibility = store.recall_entries.eligibility({trace_id for _, trace_id, _ in first})
    rows = [_row(name, id_, credit, eligibility.get(id_)) for name, id_, credit in first]
    return rows, len(shown)


def _row(domain: str, trace_id: str, credit: Credit, eligibility: Eligibility | None) -> CreditRow:
    why_not = None
    if eligibility is None:
        why_not = "deleted"
    elif not eligibility.is_open:
        why_not = "not kept"
    elif eligibility.planted is not None:
        why_not = "planted"
    elif credit.hurts and eligibility.domain == domain:  # only there does it count
        why_not = "hurts"
    return CreditRow(
        domain=domain,
        trace_id=trace_id,
        credit=credit,
        objective="" if eligibility is None else eligibility.objective,
        why_not=why_not,
        planted=None if eligibility is None else eligibility.planted,
    )


def credit_json(row: CreditRow) -> dict[str, Any]:
    """Return a row as plain values, ready for JSON."""
    return {
        "domain": row.domain,
        "trace_id": row.trace_id,
        "credit": credit_fields(row.credit),
        "still_shown": row.why_not is None,
        "why_not": row.why_not,
        "planted": row.planted,
        "objective": row.objective,
    }


def print_credits(rows: Sequence[CreditRow], console: Console, *, with_domain: bool) -> None:
    """Print the traces that runs were shown as a table, and why some are no longer shown.

    Args:
        rows: The traces, at least one.
        console: Where to print them.
        with_domain: Whether to name the domain of each.
    """
    is_wide = console.width >= _WIDE
    gap = 1 if is_wide else 0
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, gap, 0, 0))
    table.add_column("trace", no_wrap=True, max_width=20 if is_wide else 8)
    if with_domain and is_wide:
        table.add_column("domain", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("credit", no_wrap=True, justify="right")
    table.add_column("shown", no_wrap=True, justify="right")
    if is_wide:
        table.add_column("held out", no_wrap=True, justify="right")
    table.add_column("still shown", no_wrap=True)
    table.add_column("objective", ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    for row in rows:
        style = "" if row.why_not is None else "bright_black"
        cells = [
            Text(short_id(row.trace_id), style),
            *([Text(visible(one_line(row.domain, 16)))] if with_domain and is_wide else []),
            Text(figures(row.credit), _credit_style(row.credit)),
            Text(f"{row.credit.shown:,}"),
            *([Text(f"{row.credit.held_out:,}")] if is_wide else []),
            Text("yes" if row.why_not is None else f"no: {row.why_not}", style),
            Text(visible(one_line(" ".join(row.objective.split()), _OBJECTIVE_CHARS)), style),
        ]
        table.add_row(*cells)
    console.print(table)
    for word, why in _WHY_NOT.items():
        if any(row.why_not == word for row in rows):
            console.print(Text(f"{word}: {why}, so it is no longer shown."))


def _credit_style(credit: Credit) -> str:
    if credit.value - credit.deviation > 0:
        return "green"
    return "red" if credit.hurts else ""
