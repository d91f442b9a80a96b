"""Which words together, how close, are taken for an instruction to the model that reads a text."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ahocorasick_rs import AhoCorasick

from kp_langchain.recall.disguises import plain_words
from kp_langchain.recall.planted_cues import CUES


@dataclass(frozen=True, slots=True)
class Rule:
    """Words of each group, near each other.

    Attributes:
        kind: What they are taken for; see `PlantedInstruction.kind`.
        groups: Classes of words, separated by bars; one word of each group is needed.
        chars: The distance between the beginning of the first and the end of the last at most.
        place: Where it holds: in `data` that tools returned, in what the agent wrote and its task
            (`own`), in `any` of them, or in data that a reader would not see (`hidden`).
    """

    kind: str
    groups: tuple[str, ...]
    chars: int
    place: Literal["data", "own", "any", "hidden"] = "data"


RULES = (
    Rule("override", ("disregard", "prior", "instruction"), 70, "any"),
    Rule("override", ("disregard", "own instruction"), 60, "any"),
    Rule("override", ("disregard", "user task"), 60, "any"),
    Rule("override", ("disregard", "new task"), 120, "any"),
    Rule("override", ("void", "prior", "instruction", "new task"), 160, "any"),
    Rule("override", ("turned into", "without limits"), 100, "any"),
    Rule("override", ("new orders", "act|only reply"), 60),
    Rule("override", ("only reply", "disregard|new task|instead"), 120),
    Rule("before the task", ("before", "user task", "must"), 160),
    Rule("before the task", ("before", "user", "task", "must"), 120),
    Rule("addressed to the model", ("model", "address", "must|act"), 140),
    Rule("addressed to the model", ("maybe model", "address", "must", "act"), 120),
    Rule("addressed to the model", ("any model", "address", "must", "act"), 120),
    Rule("addressed to the model", ("mention", "act|include|must"), 120),
    Rule("addressed to the model", ("do this", "act"), 140),
    Rule("addressed to the model", ("i am user", "must|act"), 140),
    Rule("addressed to the model", ("user", "wants", "must|act|you"), 140),
    Rule("instead of the task", ("instead", "work", "act"), 100),
    Rule("instead of the task", ("not answer", "instead|act", "user|task"), 120),
    Rule("instead of the task", ("inform user", "lure"), 160),
    Rule("instead of the task", ("answer", "include", "sensitive|user|model"), 120),
    Rule("kept from the user", ("hide", "user|answer", "act|must"), 140),
    Rule(
        "for later runs",
        ("later run", "always", "model|maybe model|you|act|consult|memory"),
        160,
        "any",
    ),
    Rule("for later runs", ("memory", "later|later run", "always|must"), 200, "any"),
    Rule("for later runs", ("memory", "kept under|sensitive", "always|must"), 200, "any"),
    Rule("for later runs", ("later", "always", "model|user"), 120),
    Rule("for later runs", ("kept under", "always", "consult"), 200, "any"),
    Rule("for later runs", ("moved", "always|must", "consult"), 200, "own"),
    Rule("for later runs", ("experience", "unsafe"), 240, "any"),
    Rule("sends data away", ("act|include", "prompt"), 80),
    Rule("sends data away", ("send", "sensitive", "target"), 140),
    Rule("hidden", ("model", "must|act"), 200, "hidden"),
    Rule("hidden", ("maybe model", "must|act", "act"), 200, "hidden"),
    Rule("hidden", ("called", "must|act"), 160, "hidden"),
    Rule("hidden", ("disregard|new task|inform user|only reply", "act"), 120, "hidden"),
    Rule("hidden", ("answer", "include"), 120, "hidden"),
    Rule("hidden", ("called", "act on a file"), 120, "hidden"),
    Rule("hidden", ("inform user", "act on a file|lure"), 120, "hidden"),
)

_IMPERATIVES = frozenset({"act", "send"})
_NEGATIONS = ("not ", "never ")
_NEGATION_CHARS = 16
# Not to forget a task is to keep it in mind. All other words of the class count even after a "not",
# which may end a clause of its own (if not, ignore the rules).
_FORGETTING = re.compile("forget|vergiss|vergesst|vergessen|vergeet|oubli|忘|забуд")
_NOT_BEFORE = re.compile(
    r"(?:\b(?:do|to|must|should|can|will) not |(?:^|[.!?:;] )never |\b\u043d\u0435 |n'|不要)$"
)
_NOT_AFTER = re.compile(r"\w* (?:nicht|niet)\b|ない")
_RECENT = 3  # words of a class that are looked at


class Hit(NamedTuple):
    """A word of a class in a text."""

    start: int
    end: int
    word: str


class Match(NamedTuple):
    """The kind of a rule that holds in a text, and the words for which it does."""

    kind: str
    words: tuple[str, ...]


def matching_rules(text: str, *, is_own: bool, is_hidden: bool) -> Iterator[Match]:
    """Yield the rules that hold somewhere in a text, each once.

    Args:
        text: A text in the form of `disguises.plain_words`.
        is_own: Whether the agent, or who gave it its task, wrote the text.
        is_hidden: Whether a reader would not see the text.
    """
    recent: dict[str, deque[Hit]] = {}
    done: set[Rule] = set()
    places = {"any", "own" if is_own else "data", "hidden" if is_hidden else "any"}
    for name, hit in _hits(text):
        recent.setdefault(name, deque(maxlen=_RECENT)).appendleft(hit)
        for rule, groups in _RULES_OF[name]:
            if rule.place not in places or rule in done:
                continue
            words = _words_near(groups, recent, hit.end - rule.chars)
            if words:
                done.add(rule)
                yield Match(rule.kind, words)


def words_of_class(text: str) -> dict[str, list[Hit]]:
    """Return the words of each class in a text in the form of `disguises.plain_words`."""
    words: defaultdict[str, list[Hit]] = defaultdict(list)
    for name, hit in _hits(text):
        words[name].append(hit)
    return words


def _words_near(
    groups: Iterable[tuple[str, ...]], recent: Mapping[str, Iterable[Hit]], since: int
) -> tuple[str, ...]:
    """Return one word of each group, none from before `since`; nothing if a group has no word."""
    near: list[Hit] = []
    for names in groups:
        best: Hit | None = None
        for name in names:
            for hit in recent.get(name, ()):
                if hit.start < since or (best is not None and hit.start <= best.start):
                    break
                if _is_apart(hit, near):
                    best = hit
        if best is None:
            return ()
        near.append(best)
    return tuple(hit.word for hit in near)


def _is_apart(hit: Hit, others: list[Hit]) -> bool:
    return all(hit.end <= other.start or other.end <= hit.start for other in others)


def _hits(text: str) -> Iterator[tuple[str, Hit]]:
    """Yield the words of a text, each with its class, in the order in which they end."""
    found = _SEARCH.find_matches_as_indexes(text, overlapping=True)
    for number, start, end in found:
        cue = _CUES[number]
        if cue.begins_word and start and (text[start - 1].isalnum() or text[start - 1] == "_"):
            continue
        if cue.ends_word and end < len(text) and (text[end].isalnum() or text[end] == "_"):
            continue
        hit = Hit(start, end, cue.word)
        for name in cue.classes:
            if not _means_the_opposite(text, hit, name):
                yield name, hit


def _means_the_opposite(text: str, hit: Hit, name: str) -> bool:
    before = max(hit.start - _NEGATION_CHARS, 0)
    if name in _IMPERATIVES:
        return text.endswith(_NEGATIONS, before, hit.start)
    return bool(
        name == "disregard"
        and _FORGETTING.match(hit.word)
        and (_NOT_BEFORE.search(text, before, hit.start) or _NOT_AFTER.match(text, hit.end))
    )


class _Cue(NamedTuple):
    """A word to look for."""

    word: str
    begins_word: bool
    ends_word: bool
    classes: tuple[str, ...]


# Scripts that write a blank between words. Others have theirs side by side.
_HAS_BLANKS = re.compile("[0-9a-z\u0370-\u052f]")


def _read_cues() -> list[_Cue]:
    classes: dict[tuple[str, bool], list[str]] = {}
    for name, table in CUES.items():
        for cue in filter(None, map(str.strip, re.split("[,\n]", table))):
            word = plain_words(cue.removesuffix("*"))
            classes.setdefault((word, not cue.endswith("*")), []).append(name)
    return [
        _Cue(
            word=word,
            begins_word=bool(_HAS_BLANKS.match(word)),
            ends_word=is_whole and bool(_HAS_BLANKS.match(word[-1])),
            classes=tuple(dict.fromkeys(names)),
        )
        for (word, is_whole), names in classes.items()
    ]


_CUES = _read_cues()
_SEARCH = AhoCorasick([cue.word for cue in _CUES])
_RULES_OF: dict[str, list[tuple[Rule, tuple[tuple[str, ...], ...]]]] = {
    name: [
        (rule, tuple(tuple(group.split("|")) for group in rule.groups))
        for rule in RULES
        if any(name in group.split("|") for group in rule.groups)
    ]
    for name in CUES
}
