"""The end of a quoted string that may lie inside other quoted strings."""

from __future__ import annotations

import re

_QUOTE = {quote: re.compile(r"(?<!\\)(\\*)" + quote) for quote in "\"'`"}


def closing_quote(text: str, start: int, quote: str, backslashes: int, limit: int) -> int | None:
    r"""Return the end of the string whose content starts at `start`.

    JSON within JSON within JSON writes its quotes as `"`, `\"`, `\\\"`: 2**d - 1 backslashes at
    depth d. A run of r backslashes before a quote closes a string of depth d when r modulo
    2**(d+1) is at most 2**d - 1; with more, the quote belongs to the value.

    Args:
        text: The whole text.
        start: Index of the first character of the string's content.
        quote: The opening quote character.
        backslashes: The number of backslashes before the opening quote.
        limit: The most characters to search.

    Returns:
        The end of the content (before the backslashes of the closing quote), or None if the string
        does not end within the limit.
    """
    is_json_escaped = backslashes & (backslashes + 1) == 0
    period = 2 * (backslashes + 1)
    for match in _QUOTE[quote].finditer(text, start, start + limit):
        run = match.end(1) - match.start(1)
        if is_json_escaped:
            extra = run % period
            if extra <= backslashes:
                return match.end(1) - extra
        elif run <= backslashes:
            return match.start()
    return None
