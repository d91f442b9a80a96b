"""What the inputs of several runs have in common, and the rest as placeholders.

    SELECT count(*) FROM customers WHERE tier = 'gold'
    SELECT COUNT(*) FROM customers WHERE tier = 'silver'   ->   SELECT count(*) FROM customers
                                                                WHERE tier = '{tier}'

An argument that is the same in all runs stays. One that differs, or is from the task, becomes a
placeholder; of a longer text, only the parts that differ do. Whatever a single run or a single task
has is in no template.

A placeholder says where its value comes from, with pairs of real values: the task has it; an output
of an earlier call has it; or a phrase of the task tells it (`"surgery" -> SUR`), if the same phrase
always goes with the same value and another with another.

Where the task and the outputs do not have the values, few of them (half as many as tasks at most)
are a choice: what was done differs by them, and runs that chose differently may belong to different
patterns. More than three are none if phrases tell two thirds of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kp_langchain.recall.deciding_calls import WHOLE_CHARS, holds
from kp_langchain.recall.prompt_text import clean_line, without_markers
from kp_langchain.recall.run_paths import RunPath
from kp_langchain.recall.shared_text import shared_text
from kp_langchain.recall.task_wordings import (
    Wording,
    task_text,
    telling_phrases,
)
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.text import printable
from kp_langchain.values import members

_FEWEST_KEPT = 0.5  # of the words and values of a text; else all of it is a placeholder
_MOST = 2 / 3  # of the runs have a value in their task, or in the output of a step
_BREAK = re.compile(r"[\n\r;{}\[\]]|\\n")  # between records of an output
# Five words in a row, or a long run of characters of a script without blanks.
_PROSE = re.compile(
    r"(?:[^\W\d_]{2,}[\s_,.:'\"/-]{1,2}){4}[^\W\d_]{2,}|[^\W\d_]{25,}"
    r"|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]{8,}"
)
_OUTPUT_VALUE_CHARS = 2  # a shorter one is in most longer outputs
NAME_CHARS, _PAIR_CHARS = 40, 60  # of the names of arguments, and of each text of a pair
_MOST_PAIRS = 2
_MOST_CHOICES = 3  # of so few values, each may be a plan of its own
_MARKS = " '\""
_NAME = re.compile(r"\w[\w .-]*")
TASK, PROSE = "the task", "your own words"


@dataclass(frozen=True, slots=True)
class Blank:
    """A part of a template that differs between runs.

    Attributes:
        name: What it stands for, in words.
        source: Where it comes from: `the task`, `step 1`, `your own words`; "" if unknown.
        pairs: Real values, each after what tells it: where it stands, or a phrase of the task; ""
            if that is the value itself.
        is_text: Whether it is an argument that is a text, which stands in quotes.
    """

    name: str
    source: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    is_text: bool = True

    def __str__(self) -> str:
        return f"{{{self.name}}}"


@dataclass
class Arguments:
    """The input of a step as a template.

    Attributes:
        template: The input by argument, with placeholders.
        blanks: The placeholders, in their order.
        constants: How many words and values stay.
    """

    template: dict[str, Any] = field(default_factory=dict)
    blanks: list[Blank] = field(default_factory=list)
    constants: int = 0


class Templates:
    """The inputs of the steps of runs; the same values have the same placeholder in all of them.

    Args:
        runs: The runs; at least one. They called the same tools.
        wordings: How their tasks are worded.

    Attributes:
        steps: The input of each step.
        choices: By which placeholders, as `step name`, runs differ in what they did: what each has,
            by the id of its trace.
    """

    def __init__(self, runs: Sequence[RunPath], wordings: Sequence[Wording]) -> None:
        self._wordings = wordings
        self._tasks = len({run.task for run in runs})
        self._names: dict[tuple[object, ...], Blank] = {}  # by what stands there in each run
        self._told: defaultdict[str, set[str]] = defaultdict(set)  # phrases, by task
        self._result = Arguments()
        self.steps: list[Arguments] = []
        self.choices: dict[str, dict[str, str]] = {}
        for at in range(len(runs[0].calls)):
            self._outputs = {run.trace_id: [call.output for call in run.calls[:at]] for run in runs}
            self._result = Arguments()
            self.steps.append(self._result)
            uses = [_Use(run, run.calls[at].inputs) for run in runs]
            self._result.template |= self._by_key(uses)

    def _by_key(self, uses: Sequence[_Use]) -> dict[str, Any]:
        """Return the values of the keys that all uses have, as templates."""
        keys = [key for key in uses[0].value if all(key in one.value for one in uses)]
        names = {clean_line(key, NAME_CHARS): key for key in keys}
        return {
            name: self._template(name, [one._replace(value=one.value[key]) for one in uses])
            for name, key in names.items()
            if name
        }

    def _template(self, name: str, uses: Sequence[_Use]) -> Any:
        """Return what some uses have in common; `name` says what it is."""
        if all(isinstance(one.value, dict) for one in uses) and (parts := self._by_key(uses)):
            return parts
        is_text = all(isinstance(one.value, str) for one in uses)
        if len(str(uses[0].value)) <= WHOLE_CHARS and self._source(uses) == TASK:
            return str(self._blank(name, uses))  # also if all tasks happen to say the same
        texts = {one.text for one in uses}
        if not is_text and len(texts) == 1 and not PLACEHOLDER.search(uses[0].text):
            self._result.constants += uses[0].value not in (None, {}, [])
            return _clean_value(uses[0].value)
        if is_text and any(one.value.strip() for one in uses):
            return self._text(name, uses)
        return str(self._blank(name, uses))

    def _text(self, name: str, uses: Sequence[_Use]) -> str:
        """Return a text with placeholders where it differs."""
        shared = shared_text(one.value for one in uses)
        if shared.kept_words < _FEWEST_KEPT * shared.words:
            return str(self._blank(name, uses))
        parts: list[str] = []
        for piece in shared.pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            having = [one for one in uses if one.value in piece.texts]
            blank = self._blank(
                piece.label or "value",
                [one._replace(value=piece.texts[one.value]) for one in having],
                is_part=True,
            )
            parts.append(piece.frame(str(blank)))
        self._result.constants += shared.kept_words
        return _clean_text("".join(parts))

    def _blank(self, name: str, uses: Sequence[_Use], *, is_part: bool = False) -> Blank:
        """Return a placeholder; the same for what is the same in each run."""
        values = tuple((one.run.trace_id, one.text.casefold()) for one in uses)
        blank = self._names.get(values)
        if blank is None:
            blank = self._explained(self._name(name), uses)
            is_text = not is_part and all(isinstance(one.value, str) for one in uses)
            blank = self._names[values] = replace(blank, is_text=is_text)
        if blank not in self._result.blanks:
            self._result.blanks.append(blank)
        return blank

    def _explained(self, name: str, uses: Sequence[_Use]) -> Blank:
        """Return a placeholder with where its value comes from; note it if it is a choice."""
        source = self._source(uses)
        if source == TASK:
            for one in uses:
                self._told[one.task].add(one.text)
            return Blank(name, TASK, _pairs((("", one.text) for one in uses), 1))
        if source:
            step = int(source.split()[1]) - 1
            given = [(self._outputs[one.run.trace_id][step].strip(), one) for one in uses]
            shown = [(_passage(output, one.text), one.text) for output, one in given]
            shown.sort(key=lambda pair: pair[0] == pair[1])
            return Blank(name, source, _pairs(shown, 1))
        values = {one.task: one.text for one in uses}
        phrases = telling_phrases(self._wordings, values, self._told)
        told = [(phrase, values[task]) for task, phrase in phrases.items()]
        for task, phrase in phrases.items():
            self._told[task].add(phrase)
        different = len({value.casefold() for value in values.values()})
        is_told = len(told) >= _MOST * len(values) and different > _MOST_CHOICES
        if 1 < different <= self._tasks / 2 and not is_told:
            of_runs = {one.run.trace_id: one.text.casefold() for one in uses}
            self.choices[f"{len(self.steps) - 1} {name}"] = of_runs
        if not told:
            is_prose = any(len(value.split()) > 1 for value in values.values())
            return Blank(name, PROSE if is_prose else "")
        shown = sorted(told, key=lambda pair: len(pair[0]))
        return Blank(name, TASK, _pairs(shown, _MOST_PAIRS))

    def _source(self, uses: Sequence[_Use]) -> str:
        """Return where the values of most runs are: the task, or the first step that gave them."""
        counts: Counter[str] = Counter()
        for one in uses:
            leaves = (str(value).strip(_MARKS).casefold() for value in _leaves(one.value))
            if not (parts := [part for part in leaves if part]):
                continue
            counts[TASK] += all(holds(one.run.objective.casefold(), part) for part in parts)
            for number, output in enumerate(self._outputs[one.run.trace_id], start=1):
                is_short = len(output) <= WHOLE_CHARS
                counts[f"step {number}"] += all(
                    holds(output.casefold(), part)
                    and (is_short or len(part) >= _OUTPUT_VALUE_CHARS)
                    for part in parts
                )
        enough = [name for name, count in counts.items() if count >= _MOST * len(uses)]
        return min(enough, key=lambda name: (name != TASK, len(name), name), default="")

    def _name(self, name: str) -> str:
        """Return a name that no other placeholder has."""
        match = _NAME.search(" ".join(name.replace("_", " ").split()))
        label = match[0][:NAME_CHARS].strip(" .-") if match else "value"
        taken = {one.name for one in self._names.values()}
        names = (f"{label} {number}".removesuffix(" 1") for number in range(1, len(taken) + 2))
        return next(one for one in names if one not in taken)


class _Use(NamedTuple):
    """What one run gave a step, or a part of it."""

    run: RunPath
    value: Any

    @property
    def task(self) -> str:
        return task_text(self.run)

    @property
    def text(self) -> str:
        value = self.value
        text: str = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return text.strip(_MARKS)


def _pairs(pairs: Iterable[tuple[str, str]], most: int) -> tuple[tuple[str, str], ...]:
    """Return pairs as they may be shown: the first of each value, and of these the last, too."""
    of_value: dict[str, str] = {}
    for pair in sorted(pairs, key=lambda pair: len(pair[0]) > _PAIR_CHARS):
        if not any(PLACEHOLDER.search(one) or _PROSE.search(one) for one in pair):
            told_by, value = (clean_line(one, _PAIR_CHARS).replace("`", "'") for one in pair)
            of_value.setdefault(value, told_by)
    shown = [(told_by, value) for value, told_by in of_value.items()]
    return tuple(shown[:1] if most == 1 else shown[: most - 1] + shown[most - 1 :][-1:])


def _is_short(output: str) -> bool:
    """Return whether an output may be shown as a whole: prose may tell a model what to do."""
    return 0 < len(output) <= _PAIR_CHARS and not _PROSE.search(output)


def _leaves(value: Any) -> Iterator[Any]:
    for _, item in members(value):
        if isinstance(item, str | int | float) and not isinstance(item, bool):
            yield item


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, list):
        return [_clean_value(item) for item in value]
    if isinstance(value, dict):
        return {clean_line(key, NAME_CHARS): _clean_value(one) for key, one in value.items()}
    return value


def _clean_text(text: str) -> str:
    """Return a text as one that may stand in a prompt, its length and blanks as they are."""
    return printable(without_markers(text), keep="\n").replace("`", "'")


def _passage(output: str, value: str) -> str:
    """Return the record of an output that has a value, or the value alone where that is prose.

    Keys, codes and units tell what the value is. A sentence may tell a model what to do, and
    anybody may have written it.
    """
    records = (one.strip(" \t,\"'-") for one in (output, *_BREAK.split(output)))
    shown = (one for one in records if _is_short(one) and holds(one.casefold(), value.casefold()))
    return next(shown, value)
