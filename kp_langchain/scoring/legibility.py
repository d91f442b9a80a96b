"""How much of a text an embedding model can read, as far as its tokeniser tells.

A model that reads English gets a Chinese text as one unknown token after another, and a Korean
one as fragments of syllables. It still returns a vector, but that says little more than which
language it was: two unrelated texts look alike.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kp_langchain._notices import warn_once
from kp_langchain.scoring.models import MODEL_VARIABLE, MULTILINGUAL_MODEL
from kp_langchain.scoring.window import both_ends

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNREADABLE_ABOVE = 0.15
"""Share of unreadable tokens above which a text has no novelty.

Measured by tests/benchmarks/bench_languages.py with all-MiniLM-L6-v2: below it, a task in other
words is told from other tasks as surely as where all can be read (AUC 0.98 to 1.00), above it on
the whole less so (0.73 where most is unreadable). Of 1,335 recorded runs in English none has more
than 0.04. Nine in ten Japanese texts have more than the limit, and all Chinese and Korean ones.
"""

SAMPLE_CHARS = 1024
"""As much of a text as is looked at: about what all-MiniLM-L6-v2's window holds of English."""

_UNKNOWN = ("[UNK]", "<unk>")


def unreadable_share(tokeniser: Tokenizer, text: str) -> float:
    """Return the share of a text's tokens that tell the model nothing, 0 to 1.

    These are the unknown ones, and those that are a piece of one character: jamo of a Korean
    syllable, or bytes. Tokens of ASCII characters always count as read.

    Args:
        tokeniser: The model's; if it truncates, only its window counts.
        text: The text, of which `SAMPLE_CHARS` characters are looked at, half at each end.
    """
    text = both_ends(text, SAMPLE_CHARS)
    if text.isascii():
        return 0.0
    encoding = tokeniser.encode(text, add_special_tokens=False)
    unknown = {tokeniser.token_to_id(name) for name in _UNKNOWN}
    pairs = zip(encoding.ids, encoding.offsets, strict=True)
    tokens = [(key, span) for key, span in pairs if span[0] < span[1]]
    times = Counter(span for _, span in tokens)
    unread = sum(
        (key in unknown or times[span] > 1) and not text[slice(*span)].isascii()
        for key, span in tokens
    )
    return unread / len(tokens) if tokens else 0.0


def warn_unreadable(share: float) -> None:
    """Log, once per process, that novelty is not measured for such texts, and what to do.

    Args:
        share: The share of this text's tokens that cannot be read, 0 to 1.
    """
    warn_once(
        "unreadable",
        "novelty is 0.5 for runs whose language the embedding model cannot read (%.0f %% of the "
        "tokens of this one); for Chinese, Japanese, Korean and others set %s=%s, a multilingual "
        "model with 384 dimensions, too",
        100 * share,
        MODEL_VARIABLE,
        MULTILINGUAL_MODEL,
    )
