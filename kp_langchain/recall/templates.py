"""What several texts have in common, and the rest as placeholders.

    SELECT count(*) FROM customers WHERE tier = 'gold'
    SELECT COUNT(*) FROM customers WHERE tier = 'silver'   ->   SELECT count(*) FROM customers
                                                                WHERE tier = '{tier from the task}'

Texts are compared token by token with the one that is most common, by `difflib`. A word stays that
most of them have, a value that all of them have, and both only if they are of enough tasks:
whatever a single run or a single task has is in no template.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from kp_langchain.recall.deciding_calls import _WHOLE_CHARS, VALUE, holds
from kp_langchain.recall.few_shot import _clean_line, _without_markers
from kp_langchain.recall.run_paths import RunPath, Step
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.text import printable
from kp_langchain.values import MAX_DEPTH, members

FEWEST_TASKS = 3
"""What stands in a template is of runs of at least so many different tasks."""
MOST = 2 / 3
"""The share of the texts that have a word which stays, or of the runs that a value is known of."""

_FEWEST_KEPT = 0.5  # of the words and values of a text; else all of it is a placeholder
_MOST_TEXTS = 100  # that differ; comparing takes their number times the square of their length
_MOST_TOKENS = 400
_OUTPUT_VALUE_CHARS = 2  # a shorter one is in most outputs
_NAME_CHARS = 40
_TOKEN = re.compile(rf"(?:{PLACEHOLDER.pattern})|(?:{VALUE.pattern})|[^\W\d_]\w*|\w+|[^\w\s]")
_WORD = re.compile(r"\w[\w .-]*")
_COMPARISON = frozenset(["=", "<", ">", "!", ":", "like", "in", "is", "not", "between", "("])
_TASK = "the task"
_FAR = 4  # tokens between a name and its value


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
            self._argument = _clean_line(key, _NAME_CHARS)
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
                clean = _clean_line(key, _NAME_CHARS)
                having = [one._replace(value=one.value[key]) for one in uses if key in one.value]
                parts[clean] = self._template(clean, having, depth + 1)
            if parts:
                return parts
        is_text = all(isinstance(one.value, str) for one in uses)
        if len(str(uses[0].value)) <= _WHOLE_CHARS and self._source(uses) == _TASK:
            return str(self._blank(name, uses))  # also if all tasks happen to say the same
        if not is_text and _is_same(one.value for one in uses):
            self._result.constants += 1
            return _clean_value(uses[0].value)
        if is_text and any(one.value.strip() for one in uses):
            return self._text(name, uses)
        return str(self._blank(name, uses))

    def _text(self, name: str, uses: Sequence[_Use]) -> str:
        """Return a text with placeholders where it differs."""
        shared = Shared.of([(one.value, one.run.task) for one in uses])
        if shared.kept_words < _FEWEST_KEPT * shared.words:
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
            label = piece.label if piece.label or shared.kept_words else name
            blank = self._blank(label or "value", of_runs)
            parts.append(piece.frame(str(blank)))
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
                    len(part) >= _OUTPUT_VALUE_CHARS and holds(output, part) for part in parts
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


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, list):
        return [_clean_value(item) for item in value]
    if isinstance(value, dict):
        return {_clean_line(key, _NAME_CHARS): _clean_value(one) for key, one in value.items()}
    return value


def _clean_text(text: str) -> str:
    """Return a text as one that may stand in a prompt, its length and blanks as they are."""
    return printable(_without_markers(text)).replace("`", "'")


def _name(text: str) -> str:
    """Return what a placeholder is called: letters, digits, blanks, and what joins words."""
    match = _WORD.search(" ".join(text.replace("_", " ").split()))
    return match[0][:_NAME_CHARS].strip(" .-") if match else "value"


# ------------------------------------------------------------------ what texts have in common


class _Token(NamedTuple):
    key: str
    text: str
    start: int
    end: int

    @property
    def is_word(self) -> bool:
        return self.key[0].isalpha() and not VALUE.fullmatch(self.text)

    @property
    def is_value(self) -> bool:
        return bool(VALUE.fullmatch(self.text))

    @property
    def counts(self) -> bool:
        """Whether it says something, and is no mark between words."""
        return self.key[0].isalnum() or self.is_value


@dataclass(frozen=True, slots=True)
class Gap:
    """What differs between texts at one place.

    Attributes:
        texts: What stands there in each text that has the parts around it.
        label: The name before it that it is compared with, if there is one.
        before: A quotation mark or blank before it.
        after: The same after it.
    """

    texts: dict[str, str]
    label: str = ""
    before: str = ""
    after: str = ""

    def frame(self, text: str) -> str:
        """Return a text in its place."""
        return f"{self.before}{text}{self.after}"


@dataclass(frozen=True, slots=True)
class Shared:
    """What texts have in common.

    Attributes:
        pieces: What stays, and what differs, in turn.
        kept_words: How many words and values stay.
        words: How many the most common text has.
    """

    pieces: Sequence[str | Gap]
    kept_words: int
    words: int

    @classmethod
    def of(cls, texts: Iterable[tuple[str, str]]) -> Shared:
        """Return what texts have in common.

        Args:
            texts: The texts, each with its task, in any order.
        """
        tasks: dict[str, set[str]] = {}
        counts: Counter[str] = Counter()
        for text, task in texts:
            tasks.setdefault(text, set()).add(task)
            counts[text] += 1
        order = sorted(counts, key=lambda text: (-counts[text], len(text), text))[:_MOST_TEXTS]
        tokens = {text: _tokens(text) for text in order}
        reference = tokens[order[0]]
        places = {text: _places(reference, tokens[text]) for text in order}
        keeps = [
            _stays(token, [text for text in order if at in places[text]], order, counts, tasks)
            for at, token in enumerate(reference)
        ]
        pieces = list(_pieces(order[0], reference, keeps, tokens, places))
        return cls(
            pieces,
            sum(keep and token.counts for keep, token in zip(keeps, reference, strict=True)),
            sum(token.counts for token in reference),
        )


def _tokens(text: str) -> list[_Token]:
    matches = list(_TOKEN.finditer(text))[:_MOST_TOKENS]
    return [_Token(one[0].casefold(), one[0], one.start(), one.end()) for one in matches]


def _places(reference: Sequence[_Token], other: Sequence[_Token]) -> dict[int, int]:
    """Return where each token of the reference stands in another text, if it does."""
    keys = [token.key for token in reference], [token.key for token in other]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    return {block.a + offset: block.b + offset for block in blocks for offset in range(block.size)}


def _stays(
    token: _Token,
    having: Sequence[str],
    every: Sequence[str],
    counts: Counter[str],
    tasks: dict[str, set[str]],
) -> bool:
    if PLACEHOLDER.fullmatch(token.text):
        return False
    if len({task for text in having for task in tasks[text]}) < FEWEST_TASKS:
        return False
    total, number = (sum(counts[text] for text in some) for some in (every, having))
    is_short = len(every[0]) <= _WHOLE_CHARS  # all of it is a value
    return number == total if token.is_value or is_short else number >= MOST * total


def _pieces(
    text: str,
    reference: Sequence[_Token],
    keeps: Sequence[bool],
    tokens: dict[str, list[_Token]],
    places: dict[str, dict[int, int]],
) -> Iterator[str | Gap]:
    """Yield what stays of the reference, and a gap for each stretch between."""
    at, end = 0, 0
    while at < len(reference):
        stop = at
        while stop < len(reference) and keeps[stop] == keeps[at]:
            stop += 1
        if keeps[at]:
            parts = []
            for token in reference[at:stop]:
                between = text[end : token.start] if end else ""
                parts.append(("\n" if "\n" in between else " " if between else "") + token.text)
                end = token.end
            yield "".join(parts)
        else:
            quoted = reference[at].text[:1] if stop == at + 1 else ""
            mark = quoted if quoted in ("'", '"') else ""
            space = " " if end and reference[at].start > end else ""
            yield Gap(
                texts=dict(_between(at, stop, len(reference), keeps, tokens, places)),
                label=_label(reference[:at], keeps),
                before=space + mark,
                after=mark,
            )
            end = reference[stop - 1].end
        at = stop


def _between(
    at: int,
    stop: int,
    length: int,
    keeps: Sequence[bool],
    tokens: dict[str, list[_Token]],
    places: dict[str, dict[int, int]],
) -> Iterator[tuple[str, str]]:
    """Yield each text with what stands in it between what stays before and after a gap."""
    for text, of_text in places.items():
        found = tokens[text]
        before = [of_text[one] for one in range(at) if keeps[one] and one in of_text]
        after = [of_text[one] for one in range(stop, length) if keeps[one] and one in of_text]
        first = before[-1] + 1 if before else 0
        last = after[0] if after else len(found)
        if first < last:
            yield text, text[found[first].start : found[last - 1].end]


def _label(before: Sequence[_Token], keeps: Sequence[bool]) -> str:
    """Return the name that a value is compared with, such as `tier` in `tier = `."""
    near = list(enumerate(before))[-_FAR:]
    is_compared = False
    for place, token in reversed(near):
        if token.key in _COMPARISON:
            is_compared = True
        elif token.is_word and keeps[place] and is_compared:
            return token.key
        elif token.counts:
            return ""
    return ""
