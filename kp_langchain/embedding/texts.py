"""Texts on their way to an embedding model, and the vectors that come back.

Texts are cleaned, and cut to what a model's window holds. How much of a text a model can read is
judged by its tokeniser. Vectors are checked.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from kp_langchain.errors import BadEmbeddingError

if TYPE_CHECKING:
    import numpy as np
    import regex
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

TEXT_LIMIT_CHARS = 16_384
"""Longest text that a model receives; a longer one is cut to its two ends.

all-MiniLM-L6-v2 reads 256 word pieces, some 1,200 characters.
"""


def clean_texts(texts: Sequence[str]) -> list[str]:
    """Return texts that every tokeniser accepts: cut in the middle, without lone surrogates.

    Raises:
        TypeError: `texts` is one text instead of a list.
        ValueError: `texts` is empty.
    """
    if isinstance(texts, str):
        raise TypeError("embed takes a list of texts, not one text")
    if not len(texts):
        raise ValueError("embed needs at least one text")
    cut = (both_ends(text, TEXT_LIMIT_CHARS) for text in texts)
    return [text.encode("utf-8", "replace").decode("utf-8") for text in cut]


def check_vectors(vectors: object, count: int, source: str) -> NDArray[np.float32]:
    """Return an embedder's vectors as float32 of shape (`count`, dimensions).

    Args:
        vectors: What the embedder returned.
        count: The number of texts that it received.
        source: The embedder's name, for the message.

    Raises:
        BadEmbeddingError: The vectors are not numbers of that shape, or not finite.
    """
    import numpy as np

    try:
        array = np.asarray(vectors)
    except Exception as error:
        raise BadEmbeddingError(
            f"{source} returned {kind_of(vectors)} that is not an array of vectors"
        ) from error
    if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != count or not array.size:
        raise BadEmbeddingError(
            f"{source} returned {kind_of(vectors)} of {array.dtype} with shape {array.shape}; "
            f"expected numbers with shape ({count}, dimensions)"
        )
    with np.errstate(all="ignore"):
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise BadEmbeddingError(f"{source} returned values that are not finite in float32")
    return array


def kind_of(value: object) -> str:
    """Return what kind of thing a value is, for a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


# ------------------------------------------------------------------ what of a long text counts

# A task may be stated at the end of a long prompt, after pages that are the same for every task. By
# the beginning alone all such runs look alike.

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


# ------------------------------------------------------------------ which texts can be read

# A model for English receives a Chinese text as one unknown token after another, a Korean one as
# fragments of syllables, a Russian one letter by letter. It still returns a vector, but the vector
# says little more than which language it was: two unrelated texts look alike.

UNREADABLE_ABOVE = 0.4
"""Share of unreadable tokens above which a text has no novelty.

Measured with all-MiniLM-L6-v2 in 19 languages (tests/benchmarks/README.md). Below this
share, the embeddings distinguish a task in other words from other tasks as reliably as in a text
that is fully readable (AUC 0.95 to 1.00); above it less reliably (0.94 and 0.93, and 0.73 above
0.8). Texts as long as a run have at most 0.31 in English, Spanish and German, and at least 0.46 in
the 16 other languages. None of 1,335 recorded runs in English has more than 0.24.
"""

_UNKNOWN = ("[UNK]", "<unk>")

# A word whose pieces have on average no more characters than this is spelt out, and its pieces say
# nothing. Latin has the higher limit, because in other alphabets models know the single letters and
# hardly more. A whole ideograph or Korean syllable is read; a fragment of one is not.
_LATIN_CHARS = 2.0
_OTHER_CHARS = 1.25
_WHOLE_CHARS = 0.99
# An unknown token stands for a whole word, or for a sentence in scripts without spaces.
_CHARS_A_TOKEN = 4.0


def unreadable_share(tokeniser: Tokenizer, text: str, window: int | None = None) -> float:
    """Return the share of a text's tokens that the model cannot read, 0 to 1.

    A token is unreadable if it is unknown, or if it belongs to a word broken into pieces of a
    letter or two. An unknown token counts as the number of tokens that its characters would
    normally make. ASCII text counts as readable.

    Args:
        tokeniser: The model's tokeniser.
        text: The text.
        window: The model's window in tokens: only the part of the text that the model receives
            counts. None if it has no window.
    """
    if text.isascii():
        return 0.0
    text = unicodedata.normalize("NFC", fit(text, tokeniser, window) if window else text)
    encoding = tokeniser.encode(text, add_special_tokens=False)
    unknown = {tokeniser.token_to_id(name) for name in _UNKNOWN}
    pairs = zip(encoding.ids, encoding.offsets, strict=True)
    tokens = [(key, span) for key, span in pairs if span[0] < span[1]]
    words = {at: word for word in _words().finditer(text) for at in range(*word.span())}
    pieces: defaultdict[regex.Match[str], int] = defaultdict(int)
    unread = hidden = 0.0
    for key, span in tokens:
        word = next((words[at] for at in range(*span) if at in words), None)
        if key in unknown:
            if not text[slice(*span)].isascii():
                size = max(1.0, (span[1] - span[0]) / _CHARS_A_TOKEN)
                unread, hidden = unread + size, hidden + size - 1
        elif word is not None:
            pieces[word] += 1
    unread += sum(count for word, count in pieces.items() if _is_spelt(word, count))
    return unread / (len(tokens) + hidden) if tokens else 0.0


def _is_spelt(word: regex.Match[str], pieces: int) -> bool:
    """Return whether a word reaches the model letter by letter, or nearly so."""
    fewest = {"latin": _LATIN_CHARS, "whole": _WHOLE_CHARS}.get(word.lastgroup or "", _OTHER_CHARS)
    return pieces > 1 and len(word[0]) <= fewest * pieces


@cache
def _words() -> regex.Pattern[str]:
    import regex  # takes 50 ms, and English does not need it

    whole = r"\p{Ideographic}\p{Hangul}"
    return regex.compile(
        rf"(?P<whole>[{whole}]+)|(?P<latin>(?:\p{{Latin}}\p{{M}}*)+)"
        rf"|(?P<other>(?:[^{whole}\p{{Latin}}\P{{L}}]\p{{M}}*)+)"
    )
