"""Where a quoted string ends when it may itself lie inside other quoted strings."""

from __future__ import annotations

import re

_QUOTE = {quote: re.compile(r"(?<!\\)(\\*)" + quote) for quote in "\"'`"}


def closing_quote(text: str, start: int, quote: str, backslashes: int, limit: int) -> int | None:
    r"""Find where the string that was opened before `start` ends.

    JSON within JSON within JSON writes its quotes as `"`, `\"`, `\\\"`: 2**d - 1 backslashes at
    depth d. A run of r backslashes before a quote closes a string of depth d when r modulo
    2**(d+1) is at most 2**d - 1; with more, the quote belongs to the value.

    Args:
        text: The whole text.
        start: The first character of the string's inside.
        quote: The quote character that opened it.
        backslashes: How many backslashes stood before the opening quote.
        limit: How many characters to look at.

    Returns:
        The end of the inside (before the closing quote's backslashes), or None within the limit.
    """
    nested = backslashes & (backslashes + 1) == 0
    period = 2 * (backslashes + 1)
    for match in _QUOTE[quote].finditer(text, start, start + limit):
        run = match.end(1) - match.start(1)
        if nested:
            extra = run % period
            if extra <= backslashes:
                return match.end(1) - extra
        elif run <= backslashes:
            return match.start()
    return None
