"""What a trace shows of itself in numbers, for a model to learn from.

The numbers are kept for ever, the text may be gone. They hold none of it but the names of tools,
and they do not look at what the run was reported or judged to be: a verdict would be learned
from itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from kp_langchain.calibration.wording import (
    DONE,
    EXCLAMATION,
    FAILED,
    NEGATED,
    QUESTION,
    REASONED,
    SENTENCE_END,
    UNABLE,
    UNSURE,
    Text,
)
from kp_langchain.scoring.dimensions import TraceShape

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace, TraceStep

FEATURES_VERSION = 1
"""Changed when a name gets another meaning; names may be added without."""

VERSION = "features_version"
"""The name under which features carry their version."""
LOOKED_SUCCESSFUL = "looked_successful"
CALLED = "called:"
"""Begins the names of features that count the calls of one tool."""

# These bound what one run can cost: characters read of a text and of a failing observation's
# beginning, steps read (half from either end), tools counted by name, characters of such a name.
_TEXT_CHARS = 1000
_FAILURE_CHARS = 300
_STEPS = 60
_TOOLS = 20
_NAME_CHARS = 60


def features_of(
    trace: ReasoningTrace, *, looked_successful: bool | None = None
) -> dict[str, float]:
    """Return the features of a redacted trace: finite numbers, none below 0.

    They depend on the steps, the objective and the result alone, and not on success, confidence or
    score. The names are fixed, but for one `called:<tool>` for each of the first 20 tools called.

    Args:
        trace: The trace.
        looked_successful: Whether the run looked successful by itself, before anybody reported or
            judged anything; None leaves that feature out.
    """
    half = _STEPS // 2
    steps = trace.steps if len(trace.steps) <= _STEPS else trace.steps[:half] + trace.steps[-half:]
    thoughts = [_text(step) for step in steps if step.type == "thought"]
    seen = [_text(step) for step in steps if step.type == "observation"]
    answer = Text(trace.outcome.result_summary, _TEXT_CHARS)
    objective = Text(trace.task.objective, _TEXT_CHARS)
    shape = TraceShape.of(trace)
    found = {VERSION: float(FEATURES_VERSION)}
    found |= {field.name: float(getattr(shape, field.name)) for field in fields(shape)}
    found |= _sizes(trace, steps, thoughts, seen)
    found |= _calls([step for step in steps if step.type == "tool_call"])
    found |= _failures(steps, seen)
    found |= _thinking(thoughts)
    found |= _wording(answer)
    found |= _overlaps(objective, steps, seen, answer)
    if looked_successful is not None:
        found[LOOKED_SUCCESSFUL] = float(looked_successful)
    return found


def _sizes(
    trace: ReasoningTrace,
    steps: Sequence[TraceStep],
    thoughts: Sequence[Text],
    seen: Sequence[Text],
) -> dict[str, float]:
    calls = sum(step.type == "tool_call" for step in steps)
    return {
        "tool_calls": float(calls),
        "observations": float(len(seen)),
        "thought_share": _ratio(len(thoughts), len(steps)),
        "tool_call_share": _ratio(calls, len(steps)),
        "thoughts_per_call": _ratio(len(thoughts), calls),
        "ends_with_thought": float(bool(steps) and steps[-1].type == "thought"),
        "total_chars": float(sum(len(step.content or "") for step in steps)),
        "thought_chars": _mean(len(text.raw) for text in thoughts),
        "first_thought_chars": float(len(thoughts[0].raw)) if thoughts else 0.0,
        "last_thought_chars": float(len(thoughts[-1].raw)) if thoughts else 0.0,
        "observation_chars": _mean(len(text.raw) for text in seen),
        "last_observation_chars": float(len(seen[-1].raw)) if seen else 0.0,
        "objective_chars": float(len(trace.task.objective)),
        "answer_chars": float(len(trace.outcome.result_summary)),
    }


def _calls(calls: Sequence[TraceStep]) -> dict[str, float]:
    names = [step.tool.name if step.tool else "" for step in calls]
    asked = [(name, repr(step.input)) for name, step in zip(names, calls, strict=True)]
    counted = Counter(name[:_NAME_CHARS] for name in names if name)
    found = {
        "repeated_calls": float(len(asked) - len(set(asked))),
        "longest_same_tool": float(max((len(list(run)) for _, run in groupby(names)), default=0)),
        "calls_per_tool": _ratio(len(names), len(set(names))),
        "arguments_per_call": _mean(len(step.input or ()) for step in calls),
        "retries": float(sum(step.tries - 1 for step in calls)),
    }
    # A Counter keeps the order in which names were first counted.
    return found | {CALLED + name: float(counted[name]) for name in list(counted)[:_TOOLS]}


def _failures(steps: Sequence[TraceStep], seen: Sequence[Text]) -> dict[str, float]:
    recoveries = [at for at, step in enumerate(steps) if step.type == "error_recovery"]
    # Many tools return their errors as plain text, and their failures as nothing.
    failing = [not text.raw.strip() or FAILED.count(_beginning(text)) > 0 for text in seen]
    return {
        "error_share": _ratio(len(recoveries), len(steps)),
        "after_last_error": _ratio(len(steps) - 1 - recoveries[-1], len(steps))
        if recoveries
        else 1.0,
        "failing_observations": float(sum(failing)),
        "failing_observation_share": _ratio(sum(failing), len(failing)),
        "last_observation_fails": float(bool(failing) and failing[-1]),
        "same_observations": float(len(seen) - len({text.raw for text in seen})),
    }


def _thinking(thoughts: Sequence[Text]) -> dict[str, float]:
    alike = [
        _ratio(len(one.vocabulary & other.vocabulary), len(one.vocabulary | other.vocabulary))
        for one, other in pairwise(thoughts)
    ]
    return {
        "thoughts_alike": _mean(alike),
        "most_alike_thoughts": max(alike, default=0.0),
        "thoughts_unsure": _mean(UNSURE.count(text) for text in thoughts),
        "thoughts_unable": _mean(UNABLE.count(text) for text in thoughts),
        "thoughts_negated": _mean(NEGATED.count(text) for text in thoughts),
        "thoughts_reasoned": _mean(REASONED.count(text) for text in thoughts),
        "thoughts_asking": _mean(QUESTION.count(text) for text in thoughts),
    }


def _wording(answer: Text) -> dict[str, float]:
    lines = answer.raw.strip().splitlines()
    return {
        "answer_lines": float(len(lines)),
        "answer_last_line_words": float(len(Text(lines[-1], _TEXT_CHARS).words)) if lines else 0.0,
        "answer_numbers": float(len(answer.numbers())),
        "answer_names": float(len(answer.names())),
        "answer_capitals": _ratio(sum(map(str.isupper, answer.raw)), len(answer.raw)),
        "answer_unsure": float(UNSURE.count(answer)),
        "answer_unable": float(UNABLE.count(answer)),
        "answer_done": float(DONE.count(answer)),
        "answer_negated": float(NEGATED.count(answer)),
        "answer_asks": float(QUESTION.count(Text(answer.raw.rstrip()[-1:], 1))),
        "answer_questions": float(QUESTION.count(answer)),
        "answer_exclaims": float(EXCLAMATION.count(answer)),
    }


def _overlaps(
    objective: Text, steps: Sequence[TraceStep], seen: Sequence[Text], answer: Text
) -> dict[str, float]:
    asked, said = objective.vocabulary, answer.vocabulary
    known = frozenset[str]().union(*(text.vocabulary for text in seen))
    last = seen[-1].vocabulary if seen else frozenset[str]()
    inputs = " ".join(str(value) for step in steps for value in (step.input or {}).values())
    given = Text(inputs, 4 * _TEXT_CHARS).vocabulary
    named = frozenset(name.lower() for name in answer.names())
    figures = frozenset(answer.numbers())
    return {
        "objective_numbers": float(len(objective.numbers())),
        "objective_names": float(len(objective.names())),
        "objective_sentences": float(SENTENCE_END.count(objective)),
        "objective_in_answer": _ratio(len(asked & said), len(asked)),
        "objective_in_inputs": _ratio(len(asked & given), len(asked)),
        "objective_in_observations": _ratio(len(asked & known), len(asked)),
        "objective_in_last_observation": _ratio(len(asked & last), len(asked)),
        "answer_from_objective": _ratio(len(asked & said), len(said)),
        "answer_from_observations": _ratio(len(said & known), len(said)),
        "answer_from_last_observation": _ratio(len(said & last), len(said)),
        "answer_names_unseen": _ratio(len(named - known - asked), len(named)),
        "answer_numbers_seen": _ratio(len(figures & known), len(figures)),
        "inputs_from_observations": _ratio(len(given & known), len(given)),
    }


def _text(step: TraceStep) -> Text:
    return Text(step.content, _TEXT_CHARS)


def _beginning(text: Text) -> Text:
    return text if len(text.raw) <= _FAILURE_CHARS else Text(text.raw, _FAILURE_CHARS)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return _ratio(sum(listed), len(listed))
