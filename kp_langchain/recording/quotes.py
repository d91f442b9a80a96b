"""Removes from a run's texts what it quotes of the examples that it was shown.

A model that repeats an example has not thought that itself, and a retriever's output that holds one
is no finding of this run. Left in, a kept trace would carry others inside it.
"""

from __future__ import annotations

from collections.abc import Iterable

# Shorter lines, such as `Answer: yes`, may well be the run's own.
_SHORTEST_QUOTE_CHARS = 24
_MOST_LINES = 1000


def quotable_lines(texts: Iterable[str]) -> list[str]:
    """Return the lines of examples that count as a quote wherever they stand, the longest first."""
    lines = {line.strip() for text in texts for line in text.splitlines()[:_MOST_LINES]}
    quotable = (line for line in lines if len(line) >= _SHORTEST_QUOTE_CHARS)
    return sorted(quotable, key=lambda line: (-len(line), line))[:_MOST_LINES]


def without_quotes(text: str, lines: Iterable[str]) -> str:
    """Return `text` without the lines of examples in it.

    Args:
        text: A thought, or what a call returned.
        lines: As `quotable_lines` returns them.
    """
    rest = text
    for line in lines:
        if line in rest:
            rest = rest.replace(line, "")
    if rest is text:
        return text
    return "\n".join(line for line in map(str.strip, rest.splitlines()) if line)
