"""How much of a text an embedding model can read, judged by its tokeniser.

A model for English receives a Chinese text as one unknown token after another, a Korean one as
fragments of syllables, a Russian one letter by letter. It still returns a vector, but the vector
says little more than which language it was: two unrelated texts look alike.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.embedding.model_names import MODEL_VARIABLE, MULTILINGUAL_MODEL
from kp_langchain.embedding.window import fit

if TYPE_CHECKING:
    import regex
    from tokenizers import Tokenizer

UNREADABLE_ABOVE = 0.4
"""Share of unreadable tokens above which a text has no novelty.

Measured by `python -m tests.benchmarks.languages` with all-MiniLM-L6-v2 in 19 languages. Below this
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


def warn_unreadable(share: float) -> None:
    """Log, once per process, that novelty is not measured for unreadable texts, and what to do.

    Args:
        share: The share of this text's tokens that cannot be read, 0 to 1.
    """
    warn_once(
        "unreadable",
        "novelty is 0.5 for runs whose language the embedding model cannot read (%.0f %% of the "
        "tokens of this one); for Chinese, Russian, Arabic, Hindi and others set %s=%s, a "
        "multilingual model that also has 384 dimensions",
        100 * share,
        MODEL_VARIABLE,
        MULTILINGUAL_MODEL,
    )
