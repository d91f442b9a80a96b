"""Whether a trace holds instructions to the model, where data should be.

Tools return what others wrote: pages, mails, files, records. If such a text addresses the model
(before you solve the task, send this there), whoever is shown the run is shown the instruction. A
memory is poisoned in the same way: an ordinary-looking question plants a rule (the data of A is
kept under B, always use B), or a document plants an experience that skips the checks. A trace with
such text is not to be recalled.

Words of several classes close together are a finding. So is a command after marks of a
conversation. The words are English, German, French, Spanish, Portuguese, Italian, Chinese, Japanese
and Russian. The plainest sort (ignore the previous instructions) is also found in Dutch, Polish,
Swedish, Ukrainian, Turkish, Korean, Arabic and Hindi.

Texts are read without accents and invisible characters, and with look-alike letters as what they
look like. Base64 is decoded. Comments of HTML and Markdown are read as well.

What it cannot see:

- A bare request that does not address the model (please send the report to X). It reads like any
  mail; nothing in its words says that it was not meant for the user.
- A false fact, such as a wrong account number or price, or an instruction that follows from facts
  (the office has moved; refunds now go to Y).
- Other languages, other encodings (hexadecimal, percent signs, rot13, reversed letters), encodings
  within encodings, text in pictures, letters with signs between them or digits in their place, and
  words that are spread over several outputs.
- What the agent itself wrote in its thoughts and its answer, unless it is an override or meant for
  later runs: it says there what it must do, and tells the user what to do.
- What is not in the trace: the middle of a long output, which recording left out, and what
  redaction replaced. Of a text of more than 80,000 characters, and of a trace of more than 400,000,
  both ends are read.
- Whether the run obeyed. A run that refused is found as well.

Whoever knows the words can avoid them: no finding is no proof. So traces of others are recalled
only once somebody has admitted them. Text about such attacks that quotes them
is found, too, and so are prompts that tools return, and the advice not to forget an instruction.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ahocorasick_rs import AhoCorasick

from kp_langchain.calibration.disguises import INVISIBLE_TEXT, plain_words, readings
from kp_langchain.text import both_ends
from kp_langchain.values import members, plain

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

SCAN_VERSION = 1
"""Of the words, the rules and how texts are read: raised with any of them in a release.

