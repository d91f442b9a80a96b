"""Shortens a text that is longer than a model's window to both its ends.

A task may be stated at the end of a long prompt, after pages that are the same for every task. By
the beginning alone all such runs look alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORD_TOKENS = 16  # how far a cut may move to fall between two words


def both_ends(text: str, limit: int) -> str:
    """Return `text`, or both its ends joined by a space if it is longer than `limit`.

    Args:
        text: The text.
        limit: Longest result in characters, at least 3.
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]} {text[-tail:]}"


def fit(text: str, tokeniser: Tokenizer, window: int) -> str:
    """Return `text` if it fits a window, else both its ends, half a window each.

    Args:
        text: The text.
        tokeniser: The model's tokeniser. Tokens beyond its truncation also count.
        window: The window in tokens, including the special tokens that the model adds.
    """
    room = window - tokeniser.num_special_tokens_to_add(is_pair=False)
    first = tokeniser.encode(text, add_special_tokens=False)
    tokens = [
        (span, word)
        for part in (first, *first.overflowing)
        for span, word, read in zip(part.offsets, part.word_ids, part.attention_mask, strict=True)
        if read  # the others are padding
    ]
    if len(tokens) <= room or room < 2:
        return text
    spans, words = zip(*tokens, strict=True)
    tail = room // 2
    # Cutting between words leaves the tokens of both parts unchanged.
    head = _between_words(words, room - tail, -1)
    start = _between_words(words, len(tokens) - tail, 1)
    return f"{text[: spans[head - 1][1]]} {text[spans[start][0] :]}"


def _between_words(words: tuple[int | None, ...], at: int, step: int) -> int:
    """Return the nearest place from `at` on, in steps of `step`, where a word begins, or `at`."""
    near = range(at, at + step * _WORD_TOKENS, step)
    places = (place for place in near if 0 < place < len(words))
    return next((place for place in places if words[place] != words[place - 1]), at)
