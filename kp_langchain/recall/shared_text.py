"""What several texts have in common, token by token.

Texts are compared with the one that is most common, by `difflib`. What all of them have stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

from kp_langchain.recall.deciding_calls import VALUE
from kp_langchain.redaction.spans import PLACEHOLDER

_MOST_TEXTS = 100  # that differ; comparing takes their number times the square of their length
_MOST_TOKENS = 400
_TOKEN = re.compile(rf"(?:{PLACEHOLDER.pattern})|(?:{VALUE.pattern})|[^\W\d_]\w*|\w+|[^\w\s]")
_SPACE = re.compile(r"\s+")
# A name and what compares it with a value, at the end of a text.
_LABEL = re.compile(
    r"([^\W\d_]\w*)\s*(?:[=<>!:(]+|\b(?:not\s+)?(?:like|in|is|between)\b)[\s(]*\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Gap:
    """What differs between texts at one place.

    Attributes:
        texts: What stands there in each text; a text that has nothing there is missing.
        label: The name before it that it is compared with, if there is one.
        before: A quotation mark or blank before it.
        after: The same after it.
    """

    texts: Mapping[str, str]
    label: str
    before: str
    after: str

    def frame(self, text: str) -> str:
        """Return a text in its place."""
        return f"{self.before}{text}{self.after}"


class Shared(NamedTuple):
    """What texts have in common.

    Attributes:
        pieces: What stays, and what differs, in turn.
        kept_words: How many words and values stay.
        words: How many the most common text has.
    """

    pieces: Sequence[str | Gap]
    kept_words: int
    words: int


def shared_text(texts: Iterable[str]) -> Shared:
    """Return what texts have in common; what was redacted is in no two of them the same.

    Args:
        texts: The texts, at least one, in any order. Of more than 100 different ones, those count
            that are most common.
    """
    counts = Counter(texts)
    order = sorted(counts, key=lambda text: (-counts[text], len(text), text))[:_MOST_TEXTS]
    tokens = {text: list(_TOKEN.finditer(text))[:_MOST_TOKENS] for text in order}
    text = order[0]
    reference = tokens[text]
    places = {one: _places(reference, tokens[one]) for one in order}
    kept = {
        at
        for at, token in enumerate(reference)
        if not PLACEHOLDER.fullmatch(token[0]) and all(at in of_text for of_text in places.values())
    }
    pieces: list[str | Gap] = []
    for stays, group in groupby(range(len(reference)), key=kept.__contains__):
        first, *_, last = [*group] * 2
        space = text[reference[first - 1].end() : reference[first].start()] if first else ""
        if stays:
            piece = space + text[reference[first].start() : reference[last].end()]
            pieces.append(_SPACE.sub(lambda match: "\n" if "\n" in match[0] else " ", piece))
            continue
        mark = reference[first][0][0] if first == last and reference[first][0][0] in "'\"" else ""
        label = _LABEL.search(str(pieces[-1])) if pieces else None
        between = {
            one: _between(one, tokens[one], of_text.get(first - 1), of_text.get(last + 1))
            for one, of_text in places.items()
        }
        pieces.append(
            Gap(
                texts={one: there for one, there in between.items() if there},
                label=label[1].casefold() if label else "",
                before=space[:1] + mark,
                after=mark,
            )
        )
    said = [at for at, token in enumerate(reference) if token[0][0].isalnum() or len(token[0]) > 1]
    return Shared(pieces, len(kept.intersection(said)), len(said))


def _places(reference: Sequence[re.Match[str]], other: Sequence[re.Match[str]]) -> dict[int, int]:
    """Return where each token of the reference stands in another text, if it does."""
    keys, others = ([token[0].casefold() for token in tokens] for tokens in (reference, other))
    blocks = SequenceMatcher(None, keys, others, autojunk=False).get_matching_blocks()
    return {block.a + offset: block.b + offset for block in blocks for offset in range(block.size)}


def _between(
    text: str, tokens: Sequence[re.Match[str]], before: int | None, after: int | None
) -> str:
    """Return what stands in a text between two of its tokens."""
    between = tokens[0 if before is None else before + 1 : after]
    return text[between[0].start() : between[-1].end()] if between else ""