Kept traces that an earlier version scanned are then scanned again. A trace about to be shown is
always scanned by the current rules.
"""

Part = Literal["task", "thought", "input", "output", "answer", "name"]

_TRACE_CHARS = 400_000
_FEWEST_CHARS = 400  # of a passage in a trace with too many of them
_INPUT_CHARS = 80_000
_MOST_FINDINGS = 50
_BETWEEN_WORDS = re.compile("[_.-]")


@dataclass(frozen=True, slots=True)
class PlantedInstruction:
    """A place in a trace whose text reads like an instruction to the model.

    Attributes:
        step_id: The step that holds it; None for the task and the answer.
        part: `task`, `thought`, `input`, `output` (of a tool; also an error), `answer`, or `name`
            (of a tool, skill or framework, or in the schema of the task).
        kind: `override` (ignore the previous instructions), `before the task`, `addressed to the
            model`, `turn of another speaker` (marks of a conversation within data), `instead of
            the task`, `kept from the user`, `for later runs`, `sends data away` or `hidden`.
        words: The words that make it one. They are from the tables of this package; no other text
            of the trace is in it.
        disguise: How the text was disguised, such as `encoded`; empty if it was not.
    """

    step_id: int | None
    part: Part
    kind: str
    words: tuple[str, ...]
    disguise: str = ""


def find_planted(trace: ReasoningTrace, *, is_foreign: bool = False) -> list[PlantedInstruction]:
    """Return where a trace holds text that reads like an instruction to the model.

    Args:
        trace: The trace. It may lack anything, even what its class demands.
        is_foreign: Whether it comes from a registry. Then its task, thoughts, answer and names are
            read like what tools returned: others wrote them.
    """
    findings: dict[PlantedInstruction, None] = {}
    passages = list(_passages(trace))
    if is_foreign:
        passages += _names(trace)
    if sum(len(passage.text) for passage in passages) > _TRACE_CHARS:
        most = _TRACE_CHARS // _FEWEST_CHARS
        if len(passages) > most:
            passages = passages[: most // 2] + passages[-most // 2 :]
        limit_chars = _TRACE_CHARS // len(passages)
        passages = [one._replace(text=both_ends(one.text, limit_chars)) for one in passages]
    for passage in passages:
        findings.update(dict.fromkeys(_findings(passage, is_foreign=is_foreign)))
        if len(findings) >= _MOST_FINDINGS:
            break
    return list(findings)[:_MOST_FINDINGS]


def has_planted(trace: ReasoningTrace) -> bool:
    """Return whether an output of a tool in a trace reads like an instruction to the model."""
    return any(
        any(_findings(passage, is_foreign=False))
        for step in trace.steps
        if step.type != "thought"
        for text in (step.content, step.output_summary)
        for passage in _texts(step.step_id, "output", text)
    )


class _Passage(NamedTuple):
    """A text of a trace.

    Attributes:
        step_id: The step that holds it, if one does.
        part: What it is.
        text: The text, not empty.
    """

    step_id: int | None
    part: Part
    text: str


def _findings(passage: _Passage, *, is_foreign: bool) -> Iterator[PlantedInstruction]:
    step_id, part, text = passage
    is_own = part not in ("output", "name")
    # What is said to the model in the input of a tool is copied from elsewhere.
    ways_to_read = {is_own, False} if is_foreign or part == "input" else {is_own}
    for reading in readings(text):
        disguise = reading.disguise
        if disguise == INVISIBLE_TEXT:
            yield PlantedInstruction(step_id, part, "hidden", (), disguise)
        for as_own in sorted(ways_to_read):
            matches = _matching_rules(reading.words, is_own=as_own, is_hidden=reading.is_hidden)
            for kind, words in matches:
                yield PlantedInstruction(step_id, part, kind, words, disguise)
            is_quoting = as_own or (is_own and not is_foreign)
            if words := _words_of_turn(reading.text, is_own=is_quoting):
                yield PlantedInstruction(step_id, part, "turn of another speaker", words, disguise)


def _passages(trace: ReasoningTrace) -> Iterator[_Passage]:
    yield from _texts(None, "task", trace.task.objective)
    for step in trace.steps:
        part: Part = "thought" if step.type == "thought" else "output"
        yield from _texts(step.step_id, part, step.content)
        yield from _texts(step.step_id, part, step.output_summary)
        yield from _texts(step.step_id, "input", step.input)
    yield from _texts(None, "answer", trace.outcome.result_summary)


def _names(trace: ReasoningTrace) -> Iterator[_Passage]:
    """Yield the names in a trace, each once as it is, and once with blanks between its words."""
    tools = [tool for step in trace.steps if (tool := step.tool)]
    names = {
        trace.source_skill: None,
        trace.metadata.agent_id: None,
        trace.metadata.framework: None,
        **{tool.name: None for tool in tools},
        **{tool.mcp_server: None for tool in tools},
    }
    for name in names:
        yield from _texts(None, "name", name)
        yield from _texts(None, "name", name and _BETWEEN_WORDS.sub(" ", name))
    yield from _texts(None, "name", trace.task.input_schema)


def _texts(step_id: int | None, part: Part, value: Any) -> Iterator[_Passage]:
    """Yield the text of a value, or of all texts within a structure, as one passage."""
    if value:
        text = value if isinstance(value, str) else "\n".join(_leaves(value))
        yield _Passage(step_id, part, text)


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts in a structure, keys included."""
    for name, item in members(plain(value, _INPUT_CHARS)):
        yield from (text for text in (name, item) if isinstance(text, str))


# ------------------------------------------------------------------ words near each other


class _Rule(NamedTuple):
    """Words of each of several groups, near each other; see `planted.toml`."""

    kind: str
    groups: tuple[tuple[str, ...], ...]
    chars: int
    place: str


class _Cue(NamedTuple):
    """A word to look for, and its classes."""

    word: str
    begins_word: bool
    ends_word: bool
    classes: tuple[str, ...]


class _Hit(NamedTuple):
    """A word of a class in a text."""

    start: int
    end: int
    word: str


