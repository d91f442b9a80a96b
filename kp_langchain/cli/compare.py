"""Two runs side by side: what their scores are made of, and their tool calls as a diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.cli.output import make_table, visible
from kp_langchain.cli.run_view import call_text
from kp_langchain.config import current_prices
from kp_langchain.review.run_facts import agreement_text, flag_texts, outcome_text
from kp_langchain.review.usage_facts import usage_figures
from kp_langchain.scoring.dimensions import DIMENSION_NAMES, DIMENSIONS
from kp_langchain.text import one_line, short_id

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.store import StoredRun

_MOST_CALLS = 1000  # a diff of more may take seconds
_TEXT_CHARS, _CAUSES_NAMED = 300, 2
_LABELS = {one.name: one.label for one in DIMENSIONS}


def print_compared(first: StoredRun, second: StoredRun, console: Console) -> None:
    """Print the differences of two runs.

    Args:
        first: One of them.
        second: The other one.
        console: Where to print.
    """
    ids = [short_id(run.trace_id) for run in (first, second)]
    figures = make_table(("", *(f"{one}>" for one in ids), "second - first>"))
    for name, (before, after) in _figures(first, second).items():
        change = f"{after - before:+.3f}" if round(after - before, 3) else ""
        figures.add_row(_LABELS.get(name, name), f"{before:.3f}", f"{after:.3f}", change)
    for label, cells in _usage_rows(first, second).items():
        figures.add_row(label, *cells)
    console.print(figures)
    console.print(Text(_why_different(first, second)))
    for short, run in zip(ids, (first, second), strict=True):
        trace = run.trace
        answer = "(not kept)" if trace is None else trace.outcome.result_summary
        outcome = f"{run.decision}; {outcome_text(run)}"
        texts = (run.objective, outcome, agreement_text(run), *flag_texts(run), answer)
        console.print(Text(f"\n{short}", "bold"))
        for text in filter(None, texts):
            console.print(Text(f"  {visible(one_line(' '.join(text.split()), _TEXT_CHARS))}"))
    calls = _differences(first, second)
    if calls is None:
        console.print("\nThe steps of at least one of them are not kept, so they are not compared.")
        return
    console.print(Text("\nCalls: + only the second makes, - only the first", "bold"))
    for mark, text in calls:
        style = {"+": "green", "-": "red"}.get(mark, "")
        console.print(Text(f"{mark} {visible(text)}", style, no_wrap=True, overflow="ellipsis"))


def compared_json(first: StoredRun, second: StoredRun) -> dict[str, Any]:
    """Return what `print_compared` prints as plain values."""
    differences = _differences(first, second)
    calls = None
    if differences is not None:
        calls = [{"in": _IN[mark], "call": text} for mark, text in differences]
    return {
        "first": first.to_dict(),
        "second": second.to_dict(),
        "differences": {
            name: after - before for name, (before, after) in _figures(first, second).items()
        },
        "costs": [_cost(first), _cost(second)],
        "calls": calls,
    }


_IN = {"+": "second", "-": "first", " ": "both"}


def _differences(first: StoredRun, second: StoredRun) -> list[tuple[str, str]] | None:
    """Return the calls of both runs, each with `+`, `-` or a space; None if a trace is gone."""
    trace, other_trace = first.trace, second.trace
    if trace is None or other_trace is None:
        return None
    texts = [[call_text(call) for call in calls_of(one.steps)] for one in (trace, other_trace)]
    return list(_diff(*(some[:_MOST_CALLS] for some in texts)))


def _diff(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, str]]:
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            yield from ((" ", text) for text in left[start:end])
        else:
            yield from (("-", text) for text in left[start:end])
            yield from (("+", text) for text in right[other_start:other_end])


def _figures(first: StoredRun, second: StoredRun) -> dict[str, tuple[float, float]]:
    """Return what the scores of two runs are made of, and the scores, by name."""
    one, other = first.breakdown.dimensions, second.breakdown.dimensions
    figures = {name: (one[name].contribution, other[name].contribution) for name in DIMENSION_NAMES}
    rules, other_rules = (
        {rule.name: rule.after - rule.before for rule in run.breakdown.rules}
        for run in (first, second)
    )
    for name in rules | other_rules:
        figures[name] = rules.get(name, 0.0), other_rules.get(name, 0.0)
    figures["score"] = first.score, second.score
    if first.worth is not None and second.worth is not None:
        figures["worth"] = first.worth, second.worth
    return figures


def _cost(run: StoredRun) -> float | None:
    return current_prices().cost(run.usage, run.created_at)


def _usage_rows(first: StoredRun, second: StoredRun) -> dict[str, tuple[str, str, str]]:
    """Return what both runs took, and how much more the second, by label."""
    one, other = (usage_figures(run.usage, _cost(run)) for run in (first, second))
    rows = {}
    for label, (before, text) in one.items():
        after, other_text = other.get(label, (None, ""))
        if before or after:
            change = "" if not before or after is None else f"{after / before - 1:+.0%}"
            rows[label] = (text or "-", other_text or "-", change if change[1:] != "0%" else "")
    return rows


def _why_different(first: StoredRun, second: StoredRun) -> str:
    """Return in one sentence what the difference of two scores rests on."""
    difference = second.score - first.score
    if not round(difference, 3):
        return "Both have the same score."
    changes = {
        _LABELS.get(name, name): after - before
        for name, (before, after) in _figures(first, second).items()
        if name not in ("score", "worth") and (after - before) * difference > 0
    }
    most = sorted(changes.items(), key=lambda pair: -abs(pair[1]))[:_CAUSES_NAMED]
    causes = " and ".join(f"{label} ({change:+.3f})" for label, change in most)
    word = "higher" if difference > 0 else "lower"
    return f"The second scores {abs(difference):.3f} {word}, by {causes}."
