"""What went wrong in runs near a pattern that failed, in short sentences from facts.

A run is near if its steps are the first ones of the pattern, or differ from them by one step, or
not at all. No text of a run is in a sentence but names of tools, of arguments that the pattern has,
and classes of errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kp_langchain.recall.prompt_text import TOOL_NAME
from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.recall.run_paths import RunPath, Step
    from kp_langchain.recall.templates import Arguments

_MOST_SENTENCES = 3
_FEWEST = 2  # fewer failures with a fact say nothing
_TELLING = 0.2  # by how much more of the failures than of the members have it


def failures_near(
    members: Sequence[RunPath],
    steps_of: Callable[[RunPath], Sequence[Step]],
    arguments: Sequence[Arguments],
    runs: Sequence[RunPath],
    by_words: bool,
) -> tuple[str, ...]:
    """Return what went wrong in runs near a pattern, in at most three sentences.

    Args:
        members: The members of the pattern.
        steps_of: Returns the steps of a run, as the pattern tells them apart.
        arguments: The inputs of its steps.
        runs: The runs of the domain.
        by_words: Whether its steps are told apart by the words of their inputs, too.
    """
    plan = steps_of(members[0])
    near = [
        run for run in runs if not run.success and _is_near(steps_of(run), plan, by_words=by_words)
    ]
    if not near:
        return ()
    tools = {step[0].tool for step in plan}
    constants = [
        (step[0].tool, name, value)
        for step, one in zip(plan, arguments, strict=True)
        for name, value in one.template.items()
        if name not in one.blanks
    ]
    counts, usual = (
        Counter(fact for run in some for fact in _facts(run, tools, constants))
        for some in (near, members)
    )
    telling = [
        fact
        for fact, count in counts.items()
        if count >= min(_FEWEST, len(near))
        and count / len(near) - usual[fact] / len(members) >= _TELLING
    ]
    telling.sort(key=lambda fact: (-counts[fact], fact))
    of = count_text(len(near), "run near it that failed", "runs near it that failed")
    sentences = [f"{counts[fact]} of {of} {fact}." for fact in telling[:_MOST_SENTENCES]]
    return tuple(sentences) or (f"{of[0].upper()}{of[1:]} made the same calls, or nearly.",)


def _facts(
    run: RunPath, tools: set[str], constants: Sequence[tuple[str, str, object]]
) -> Iterator[str]:
    """Yield what a run did, each fact once, as the end of a sentence."""
    facts: dict[str, None] = {}
    for tool, error in run.errors:
        facts[f"had an error{f' ({error})' if error else ''} of {_shown(tool)}"] = None
    for tool in tools - run.tools:
        facts[f"never called {_shown(tool)}"] = None
    for tool, name, value in constants:
        inputs = [call.inputs for call in run.calls if call.tool == tool]
        if inputs and all(name not in one for one in inputs):
            facts[f"gave {_shown(tool)} no {_shown(name)}"] = None
        elif inputs and all(one.get(name) != value for one in inputs):
            facts[f"gave {_shown(tool)} another {_shown(name)}"] = None
    yield from facts


def _shown(name: str) -> str:
    return name if TOOL_NAME.fullmatch(name) else "a tool with another name"


def _is_near(steps: Sequence[Step], plan: Sequence[Step], *, by_words: bool) -> bool:
    """Return whether steps begin a plan, or are at most one step off it."""
    same = [[_is_same(one, other, by_words=by_words) for other in plan] for one in steps]
    if not any(map(any, same)):
        return False
    first = sum(1 for _ in _leading(same, len(plan)))
    if first == len(steps):
        return True
    last = sum(1 for _ in _leading([row[::-1] for row in same[::-1]], len(plan)))
    longest = max(len(steps), len(plan))
    return abs(len(steps) - len(plan)) <= 1 and first + last >= longest - 1


def _leading(same: Sequence[Sequence[bool]], number: int) -> Iterator[int]:
    """Yield the positions of the steps that are equal from the beginning on."""
    for at in range(min(len(same), number)):
        if not same[at][at]:
            return
        yield at


def _is_same(one: Step, other: Step, *, by_words: bool) -> bool:
    if one[0].tool != other[0].tool:
        return False
    return not by_words or set(one[0].words) == set(other[0].words)
