"""What several texts have in common, and the rest as placeholders.

    SELECT count(*) FROM customers WHERE tier = 'gold'
    SELECT COUNT(*) FROM customers WHERE tier = 'silver'   ->   SELECT count(*) FROM customers
                                                                WHERE tier = '{tier from the task}'

An argument that is the same in all runs stays. One that differs, or is from the task, becomes a
placeholder that says where its value comes from; of a longer text, only the parts that differ do.
Whatever a single run or a single task has is in no template.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kp_langchain.recall.deciding_calls import WHOLE_CHARS, holds
from kp_langchain.recall.prompt_text import clean_line, without_markers
from kp_langchain.recall.run_paths import RunPath, Step
from kp_langchain.recall.shared_text import FEWEST_TASKS, MOST, Gap, Shared
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.text import printable
from kp_langchain.values import MAX_DEPTH, map_texts, members

_FEWEST_KEPT = 0.5  # of the words and values of a text; else all of it is a placeholder
_FEWEST_BESIDE = 2  # words and values stay beside placeholders
_OUTPUT_VALUE_CHARS = 2  # a shorter one is in most outputs
_NAME_CHARS = 40
_WORD = re.compile(r"\w[\w .-]*")
_TASK = "the task"


@dataclass(frozen=True, slots=True)
class Blank:
    """A part of a template that differs between runs.

    Attributes:
        name: What it stands for, in words.
        source: Where it comes from: `the task`, `step 1`; empty if that is not known.
    """

    name: str
    source: str = ""

    def __str__(self) -> str:
        return f"{{{self.name} from {self.source}}}" if self.source else f"{{{self.name}}}"


@dataclass
class Arguments:
    """The input of a step as a template.

    Attributes:
        template: The input by argument, with placeholders.
        optional: The arguments that not all runs give.
        blanks: The placeholders, by argument.
        constants: How many words and values stay.
    """

    template: dict[str, Any] = field(default_factory=dict)
    optional: list[str] = field(default_factory=list)
    blanks: dict[str, list[Blank]] = field(default_factory=dict)
    constants: int = 0


class _Use(NamedTuple):
    """What one run gave a step, or a part of it."""

    run: RunPath
    value: Any


def templates_of(runs: Sequence[RunPath], steps: Sequence[Sequence[Step]]) -> list[Arguments]:
    """Return the input of each step as a template.

    Args:
        runs: The runs; at least one.
        steps: The steps of each run; all have the same number.
    """
    builder = _Builder(runs, steps)
    return [builder.arguments(at) for at in range(len(steps[0]))]


class _Builder:
    """Builds the templates of the steps; the same values have the same placeholder in all of them.

    Args:
        runs: The runs.
        steps: The steps of each.
    """

    def __init__(self, runs: Sequence[RunPath], steps: Sequence[Sequence[Step]]) -> None:
        self._runs, self._steps = runs, steps
        self._names: dict[tuple[object, ...], Blank] = {}  # by what stands there in each run
        self._outputs: dict[str, list[str]] = {}  # of the steps before, by the id of the trace
        self._result = Arguments()
        self._argument = ""

    def arguments(self, at: int) -> Arguments:
        """Return the input of the step at a position, from 0."""
        pairs = list(zip(self._runs, self._steps, strict=True))
        uses = [_Use(run, call.inputs) for run, steps in pairs for call in steps[at]]
        self._outputs = {
            run.trace_id: ["\n".join(call.output for call in step) for step in steps[:at]]
            for run, steps in pairs
        }
        self._result = Arguments()
        for key in _common_keys(uses):
            having = [one._replace(value=one.value[key]) for one in uses if key in one.value]
            self._argument = _clean_key(key)
            if not self._argument or self._argument in self._result.template:
                continue
            self._result.template[self._argument] = self._template(self._argument, having)
            if len(having) < len(uses):
                self._result.optional.append(self._argument)
        return self._result

    def _template(self, name: str, uses: Sequence[_Use], depth: int = 0) -> Any:
        """Return a value as a template.

        Args:
            name: What the value is, in words.
            uses: The value in each run; of enough tasks.
            depth: Levels of nesting above it.
        """
        if all(isinstance(one.value, dict) for one in uses) and depth < MAX_DEPTH:
            parts = {}
            for key in _common_keys(uses):
                clean = _clean_key(key)
                having = [one._replace(value=one.value[key]) for one in uses if key in one.value]
                parts[clean] = self._template(clean, having, depth + 1)
            if parts:
                return parts
        is_text = all(isinstance(one.value, str) for one in uses)
        if len(str(uses[0].value)) <= WHOLE_CHARS and self._source(uses) == _TASK:
            return str(self._blank(name, uses))  # also if all tasks happen to say the same
        if not is_text and _is_same(one.value for one in uses):
            self._result.constants += uses[0].value not in (None, {}, [])
            return map_texts(uses[0].value, _clean_text, change_key=_clean_key)
        if is_text and any(one.value.strip() for one in uses):
            return self._text(name, uses)
        return str(self._blank(name, uses))

    def _text(self, name: str, uses: Sequence[_Use]) -> str:
        """Return a text with placeholders where it differs."""
        shared = Shared.of([(one.value, one.run.task) for one in uses])
        has_gaps = any(isinstance(piece, Gap) for piece in shared.pieces)
        fewest = max(_FEWEST_KEPT * shared.words, _FEWEST_BESIDE if has_gaps else 0)
        if shared.kept_words < fewest:
            return str(self._blank(name, uses))
        parts: list[str] = []
        for piece in shared.pieces:
            if isinstance(piece, str):
                parts.append(piece)
                continue
            of_runs = [
                one._replace(value=piece.texts[one.value])
                for one in uses
                if one.value in piece.texts
            ]
            parts.append(piece.frame(str(self._blank(piece.label or "value", of_runs))))
        self._result.constants += shared.kept_words
        return _clean_text("".join(parts))

    def _blank(self, name: str, uses: Sequence[_Use]) -> Blank:
        """Return a placeholder; the same for what is the same in each run."""
        values = tuple(
            (one.run.trace_id, json.dumps(one.value, sort_keys=True).casefold()) for one in uses
        )
        known = self._names.get(values)
        blank = known or Blank(_name(name), self._source(uses))
        others = set(self._names.values())
        for number in range(2, len(others) + 2):
            if known is not None or blank not in others:
                break
            blank = Blank(f"{_name(name)} {number}", blank.source)
        self._names[values] = blank
        of_argument = self._result.blanks.setdefault(self._argument, [])
        if blank not in of_argument:
            of_argument.append(blank)
        return blank

    def _source(self, uses: Sequence[_Use]) -> str:
        """Return where the values of most runs come from: the task, or the first step with them."""
        counts: Counter[str] = Counter()
        for one in uses:
            parts = [str(value).strip(" '\"").casefold() for value in _leaves(one.value)]
            parts = [part for part in parts if part]
            if not parts:
                continue
            task = one.run.objective.casefold()
            counts[_TASK] += all(holds(task, part) for part in parts)
            for number, output in enumerate(self._outputs[one.run.trace_id], start=1):
                counts[f"step {number}"] += all(
                    part == output.strip()
                    or (len(part) >= _OUTPUT_VALUE_CHARS and holds(output, part))
                    for part in parts
                )
        enough = [name for name, count in counts.items() if count >= MOST * len(uses)]
        return min(enough, key=lambda name: (name != _TASK, len(name), name), default="")


def _leaves(value: Any) -> Iterator[Any]:
    for _, item in members(value):
        if isinstance(item, str | int | float) and not isinstance(item, bool):
            yield item


def _common_keys(uses: Sequence[_Use]) -> list[str]:
    """Return the keys that half of the inputs have, of enough tasks, in their usual order."""
    counts: Counter[str] = Counter()
    tasks: dict[str, set[str]] = {}
    places: Counter[str] = Counter()
    for one in uses:
        for place, key in enumerate(one.value):
            counts[key] += 1
            places[key] += place
            tasks.setdefault(key, set()).add(one.run.task)
    keys = [
        key
        for key, count in counts.items()
        if 2 * count >= len(uses) and len(tasks[key]) >= FEWEST_TASKS
    ]
    return sorted(keys, key=lambda key: (places[key] / counts[key], key))


def _is_same(values: Iterable[Any]) -> bool:
    texts = {json.dumps(value, sort_keys=True) for value in values}
    return len(texts) == 1 and not PLACEHOLDER.search(texts.pop())


def _clean_key(key: str) -> str:
    return clean_line(key, _NAME_CHARS)


def _clean_text(text: str) -> str:
    """Return a text as one that may stand in a prompt, its length and blanks as they are."""
    return printable(without_markers(text), keep="\n").replace("`", "'")


def _name(text: str) -> str:
    """Return what a placeholder is called: letters, digits, blanks, and what joins words."""
    match = _WORD.search(" ".join(text.replace("_", " ").split()))
    return match[0][:_NAME_CHARS].strip(" .-") if match else "value"