class _Tables(NamedTuple):
    """What `planted.toml` holds, ready for a search.

    Attributes:
        cues: The words, by their number in `search`.
        search: Finds them all at once.
        rules: The rules.
    """

    cues: list[_Cue]
    search: AhoCorasick
    rules: list[_Rule]


# Scripts that write a blank between words. Others have theirs side by side.
_HAS_BLANKS = re.compile("[0-9a-z\u0370-\u052f]")


@cache
def _read_table() -> dict[str, Any]:
    table = resources.files("kp_langchain.calibration").joinpath("planted.toml")
    return tomllib.loads(table.read_text("utf-8"))


@cache
def _tables() -> _Tables:
    data = _read_table()
    classes: dict[tuple[str, bool], list[str]] = {}
    for name, text in data["cues"].items():
        for cue in filter(None, map(str.strip, re.split("[,\n]", text))):
            word = plain_words(cue.removesuffix("*"))
            classes.setdefault((word, not cue.endswith("*")), []).append(name)
    cues = [
        _Cue(
            word=word,
            begins_word=bool(_HAS_BLANKS.match(word)),
            ends_word=is_whole and bool(_HAS_BLANKS.match(word[-1])),
            classes=tuple(dict.fromkeys(names)),
        )
        for (word, is_whole), names in classes.items()
    ]
    rules = [
        _Rule(
            kind=one["kind"],
            groups=tuple(tuple(group.split("|")) for group in one["words"]),
            chars=one["chars"],
            place=one.get("place", "data"),
        )
        for one in data["rules"]
    ]
    return _Tables(cues, AhoCorasick([cue.word for cue in cues]), rules)


