"""One run on one screen: what a person needs to say whether it succeeded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.printable import beside, one_line, printable, short_id
from kp_langchain.review.run_facts import calls_of, claims_of

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.calibration.next_to_label import Offer
    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.store import StoredRun

_LABEL_WIDTH = 9
_PIPED_HEIGHT = 50
_ROOMY_HEIGHT = 30  # on a lower screen, what is said about the run has one line each
_LINES_BELOW = 2  # the question and the line that the cursor stands in
_NAME_CHARS = 60
_VALUE_CHARS = 200
_ARGUMENTS_SHOWN = 3
_OUTPUT_CHARS = 1000
_LEAST_CALL_WIDTH = 24
_CLAIMS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run to ask about, with all that the screen shows of it.

    Attributes:
        offer: Why it is offered.
        run: The run.
        trace: Its trace.
        waiting: How many other runs of its task have no verdict.
        successes: How many runs of its task succeeded by their verdicts.
        failures: How many failed.
        given: The verdict that was given just before; None if none was.
        note: The note for the verdict to come; "" for none.
    """

    offer: Offer
    run: StoredRun
    trace: ReasoningTrace
    waiting: int
    successes: int
    failures: int
    given: bool | None = None
    note: str = ""


def screen_lines(next_run: NextRun, progress: Sequence[str], console: Console) -> list[Text]:
    """Return the lines of the screen, as many as fit the terminal and no wider than it.

    Args:
        next_run: The run.
        progress: What to say above it.
        console: Where the lines will be printed.
    """
    width = max(20, console.width - 1)  # a full line would make some terminals add an empty one
    height = _height(console)
    is_small = height < _ROOMY_HEIGHT
    head = [
        line
        for text in progress
        for line in (
            [Text(_cut(text, width), style="dim")]
            if is_small
            else _wrapped(text, width, console, style="dim")
        )
    ]
    foot = list(_foot(next_run, width, console))
    room = max(9, height - _LINES_BELOW - len(head) - len(foot) - 2)  # two of them are blank

    inner = width - _LABEL_WIDTH
    objective = next_run.run.objective
    calls = call_lines(next_run.trace, inner)
    answer = next_run.trace.outcome.result_summary or "(empty)"
    lines_of_objective, lines_of_answer = (
        len(_wrapped(text[: room * (inner + 1)].strip(), inner, console))
        for text in (objective, answer)
    )
    limits = _limits(room, lines_of_objective, len(calls), lines_of_answer)
    lines = [
        *head,
        Text(),
        *_labelled("task", _folded_text(objective, inner, console, limits[0], style="bold")),
        *_labelled("calls", _folded(calls, limits[1])),
        *_labelled("answer", _folded_text(answer, inner, console, limits[2])),
        Text(),
        *foot,
    ]
    for line in lines:
        line.truncate(width, overflow="crop")
    return lines


