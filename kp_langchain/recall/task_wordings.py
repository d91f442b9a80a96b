"""How the tasks of runs are worded, and by which phrases tasks of one wording differ.

How many patients are in surgery?
How many patients are in maternity?   ->   How many patients are in …?   surgery, maternity
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import NamedTuple

from kp_langchain.recall.deciding_calls import NAME, VALUE
from kp_langchain.recall.prompt_text import clean_line
from kp_langchain.recall.run_paths import RunPath
from kp_langchain.recall.shared_text import Gap, shared_text
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.values import members

GAP = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for what differs between tasks."""

_ALIKE = 0.6  # the share of words, but those of values, in which tasks of one wording agree
_MOST_TASKS, _READ_CHARS, _MOST_CHARS = 60, 600, 140
_VALUE_CHARS = 60
_TOKEN = re.compile(r"\w+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_DIGITS, _NO_LETTERS = re.compile(r"\d+"), re.compile(r"\W")
_MARKS = " '\".,;:?!"


class Wording(NamedTuple):
    """Tasks in the same words.

    Attributes:
        text: The task on one line, with `…` for values and for what differs.
        phrases: For each place that differs, the phrase that stands there in each task.
        tasks: The tasks in words.
    """

    text: str
    phrases: tuple[Mapping[str, str], ...]
    tasks: tuple[str, ...]


def words_of(text: str) -> list[str]:
    """Return the words of at least three letters of a text, in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]


def task_text(run: RunPath) -> str:
    """Return the beginning of a run's task, as wordings have it."""
    return run.objective[:_READ_CHARS]


def wordings_of(runs: Iterable[RunPath]) -> list[Wording]:
    """Return the wordings of the tasks of runs, that of most tasks first.

    Args:
        runs: The runs; of more than 60 tasks, 60 are looked at.
    """
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(task_text(run), set()).update(_input_values(run))
    words = {
        task: _TOKEN.findall(_blanked(task, GAP, values[task]).casefold())
        for task in islice(sorted(values), _MOST_TASKS)
    }
    wordings = [_wording(tasks, values) for tasks in _together(words)]
    return sorted(wordings, key=lambda one: (-len(one.tasks), len(one.text), one.text))


def _together(words: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return groups of tasks: each task is in the first whose first task is like it."""
    groups: list[list[str]] = []
    for task, own in words.items():
        for others in groups:
            matcher = SequenceMatcher(None, words[others[0]], own, autojunk=False)
            if matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE:
                others.append(task)
                break
        else:
            groups.append([task])
    return groups


def _wording(tasks: Sequence[str], values: Mapping[str, set[str]]) -> Wording:
    pieces = shared_text(tasks).pieces
    gaps = [piece for piece in pieces if isinstance(piece, Gap)]
    text = "".join(one if isinstance(one, str) else one.frame(GAP) for one in pieces)
    known = set[str]().union(*(values[task] for task in tasks))
    return Wording(
        text=_line(_blanked(text, GAP, known)),
        phrases=tuple(
            {task: phrase.strip(_MARKS) for task, phrase in gap.texts.items()} for gap in gaps
        ),
        tasks=tuple(tasks),
    )


def _blanked(text: str, blank: str, values: Iterable[str]) -> str:
    """Return a text with a blank for each value: those known, numbers, ids, names, quoted texts."""
    for value in sorted(values, key=lambda value: (-len(value), value)):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", blank, text, flags=re.IGNORECASE)
    for pattern in (PLACEHOLDER, VALUE, NAME):
        text = pattern.sub(blank, text)
    return text


def _input_values(run: RunPath) -> Iterator[str]:
    """Yield the short texts in the inputs of a run."""
    for call in run.calls:
        for _, value in members(dict(call.inputs)):
            if isinstance(value, str) and 1 < len(value.strip()) <= _VALUE_CHARS:
                yield value.strip()


def _line(text: str) -> str:
    text = re.sub(rf"{GAP}(?:[ ,-]*{GAP})+", GAP, text)
    return clean_line(text, _MOST_CHARS).replace("`", "'").rstrip(" .!?")


def telling_phrases(
    wordings: Iterable[Wording], values: Mapping[str, str], told: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return the phrase of each task that tells a value; none where that may be chance.

    In each wording it is what differs at the only place where another phrase goes with another
    value.

    Args:
        wordings: How the tasks are worded.
        values: The value of each task.
        told: What tells other values in each task.
    """
    phrases: dict[str, str] = {}
    for wording in wordings:
        places = []
        for place in wording.phrases:
            rest = {task: _without(one, told.get(task, ())) for task, one in place.items()}
            of_place = {task: one for task, one in rest.items() if one and task in values}
            pairs = [(one, values[task]) for task, one in of_place.items()]
            if pairs and _is_one_to_one(pairs):
                places.append(of_place)
        if len(places) == 1:
            phrases |= places[0]
    told_values = {(phrase.casefold(), values[task]) for task, phrase in phrases.items()}
    is_enough = 2 * len(phrases) >= len(values)
    is_one = len(told_values) == len({phrase for phrase, _ in told_values})
    return phrases if is_enough and is_one else {}


def _without(phrase: str, others: Collection[str]) -> str:
    for other in others:
        phrase = re.sub(rf"(?<!\w){re.escape(other)}(?!\w)", "", phrase, flags=re.IGNORECASE)
    return " ".join(phrase.split()).strip(_MARKS)


def _is_one_to_one(pairs: Iterable[tuple[str, str]]) -> bool:
    """Return whether the same always goes with the same, and another with another."""
    different = {(one.casefold(), other.casefold()) for one, other in pairs}
    return all(len({pair[side] for pair in different}) == len(different) for side in (0, 1))