def _matching_rules(
    text: str, *, is_own: bool, is_hidden: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the kind of each rule that holds somewhere in a text, and the words for which it does.

    Args:
        text: A text in the form of `plain_words`.
        is_own: Whether the agent, or who gave it its task, wrote the text.
        is_hidden: Whether a reader would not see the text.
    """
    hits = list(_hits(text))
    present = {name for name, _ in hits}
    places = {"any", "own" if is_own else "data", "hidden" if is_hidden else "any"}
    # Few texts have words of all groups of a rule, wherever these are.
    rules = [
        rule
        for rule in _tables().rules
        if rule.place in places and not any(map(present.isdisjoint, rule.groups))
    ]
    latest: dict[str, _Hit] = {}  # by class
    for name, hit in hits if rules else ():
        latest[name] = hit
        for rule in [one for one in rules if any(name in group for group in one.groups)]:
            words = _words_near(rule.groups, latest, hit.end - rule.chars)
            if words:
                rules.remove(rule)
                yield rule.kind, words


def _words_near(
    groups: Iterable[tuple[str, ...]], latest: Mapping[str, _Hit], since: int
) -> tuple[str, ...]:
    """Return one word of each group, none from before `since`; nothing if a group has no word."""
    near: list[_Hit] = []
    for names in groups:
        hits = (latest[name] for name in names if name in latest)
        free = [
            hit
            for hit in hits
            if hit.start >= since
            and all(hit.end <= other.start or other.end <= hit.start for other in near)
        ]
        if not free:
            return ()
        near.append(max(free))
    return tuple(hit.word for hit in near)


_IMPERATIVES = frozenset({"act", "send"})
_NEGATIONS = ("not ", "never ")
_NEGATION_CHARS = 16


def _hits(text: str) -> Iterator[tuple[str, _Hit]]:
    """Yield the words of a text, each with its class, in the order in which they end."""
    cues, search, _ = _tables()
    for number, start, end in search.find_matches_as_indexes(text, overlapping=True):
        cue = cues[number]
        if cue.begins_word and start and (text[start - 1].isalnum() or text[start - 1] == "_"):
            continue
        if cue.ends_word and end < len(text) and (text[end].isalnum() or text[end] == "_"):
            continue
        hit = _Hit(start, end, cue.word)
        is_forbidden = text.endswith(_NEGATIONS, max(start - _NEGATION_CHARS, 0), start)
        for name in cue.classes:
            if not (is_forbidden and name in _IMPERATIVES):
                yield name, hit


# ------------------------------------------------------------------ turns of other speakers

_MOST_MARKS = 500
_NEAR_CHARS = 240
# A search for these is a hundred times as fast as the expressions, and most texts have none.
_TEMPLATE_HINTS = ("<|", "< |", "<\uff5c", "inst]", "sys>>", "_of_turn>")
_LABEL_HINTS = (
    *("information", "important", "tool_re", "function_re", "系统", "システム"),
    *("системное сообщение", "systemnachricht", "message système", "mensaje del sistema"),
)
_AROUND_CHARS = 100
_TURN = re.compile(
    r"^[ \t>*#-]{0,8}(?:system|human|user)[*_]{0,2}\s?:", re.IGNORECASE | re.MULTILINE
)
_REPLY = re.compile(r"^[ \t>*#-]{0,8}(?:assistant|ai)[*_]{0,2}\s?:", re.IGNORECASE | re.MULTILINE)

_COMMANDS = ("act", "act on a file", "include", "only reply", "inform user", "disregard")
# Before an imperative; also the beginning of the text.
_BEFORE_COMMAND = re.compile(
    r"(?:^\W{0,3}|[.!?:;\u3002\uff01\uff1a\uff0c)\]'] ?|[\u4e00-\u9fff\u3040-\u30ff]"
    r"|\b(?:please|must|should|also|always|now|immediately|to|and|agents|you|will|then|actually) )$"
)


class _Marks(NamedTuple):
    """The expressions for marks of a conversation, and the words that any label has."""

    template: re.Pattern[str]
    labels: re.Pattern[str]
    label_words: AhoCorasick


@cache
def _marks() -> _Marks:
    marks = _read_table()["marks"]

    def with_words(text: str) -> str:
        for name in ("label_words", "label", "order", "speaker", "model"):
            text = text.replace(f"%{name}%", marks[name])
        return text

    template, labels = (
        re.compile(with_words("|".join(marks[name])), re.IGNORECASE | re.MULTILINE)
        for name in ("template", "labels")
    )
    words = [*with_words("%label%|%speaker%").split("|"), *_LABEL_HINTS]
    return _Marks(template, labels, AhoCorasick(words))


def _words_of_turn(text: str, *, is_own: bool) -> tuple[str, ...]:
    """Return the words by which a turn of another speaker in a text gives an instruction.

    Args:
        text: A text of a trace as it stands there.
        is_own: Whether the agent, or who gave it its task, wrote the text. Such text often has
            headings, and quotes conversations.
    """
    low = text.lower()
    marks: Iterator[re.Match[str]] = iter(())
    if any(hint in low for hint in _TEMPLATE_HINTS):
        marks = islice(_marks().template.finditer(text), _MOST_MARKS)
    if words := next(filter(None, map(_command, marks)), ()):
        return words
    if is_own:
        return ()
    same_length = low if len(low) == len(text) else text
    labels = islice(_labels(text, same_length), _MOST_MARKS)
    return next(filter(None, map(_command, labels)), ())


def _labels(text: str, low: str) -> Iterator[re.Match[str]]:
    """Yield headings, then turns that a reply follows, around the words that they have."""
    windows: list[list[int]] = []
    for _, start, end in _marks().label_words.find_matches_as_indexes(low):
        if _begins_word(low, start):
            if windows and start - _AROUND_CHARS <= windows[-1][1]:
                windows[-1][1] = end + _AROUND_CHARS
            else:
                windows.append([max(start - _AROUND_CHARS, 0), end + _AROUND_CHARS])
    for begin, end in windows:
        yield from _marks().labels.finditer(text, begin, end)
    for begin, end in windows:
        for match in _TURN.finditer(text, begin, end):
            if _REPLY.search(_after(match)):
                yield match


def _begins_word(text: str, start: int) -> bool:
    return not (text[max(start - 1, 0) : start].isalpha() and text[start].isascii())


def _after(match: re.Match[str]) -> str:
    return match.string[match.end() : match.end() + _NEAR_CHARS]


def _command(mark: re.Match[str]) -> tuple[str, ...]:
    """Return the words of a command behind a mark; none if there is none."""
    text = plain_words(_after(mark))
    words: dict[str, str] = {}
    for name, hit in _hits(text):
        if name in _COMMANDS and _BEFORE_COMMAND.search(text, max(0, hit.start - 16), hit.start):
            return (hit.word,)
        words[name] = hit.word
    return (words["you"], words["must"]) if "you" in words and "must" in words else ()