def _limits(room: int, objective: int, calls: int, answer: int) -> tuple[int, int, int]:
    """Return how many of their lines objective, calls and answer may have.

    The answer has what the others leave if they are cut to a fourth and a third of the room; they
    have what it leaves.
    """
    of_answer = max(3, room - min(objective, room // 4) - min(calls, room // 3))
    left = room - min(answer, of_answer)
    of_calls = max(3, left - min(objective, room // 4))
    return max(2, left - min(calls, of_calls)), of_calls, of_answer


def call_lines(trace: ReasoningTrace, width: int) -> list[Text]:
    """Return the tool calls of a trace, one a line, each with the beginning of its output.

    A `!` marks those that failed, or whose output reads like a failure.

    Args:
        trace: The trace.
        width: Cells to fill at most.
    """
    lines = []
    for one in calls_of(trace.steps):
        text = f"{'!' if one.has_failed else ' '} {'' if one.call is None else call_text(one.call)}"
        if one.output is not None:
            content = " ".join((one.output.content or "(empty)")[:_OUTPUT_CHARS].split())
            output_text = f" -> {visible(content)}"
            text_width = max(width * 9 // 20, width - cell_len(output_text), _LEAST_CALL_WIDTH)
            text = _cut(text, text_width) + output_text
        lines.append(Text(_cut(text, width), style="yellow" if one.has_failed else ""))
    return lines or [Text("none", style="dim")]


def call_text(step: TraceStep) -> str:
    """Return a tool call in one line: the tool's name and the beginning of its input."""
    name = one_line(step.tool.name if step.tool else "", _NAME_CHARS) or "(no name)"
    values = list((step.input or {}).items())
    arguments = [
        _value(value) if len(values) == 1 else f"{one_line(key, _NAME_CHARS)}={_value(value)}"
        for key, value in values[:_ARGUMENTS_SHOWN]
    ]
    more = ["..."] if len(values) > _ARGUMENTS_SHOWN else []
    attempts = f" x{step.tries}" if step.tries > 1 else ""
    return f"{name}({', '.join(arguments + more)}){attempts}"


def _value(value: object) -> str:
    if isinstance(value, str):
        return printable(json.dumps(value[:_VALUE_CHARS], ensure_ascii=False))
    return printable(str(value)[:_VALUE_CHARS])


def _foot(next_run: NextRun, width: int, console: Console) -> Iterator[Text]:
    inner = width - _LABEL_WIDTH
    most = 1 if _height(console) < _ROOMY_HEIGHT else 4
    for label, text in _facts(next_run):
        lines = _folded_text(text, inner, console, most)
        yield from _labelled(label, [Text(_cut(text, inner))] if most == 1 else lines)


def _facts(next_run: NextRun) -> Iterator[tuple[str, str]]:
    run = next_run.run
    yield "claims", claims_of(next_run.trace).text(_CLAIMS_SHOWN) or "nothing to look up"
    outcome = "success" if run.success else "failure"
    source = f" ({run.confidence_source})" if run.confidence_source else ""
    yield (
        "so far",
        (
            f"{run.decision}: {run.gate} {beside(run.gated_value, run.threshold)}, threshold "
            f"{run.threshold:.3f}; {outcome}, confidence {run.confidence:.2f}{source}"
        ),
    )
    if others := next_run.successes + next_run.failures + next_run.waiting:
        yield (
            "repeats",
            (
                f"its task has {others} more run{'' if others == 1 else 's'}: {next_run.successes} "
                f"succeeded, {next_run.failures} failed, {next_run.waiting} without a verdict"
            ),
        )
    steps = f"{run.n_steps} step{'' if run.n_steps == 1 else 's'}"
    yield (
        "run",
        (
            f"{short_id(run.trace_id)}, {one_line(run.domain, _NAME_CHARS)}, "
            f"{run.created_at:%Y-%m-%d %H:%M} UTC, {steps}; {next_run.offer.reason}"
        ),
    )
    if next_run.given is not None:
        yield "given", f"{'success' if next_run.given else 'failure'}; y or n replaces it"
    if next_run.note:
        yield "note", next_run.note


def _height(console: Console) -> int:
    return console.height if console.is_terminal else _PIPED_HEIGHT


def _labelled(label: str, lines: Sequence[Text]) -> Iterator[Text]:
    for number, line in enumerate(lines):
        beginning = Text((label if number == 0 else "").ljust(_LABEL_WIDTH), style="cyan")
        yield beginning + line


def _folded_text(
    text: str, width: int, console: Console, limit: int, *, style: str = ""
) -> list[Text]:
    """Return a text as at most `limit` lines; of a longer one, the beginning and the end."""
    text = text.strip()
    most = limit * (width + 1)  # what so many lines hold, so that no megabytes are wrapped
    if len(text) <= 2 * most:
        return _folded(_wrapped(text, width, console, style=style), limit)
    beginning = _wrapped(text[:most], width, console, style=style)
    end = _wrapped(text[-most:], width, console, style=style)
    return _joined(beginning, end, limit, f"left out of {len(text):,} characters")


def _folded(lines: list[Text], limit: int) -> list[Text]:
    if len(lines) <= limit:
        return lines
    return _joined(lines, lines, limit, f"{len(lines) - limit + 1} lines left out")


def _joined(beginning: list[Text], end: list[Text], limit: int, mark: str) -> list[Text]:
    """Return `limit` lines: the first of one list, a mark, and half as many of the other's last."""
    last = max((limit - 1) // 3, int(limit > 2))  # with room for the mark
    first = beginning[: limit - 1 - last]
    return [*first, Text(f"[... {mark} ...]", style="dim"), *end[len(end) - last :]]


def _wrapped(text: str, width: int, console: Console, *, style: str = "") -> list[Text]:
    lines = Text(visible(text), style=style).wrap(console, width, overflow="fold")
    return list(lines)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."
