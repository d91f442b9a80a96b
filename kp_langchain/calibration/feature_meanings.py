"""The meaning of each feature, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kp_langchain.calibration.features import CALLED

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "looked_successful": "1 if the run looked successful by itself",
        "proves_failure": "1 if an error or a limit ended the run",
        # Sizes.
        "steps": "steps",
        "step_types": "different kinds of steps",
        "thoughts": "thoughts",
        "tool_calls": "tool calls",
        "observations": "results of tools",
        "thought_share": "share of thoughts among the steps",
        "tool_call_share": "share of tool calls among the steps",
        "thoughts_per_call": "thoughts for each tool call",
        "ends_with_thought": "1 if the last step is a thought",
        "total_chars": "characters of all steps",
        "thought_chars": "characters of a thought, on average",
        "first_thought_chars": "characters of the first thought",
        "last_thought_chars": "characters of the last thought",
        "observation_chars": "characters of a tool's result, on average",
        "last_observation_chars": "characters of the last tool's result",
        # Tools.
        "distinct_tools": "different tools used",
        "repeated_calls": "tool calls that repeat an earlier one exactly",
        "longest_same_tool": "calls of one tool in a row, at most",
        "calls_per_tool": "calls for each tool used",
        "arguments_per_call": "arguments of a tool call, on average",
        "retries": "times a call was tried again",
        "inputs_from_observations": "share of the words in tool inputs that earlier results have",
        # Errors.
        "error_recoveries": "errors after which the run went on",
        "error_share": "share of such errors among the steps",
        "after_last_error": "share of the steps that came after the last error; 1 without errors",
        "failing_observations": "tool calls that failed",
        "failing_observation_share": "share of them among the tool calls that ended",
        "last_observation_fails": "1 if the last tool call failed",
        "same_observations": "results of tools that repeat an earlier one",
        # Thoughts.
        "thoughts_alike": "how alike each thought and the next are, on average",
        "most_alike_thoughts": "how alike two thoughts in a row are, at most",
        "thoughts_unsure": "words of doubt in a thought, on average",
        "thoughts_unable": "words of inability or regret in a thought, on average",
        "thoughts_negated": "words of negation in a thought, on average",
        "thoughts_reasoned": "words of reasoning in a thought, on average",
        "thoughts_asking": "questions in a thought, on average",
        # The task.
        "objective_chars": "characters of the task",
        "objective_numbers": "numbers in the task",
        "objective_names": "capitalised words in the task",
        "objective_sentences": "sentences of the task",
        "objective_in_answer": "share of the task's words that the answer has",
        "objective_in_inputs": "share of the task's words that were given to tools",
        "objective_in_observations": "share of the task's words that the tools' results have",
        "objective_in_last_observation": "share of the task's words that the last result has",
        # The answer.
        "answer_chars": "characters of the answer",
        "answer_lines": "lines of the answer",
        "answer_last_line_words": "words in the answer's last line",
        "answer_numbers": "numbers in the answer",
        "answer_names": "capitalised words in the answer",
        "answer_capitals": "share of capital letters in the answer",
        "answer_unsure": "words of doubt in the answer",
        "answer_unable": "words of inability or regret in the answer",
        "answer_done": "words of completion in the answer",
        "answer_negated": "words of negation in the answer",
        "answer_asks": "1 if the answer ends with a question",
        "answer_questions": "questions in the answer",
        "answer_exclaims": "exclamation marks in the answer",
        "answer_from_objective": "share of the answer's words that the task has",
        "answer_from_observations": "share of the answer's words that the tools' results have",
        "answer_from_last_observation": "share of the answer's words that the last result has",
        "answer_names_unseen": "share of the answer's capitalised words seen nowhere before",
        "answer_numbers_seen": "share of the answer's numbers that the tools' results have",
    }
)
"""By feature, without those that count the calls of one tool; `meaning_of` has all of them."""

_YES_OR_NO = "1 if "  # how the meaning of a feature begins that is 1 or 0

_SURFACE = frozenset(
    {
        "steps", "step_types", "thoughts", "tool_calls", "observations",
        "thought_share", "tool_call_share", "thoughts_per_call",
        "total_chars", "thought_chars", "first_thought_chars", "last_thought_chars",
        "observation_chars", "last_observation_chars",
        "distinct_tools", "longest_same_tool", "calls_per_tool", "arguments_per_call",
        "objective_chars", "objective_numbers", "objective_names", "objective_sentences",
        "answer_chars", "answer_lines", "answer_last_line_words", "answer_numbers",
        "answer_names", "answer_capitals",
    }
)  # fmt: skip


def is_surface(feature: str) -> bool:
    """Return whether a feature only measures sizes or counts, of any content."""
    return feature in _SURFACE or feature.startswith(CALLED)


def meaning_of(feature: str) -> str:
    """Return the meaning of a feature in a few words; for an unknown one, its name."""
    if feature.startswith(CALLED):
        return f"calls of the tool {feature.removeprefix(CALLED)}"
    return MEANINGS.get(feature, feature)


def leaning(feature: str, *, is_for: bool) -> str:
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
