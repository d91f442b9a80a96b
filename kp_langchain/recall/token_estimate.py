"""How many tokens a text may have, without a tokeniser."""

from __future__ import annotations

import re

# Each match counts as one token: four lower-case letters, or two after a digit; any other
# character; a second blank, or a blank after a character beyond ASCII.
_PIECE = re.compile(r"(?<=[0-9])[a-z]{1,2}|[a-z]{1,4}|[^a-z ]| (?= )|(?<=[^\x00-\x7f]) ")
# Characters that a vocabulary may lack are one token for each of their bytes in UTF-8. Han, kana
# and Hangul count as two tokens, other characters of three bytes as three.
_THREE_BYTES = re.compile("[\u0800-\uffff]")
_RARE = re.compile("[\u0800-\u1fff\ua000-\uabff]")
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")


def estimate_tokens(text: str) -> int:
    """Return a number of tokens that the tokenisers of language models rarely exceed.

    For ordinary text, source code and JSON it is more than they count. A text of random letters and
    digits alone, such as a list of ids, may have more tokens than this.

    Args:
        text: Any text.
    """
    tokens = len(_PIECE.findall(text))
    if not text.isascii():
        tokens += len(_THREE_BYTES.findall(text)) + len(_RARE.findall(text))
        tokens += 3 * len(_FOUR_BYTES.findall(text))
    return tokens
