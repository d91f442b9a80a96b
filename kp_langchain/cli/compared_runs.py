"""Two runs side by side: how their scores differ, and their tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kp_langchain.cli.next_run_screen import call_text
from kp_langchain.cli.output import visible
from kp_langchain.printable import one_line, short_id
from kp_langchain.review.run_facts import align, calls_of
from kp_langchain.scoring.dimensions import DIMENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from kp_langchain.cli.run_details import RunDetails
    from kp_langchain.review.run_facts import TracedCall
    from kp_langchain.store import StoredRun

_OBJECTIVE_CHARS = 300
_OUTPUT_CHARS = 120
_ANSWER_CHARS = 500
_CAUSES_NAMED = 2


def print_compared(left: RunDetails, right: RunDetails, console: Console) -> None:
    """Print two runs side by side: the differences of their scores, then their tool calls."""
    console.print(_scores(left, right))
    console.print(Text(_why(left.run, right.run)))
    calls = _calls(left, right)
    if calls is None:
        console.print("The steps of at least one of them are not kept, so they are not compared.")
    else:
        console.print(calls)
        console.print("= the same call   ~ the same tool   < only the first   > only the second")


def compared_json(left: RunDetails, right: RunDetails) -> dict[str, Any]:
    """Return what `print_compared` prints as plain values, ready for JSON."""
    first, second = left.run.breakdown.dimensions, right.run.breakdown.dimensions
    rows = None
    if left.trace is not None and right.trace is not None:
        aligned = align(calls_of(left.trace.steps), calls_of(right.trace.steps))
        rows = [
            {
                "left": _call_json(row.left),
                "right": _call_json(row.right),
                "same_input": row.is_same,
            }
            for row in aligned
        ]
    return {
        "left": left.run.to_dict(),
        "right": right.run.to_dict(),
        "differences": {
            "score": right.run.score - left.run.score,
            **{name: second[name].contribution - first[name].contribution for name in first},
        },
        "calls": rows,
    }


def _scores(left: RunDetails, right: RunDetails) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for details in (left, right):
        table.add_column(short_id(details.run.trace_id), overflow="fold", ratio=1)
    table.add_column("second - first", justify="right", no_wrap=True)
    for label, first, second, difference in _rows(left, right):
        is_lower = difference.startswith("-")
        table.add_row(
            Text(label, "cyan"),
            Text(visible(first)),
            Text(visible(second)),
            Text(difference, "yellow" if is_lower else ""),
        )
    return table


def _rows(left: RunDetails, right: RunDetails) -> Iterator[tuple[str, str, str, str]]:
    def texts(label: str, text: Callable[[RunDetails], str]) -> tuple[str, str, str, str]:
        return label, text(left), text(right), ""

    def figures(label: str, first: float, second: float) -> tuple[str, str, str, str]:
        difference = second - first
        shown = f"{difference:+.3f}" if round(difference, 3) else ""
        return label, f"{first:.3f}", f"{second:.3f}", shown

    one, other = left.run, right.run
    yield texts("objective", lambda details: one_line(details.run.objective, _OBJECTIVE_CHARS))
    yield texts("domain", lambda details: details.run.domain)
    yield texts("decision", lambda details: details.run.decision)
    of_one, of_other = one.breakdown.dimensions, other.breakdown.dimensions
    for definition in DIMENSIONS:
        name = definition.name
        yield figures(definition.label, of_one[name].contribution, of_other[name].contribution)
    rules = _rule_changes(one), _rule_changes(other)
    for name in dict.fromkeys([*rules[0], *rules[1]]):
        yield figures(name, *(changes.get(name, 0.0) for changes in rules))
    yield figures("score", one.score, other.score)
    if one.worth is not None and other.worth is not None:
        yield figures("worth", one.worth, other.worth)
    yield texts("threshold", lambda details: f"{details.run.threshold:.3f}")
    yield texts("outcome", _outcome)
    yield texts("steps", lambda details: str(details.run.n_steps))
    yield texts("answer", _answer)


def _why(one: StoredRun, other: StoredRun) -> str:
    """Return in one sentence what the difference of two scores rests on."""
    difference = other.score - one.score
    if not round(difference, 3):
        return "Both have the same score."
    direction = 1 if difference > 0 else -1
    changes = {name: change for name, change in _changes(one, other).items() if round(change, 3)}
    most = sorted(changes.items(), key=lambda pair: -direction * pair[1])[:_CAUSES_NAMED]
    causes = [f"{name} ({change:+.3f})" for name, change in most if change * direction > 0]
    word = "higher" if direction > 0 else "lower"
    return f"The second scores {abs(difference):.3f} {word}, by {' and '.join(causes)}."


def _changes(one: StoredRun, other: StoredRun) -> dict[str, float]:
    of_one, of_other = one.breakdown.dimensions, other.breakdown.dimensions
    changes = {
        row.label: of_other[row.name].contribution - of_one[row.name].contribution
        for row in DIMENSIONS
    }
    rules = _rule_changes(one), _rule_changes(other)
    for name in {**rules[0], **rules[1]}:
        changes[name] = rules[1].get(name, 0.0) - rules[0].get(name, 0.0)
    return changes


def _rule_changes(run: StoredRun) -> dict[str, float]:
    return {rule.name: rule.after - rule.before for rule in run.breakdown.rules}


def _answer(details: RunDetails) -> str:
    if details.trace is None:
        return "(not kept)"
    return one_line(details.trace.outcome.result_summary, _ANSWER_CHARS)


def _outcome(details: RunDetails) -> str:
    run = details.run
    word = "success" if run.success else "failure"
    return f"{word}, {run.confidence:.2f} ({run.confidence_source or 'unknown'})"


def _calls(left: RunDetails, right: RunDetails) -> Table | None:
    if left.trace is None or right.trace is None:
        return None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("calls of the first", overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    table.add_column("calls of the second", overflow="fold", ratio=1)
    for row in align(calls_of(left.trace.steps), calls_of(right.trace.steps)):
        if row.left is None or row.right is None:
            mark = ">" if row.left is None else "<"
            style = "yellow"
        else:
            mark, style = ("=", "bright_black") if row.is_same else ("~", "")
        table.add_row(*(Text(text, style) for text in (_text(row.left), mark, _text(row.right))))
    return table


def _text(call: TracedCall | None) -> str:
    if call is None:
        return ""
    text = "(no call)" if call.call is None else call_text(call.call)
    if call.output is None:
        return text
    beginning = (call.output.content or "")[: 4 * _OUTPUT_CHARS]
    output = one_line(" ".join(beginning.split()), _OUTPUT_CHARS)
    return f"{'! ' if call.has_failed else ''}{text} -> {output or '(empty)'}"


def _call_json(call: TracedCall | None) -> dict[str, Any] | None:
    if call is None:
        return None
    output = None if call.output is None else call.output.content
    return {"tool": call.tool, "input": call.input, "output": output, "failed": call.has_failed}
