"""What several texts have in common, token by token.

Texts are compared with the one that is most common, by `difflib`. A word stays that most of them
have, a value that all of them have, and both only if they are of enough tasks: what a single run or
a single task has never stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from kp_langchain.recall.deciding_calls import VALUE, WHOLE_CHARS
from kp_langchain.redaction.spans import PLACEHOLDER

FEWEST_TASKS = 3
"""What stays is of runs of at least so many different tasks."""
MOST = 2 / 3
"""The share of the texts that have a word which stays."""

_MOST_TEXTS = 100  # that differ; comparing takes their number times the square of their length
_MOST_TOKENS = 400
_TOKEN = re.compile(rf"(?:{PLACEHOLDER.pattern})|(?:{VALUE.pattern})|[^\W\d_]\w*|\w+|[^\w\s]")
_COMPARISON = frozenset(["=", "<", ">", "!", ":", "like", "in", "is", "not", "between", "("])
_FAR = 4  # tokens between a name and its value


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
    is_short = len(every[0]) <= WHOLE_CHARS  # all of it is a value
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
