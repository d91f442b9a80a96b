"""What a model sees of a text that is longer than its window: both ends.

A task may be stated at the end of a long prompt, behind pages that are the same for every task.
With the beginning alone all such runs look alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORD_TOKENS = 16  # as far as a cut moves to fall between two words


def both_ends(text: str, limit: int) -> str:
    """Return `text`, or as much of both its ends as makes `limit` characters with a space between.

    Args:
        text: The text.
        limit: At most so many characters, 3 at least.
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]} {text[-tail:]}"


def fit(text: str, tokeniser: Tokenizer, window: int) -> str:
    """Return `text` as it is if it is within a window, else both its ends, half of it each.

    Args:
        text: The text.
        tokeniser: The model's. Where it truncates, what lies beyond is seen all the same.
        window: The window in tokens, with those that the model adds.
    """
    room = window - tokeniser.num_special_tokens_to_add(is_pair=False)
    first = tokeniser.encode(text, add_special_tokens=False)
    tokens = [
        (span, word)
        for part in (first, *first.overflowing)
        for span, word, read in zip(part.offsets, part.word_ids, part.attention_mask, strict=True)
        if read  # the others fill a batch up
    ]
    if len(tokens) <= room or room < 2:
        return text
    spans, words = zip(*tokens, strict=True)
    tail = room // 2
    # Between two words the parts have the tokens that they had in the text.
    head = _between_words(words, room - tail, -1)
    start = _between_words(words, len(tokens) - tail, 1)
    return f"{text[: spans[head - 1][1]]} {text[spans[start][0] :]}"


def _between_words(words: tuple[int | None, ...], at: int, step: int) -> int:
    """Return the next place before or behind `at` where a word begins; `at` if none is near."""
    near = range(at, at + step * _WORD_TOKENS, step)
    places = (place for place in near if 0 < place < len(words))
    return next((place for place in places if words[place] != words[place - 1]), at)
