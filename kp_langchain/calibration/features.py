"""What a trace shows of itself in numbers, for a model to learn from.

The numbers are kept for ever, the text may be gone; so they hold no text, and they must not
look at what the run was reported or judged to be, or a verdict would be learned from itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from kp_langchain.calibration import wording
from kp_langchain.scoring.dimensions import TraceShape

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace, TraceStep

FEATURES_VERSION = 1
"""Changed when a name gets another meaning; names may be added without."""

# Characters read of one text, and steps read of one trace: they bound what a run can cost.
_TEXT_CHARS = 1000
_STEPS = 60


def features_of(trace: ReasoningTrace) -> dict[str, float]:
    """Return the features of a redacted trace: fixed names, finite numbers, none below 0.

    They depend on the steps, the objective and the result alone: not on success, confidence,
    score or anything else that may hold a verdict.
    """
    steps = [*trace.steps[: _STEPS // 2], *trace.steps[_STEPS // 2 :][-_STEPS // 2 :]]
    answer = trace.outcome.result_summary
    found = {name: float(count) for name, count in asdict(TraceShape.of(trace)).items()}
    found |= _calls(steps)
    found |= _errors(steps)
    found |= _thoughts(steps)
    found |= _wording(answer)
    found |= _overlaps(trace.task.objective, steps, answer)
    found |= _ending(steps)
    return found


def _calls(steps: Sequence[TraceStep]) -> dict[str, float]:
    calls = [step for step in steps if step.type == "tool_call"]
    names = [step.tool.name if step.tool else "" for step in calls]
    asked = [(name, repr(step.input)) for name, step in zip(names, calls, strict=True)]
    return {
        "tool_calls": float(len(calls)),
        "tool_call_share": _share(len(calls), len(steps)),
        "repeated_calls": float(len(asked) - len(set(asked))),
        "repeated_call_share": _share(len(asked) - len(set(asked)), len(asked)),
        "longest_same_tool": float(max((len(list(g)) for _, g in groupby(names)), default=0)),
        "calls_per_tool": _share(len(calls), len(set(names))),
        "attempts": float(sum(step.attempts or 1 for step in steps) - len(steps)),
    }


def _errors(steps: Sequence[TraceStep]) -> dict[str, float]:
    seen = [_start(step) for step in steps if step.type == "observation"]
    bad = [not text.strip() or bool(wording.FAILED.search(text[:300])) for text in seen]
    last = max((at for at, step in enumerate(steps) if step.type == "error_recovery"), default=-1)
    return {
        "error_share": _share(sum(step.type == "error_recovery" for step in steps), len(steps)),
        "after_last_error": _share(len(steps) - 1 - last, len(steps)) if last >= 0 else 1.0,
        "observations": float(len(seen)),
        "failing_observations": float(sum(bad)),
        "failing_observation_share": _share(sum(bad), len(bad)),
        "last_observation_fails": float(bool(bad) and bad[-1]),
        "same_observations": float(len(seen) - len(set(seen))),
        "observation_chars": _mean(map(len, seen)),
        "last_observation_chars": float(len(seen[-1])) if seen else 0.0,
    }


def _thoughts(steps: Sequence[TraceStep]) -> dict[str, float]:
    texts = [_start(step) for step in steps if step.type == "thought"]
    alike = [_alike(one, other) for one, other in pairwise([_words(text) for text in texts])]
    return {
        "thought_share": _share(len(texts), len(steps)),
        "thought_chars": _mean(map(len, texts)),
        "thoughts_alike": _mean(alike),
        "most_alike_thoughts": max(alike, default=0.0),
        "unsure_thoughts": float(sum(bool(wording.UNSURE.search(text)) for text in texts)),
        "unable_thoughts": float(sum(bool(wording.UNABLE.search(text)) for text in texts)),
        "questions_asked": float(sum(bool(wording.QUESTION.search(text)) for text in texts)),
    }


def _wording(answer: str) -> dict[str, float]:
    text = answer[:_TEXT_CHARS]
    return {
        "answer_chars": float(len(answer)),
        "answer_lines": float(text.count("\n")),
        "answer_numbers": float(len(wording.NUMBER.findall(text))),
        "answer_unsure": float(len(wording.UNSURE.findall(text))),
        "answer_unable": float(len(wording.UNABLE.findall(text))),
        "answer_done": float(len(wording.DONE.findall(text))),
        "answer_negations": float(len(wording.NEGATION.findall(text))),
        "answer_asks": float(bool(wording.QUESTION.search(text.rstrip()[-1:]))),
        "answer_questions": float(len(wording.QUESTION.findall(text))),
        "answer_exclaims": float(len(wording.EXCLAMATION.findall(text))),
    }


def _overlaps(objective: str, steps: Sequence[TraceStep], answer: str) -> dict[str, float]:
    said, asked = _words(answer), _words(objective)
    seen = [_words(_start(step)) for step in steps if step.type == "observation"]
    all_seen = frozenset().union(*seen)
    inputs = _words(" ".join(repr(step.input) for step in steps if step.input)[: 4 * _TEXT_CHARS])
    figures = frozenset(wording.NUMBER.findall(answer[:_TEXT_CHARS]))
    return {
        "objective_chars": float(len(objective)),
        "objective_numbers": float(len(wording.NUMBER.findall(objective[:_TEXT_CHARS]))),
        "answer_from_objective": _share(len(said & asked), len(said)),
        "objective_in_answer": _share(len(said & asked), len(asked)),
        "objective_in_inputs": _share(len(inputs & asked), len(asked)),
        "objective_in_observations": _share(len(all_seen & asked), len(asked)),
        "answer_from_observations": _share(len(said & all_seen), len(said)),
        "answer_from_last_observation": _share(len(said & seen[-1]), len(said)) if seen else 0.0,
        "figures_from_observations": _share(len(figures & all_seen), len(figures)),
        "inputs_from_observations": _share(len(inputs & all_seen), len(inputs)),
    }


def _ending(steps: Sequence[TraceStep]) -> dict[str, float]:
    last = steps[-1].type if steps else ""
    return {
        "ends_with_thought": float(last == "thought"),
        "ends_with_call": float(last == "tool_call"),
    }


def _start(step: TraceStep) -> str:
    return (step.content or "")[:_TEXT_CHARS]


def _words(text: str) -> frozenset[str]:
    return frozenset(wording.WORD.findall(text[: 4 * _TEXT_CHARS].lower()))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    return _share(len(one & other), len(one | other))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
