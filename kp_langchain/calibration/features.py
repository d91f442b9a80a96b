"""A trace as numbers, for a model to learn from.

The store keeps the numbers for good, even after it has deleted the text. They contain nothing of
the text but the names of tools. They ignore what was reported or judged of the run: otherwise a
model would learn a verdict from itself.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from kp_langchain.calibration.wording import (
    DONE,
    EXCLAMATION,
    NEGATED,
    QUESTION,
    REASONED,
    SENTENCE_END,
    UNABLE,
    UNSURE,
    Text,
    output_failed,
)
from kp_langchain.scoring.dimensions import TraceShape

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace, TraceStep

FEATURES_VERSION = 2
"""Raised when the meaning of a name changes; a new name needs no new version."""

VERSION = "features_version"
"""The name of the feature that is the version."""
LOOKED_SUCCESSFUL = "looked_successful"
"""The name of the feature that is 1 if the run looked successful by itself."""
PROVES_FAILURE = "proves_failure"
"""The name of the feature that is 1 if the run proves that it failed; see `features_of`."""
CALLED = "called:"
"""The prefix of features that count the calls of one tool."""

_YES_OR_NO = "1 if "  # how the meaning of a feature begins that is 1 or 0

_BASIC = {field.name for field in fields(TraceShape)} | {LOOKED_SUCCESSFUL, PROVES_FAILURE}

# Bounds on the work for one run.
_TEXT_CHARS = 1000
_STEPS = 60  # half of them from the beginning, half from the end
_TOOLS = 20  # counted by name
_NAME_CHARS = 60


def features_of(
    trace: ReasoningTrace,
    *,
    looked_successful: bool | None = None,
    proves_failure: bool | None = None,
) -> dict[str, float]:
    """Return the features of a redacted trace: finite numbers, none below 0.

    They depend on the steps, the objective and the result alone, not on success, confidence or
    score. The names are fixed, except for one `called:<tool>` for each of the first 20 tools.

    Args:
        trace: The trace.
        looked_successful: Whether the run looked successful by itself, before any report or
            verdict; None leaves that feature out.
        proves_failure: Whether it proves that it failed: an error or a limit ended it; None leaves
            that feature out.
    """
    half = _STEPS // 2
    steps = trace.steps if len(trace.steps) <= _STEPS else trace.steps[:half] + trace.steps[-half:]
    thoughts = [_text(step) for step in steps if step.type == "thought"]
    observations = [_text(step) for step in steps if step.type == "observation"]
    answer = Text(trace.outcome.result_summary, _TEXT_CHARS)
    objective = Text(trace.task.objective, _TEXT_CHARS)
    shape = TraceShape.of(trace)
    features = {VERSION: float(FEATURES_VERSION)}
    features |= {field.name: float(getattr(shape, field.name)) for field in fields(shape)}
    features |= _sizes(trace, steps, thoughts, observations)
    features |= _calls([step for step in steps if step.type == "tool_call"])
    ended_by_error = looked_successful is False and proves_failure is False
    features |= _failures(steps, observations, ended_by_error=ended_by_error)
    features |= _thinking(thoughts)
    features |= _wording(answer)
    features |= _overlaps(objective, steps, observations, answer)
    if looked_successful is not None:
        features[LOOKED_SUCCESSFUL] = float(looked_successful)
    if proves_failure is not None:
        features[PROVES_FAILURE] = float(proves_failure)
    return features


def basic_features(
    trace: ReasoningTrace, *, looked_successful: bool, proves_failure: bool
) -> dict[str, float]:
    """Return the features that are computed for every run.

    `complete_features` adds the others.

    Args:
        trace: The trace.
        looked_successful: As for `features_of`.
        proves_failure: As for `features_of`.
    """
    shape = TraceShape.of(trace)
    features = {field.name: float(getattr(shape, field.name)) for field in fields(shape)}
    return features | {
        LOOKED_SUCCESSFUL: float(looked_successful),
        PROVES_FAILURE: float(proves_failure),
    }


def complete_features(
    features: Mapping[str, float] | None, trace: ReasoningTrace | None
) -> Mapping[str, float] | None:
    """Return all features of a trace of which the basic ones are known.

    Args:
        features: What is known; returned as it is if that is more than the basic ones, or None.
        trace: The trace; None if it is gone.
    """
    if features is None or trace is None or features.keys() != _BASIC:
        return features
    looked, proves = features.get(LOOKED_SUCCESSFUL), features.get(PROVES_FAILURE)
    return features_of(
        trace,
        looked_successful=None if looked is None else bool(looked),
        proves_failure=None if proves is None else bool(proves),
    )


def _sizes(
    trace: ReasoningTrace,
    steps: Sequence[TraceStep],
    thoughts: Sequence[Text],
    observations: Sequence[Text],
) -> dict[str, float]:
    calls = sum(step.type == "tool_call" for step in steps)
    return {
        "tool_calls": float(calls),
        "observations": float(len(observations)),
        "thought_share": _ratio(len(thoughts), len(steps)),
        "tool_call_share": _ratio(calls, len(steps)),
        "thoughts_per_call": _ratio(len(thoughts), calls),
        "ends_with_thought": float(bool(steps) and steps[-1].type == "thought"),
        "total_chars": float(sum(len(step.content or "") for step in steps)),
        "thought_chars": _mean(len(text.raw) for text in thoughts),
        "first_thought_chars": float(len(thoughts[0].raw)) if thoughts else 0.0,
        "last_thought_chars": float(len(thoughts[-1].raw)) if thoughts else 0.0,
        "observation_chars": _mean(len(text.raw) for text in observations),
        "last_observation_chars": float(len(observations[-1].raw)) if observations else 0.0,
        "objective_chars": float(len(trace.task.objective)),
        "answer_chars": float(len(trace.outcome.result_summary)),
    }


def _calls(calls: Sequence[TraceStep]) -> dict[str, float]:
    names = [step.tool.name if step.tool else "" for step in calls]
    signatures = [(name, repr(step.input)) for name, step in zip(names, calls, strict=True)]
    by_name = Counter(name[:_NAME_CHARS] for name in names if name)
    features = {
        "repeated_calls": float(len(signatures) - len(set(signatures))),
        "longest_same_tool": float(max((len(list(run)) for _, run in groupby(names)), default=0)),
        "calls_per_tool": _ratio(len(names), len(set(names))),
        "arguments_per_call": _mean(len(step.input or ()) for step in calls),
        "retries": float(sum(step.tries - 1 for step in calls)),
    }
    # A Counter keeps the order of first occurrence.
    return features | {CALLED + name: float(by_name[name]) for name in list(by_name)[:_TOOLS]}


def _failures(
    steps: Sequence[TraceStep], observations: Sequence[Text], *, ended_by_error: bool
) -> dict[str, float]:
    recoveries = [index for index, step in enumerate(steps) if step.type == "error_recovery"]
    outputs = [output_failed(step.type, step.tool, step.content) for step in steps]
    # The error that nothing followed is an observation, and may read like any other output.
    if ended_by_error and outputs and outputs[-1] is not None:
        outputs[-1] = True
    fails = [failed for failed in outputs if failed is not None]
    return {
        "error_share": _ratio(len(recoveries), len(steps)),
        "after_last_error": _ratio(len(steps) - 1 - recoveries[-1], len(steps))
        if recoveries
        else 1.0,
        "failing_observations": float(sum(fails)),
        "failing_observation_share": _ratio(sum(fails), len(fails)),
        "last_observation_fails": float(bool(fails) and fails[-1]),
        "same_observations": float(len(observations) - len({text.raw for text in observations})),
    }


def _thinking(thoughts: Sequence[Text]) -> dict[str, float]:
    similarities = [
        _ratio(len(one.vocabulary & other.vocabulary), len(one.vocabulary | other.vocabulary))
        for one, other in pairwise(thoughts)
    ]
    return {
        "thoughts_alike": _mean(similarities),
        "most_alike_thoughts": max(similarities, default=0.0),
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
    objective: Text, steps: Sequence[TraceStep], observations: Sequence[Text], answer: Text
) -> dict[str, float]:
    task, result = objective.vocabulary, answer.vocabulary
    source = frozenset[str]().union(*(text.vocabulary for text in observations))
    last = observations[-1].vocabulary if observations else frozenset[str]()
    input_text = " ".join(str(value) for step in steps for value in (step.input or {}).values())
    inputs = Text(input_text, 4 * _TEXT_CHARS).vocabulary
    names = frozenset(name.lower() for name in answer.names())
    numbers = frozenset(answer.numbers())
    return {
        "objective_numbers": float(len(objective.numbers())),
        "objective_names": float(len(objective.names())),
        "objective_sentences": float(SENTENCE_END.count(objective)),
        "objective_in_answer": _ratio(len(task & result), len(task)),
        "objective_in_inputs": _ratio(len(task & inputs), len(task)),
        "objective_in_observations": _ratio(len(task & source), len(task)),
        "objective_in_last_observation": _ratio(len(task & last), len(task)),
        "answer_from_objective": _ratio(len(task & result), len(result)),
        "answer_from_observations": _ratio(len(result & source), len(result)),
        "answer_from_last_observation": _ratio(len(result & last), len(result)),
        "answer_names_unseen": _ratio(len(names - source - task), len(names)),
        "answer_numbers_seen": _ratio(len(numbers & source), len(numbers)),
        "inputs_from_observations": _ratio(len(inputs & source), len(inputs)),
    }


def _text(step: TraceStep) -> Text:
    return Text(step.content, _TEXT_CHARS)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return _ratio(sum(numbers), len(numbers))


# ------------------------------------------------------------------ what they mean


def meaning_of(feature: str) -> str:
    """Return the meaning of a feature in a few words; for an unknown one, its name."""
    if feature.startswith(CALLED):
        return f"calls of the tool {feature.removeprefix(CALLED)}"
    return meanings().get(feature, feature)


def direction_text(feature: str, *, is_for: bool) -> str:
    """Return in words what speaks for success, as `steps (fewer)`.

    Args:
        feature: The feature's name.
        is_for: Whether a high value of it speaks for success, rather than a low one.
    """
    meaning = meaning_of(feature)
    if meaning.startswith(_YES_OR_NO):
        return f"{meaning.removeprefix(_YES_OR_NO)} ({'yes' if is_for else 'no'})"
    if meaning.startswith(("share of", "how alike")):
        return f"{meaning} ({'higher' if is_for else 'lower'})"
    return f"{meaning} ({'more' if is_for else 'fewer'})"


@cache
def meanings() -> Mapping[str, str]:
    """Return the meanings by feature, without those that count the calls of one tool."""
    file = resources.files("kp_langchain.calibration").joinpath("feature_meanings.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
