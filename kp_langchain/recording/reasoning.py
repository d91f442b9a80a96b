"""Reasoning that a model writes into its text, between `<think>` tags.

Tags count only where a model puts them: a text that shows them in code, or mentions them in a
sentence, is an answer.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_OPENING = re.compile(r"\s*<think(?:ing)?>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_CODE_LEFT_OPEN = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_SEARCHED_CHARS = 200_000  # beyond, only the end of the first reasoning is searched for


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a model's text into its reasoning, without the tags, and its answer."""
    parts = reasoning_parts(text)
    if not parts:
        return "", text
    answer = "".join(part for part, is_reasoning in parts if not is_reasoning)
    return "\n".join(part.strip() for part, is_reasoning in parts if is_reasoning), answer.strip()


def reasoning_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a model's text in order, without the tags; none if it has no tags.

    Tags count at the beginning of the text and of a line; after the first one, everywhere. An
    opening tag that is never closed encloses all the rest. A text whose first tag is a closing one
    begins with reasoning: the templates of some models put the opening tag into the prompt.

    Returns:
        Each part, and whether it is reasoning.
    """
    if "<think" not in text and "</think" not in text:
        return []
    parts: list[tuple[str, bool]] = []
    at = _leading(text, parts)
    has_reasoning = at > 0
    outside_code = _CODE_LEFT_OPEN.sub(_blank, text[at : at + _SEARCHED_CHARS])
    text, at = text[at:], 0
    begin: re.Match[str] | None = None
    for tag in _TAG.finditer(outside_code):
        if begin is None:
            if not tag[1] and (has_reasoning or _begins_line(outside_code, tag.start())):
                begin = tag
        elif tag[1]:
            parts.append((text[at : begin.start()], False))
            parts.append((text[begin.end() : tag.start()], True))
            at, begin, has_reasoning = tag.end(), None, True
    if begin is not None and has_reasoning:
        parts.append((text[at : begin.start()], False))
        parts.append((text[begin.end() :], True))
    elif has_reasoning:
        parts.append((text[at:], False))
    return [part for part in parts if part[0].strip()] or parts


def _leading(text: str, parts: list[tuple[str, bool]]) -> int:
    """Add the reasoning that a text begins with to `parts`; return the position after it."""
    outside_code = _CODE.sub(_blank, text[:_SEARCHED_CHARS])
    opening = _OPENING.match(text)
    start = opening.end() if opening else 0
    closing = next(
        (tag for tag in _TAG.finditer(outside_code, start) if tag[1] or not opening), None
    )
    if opening:
        # A stray backtick may have hidden the end.
        closing = closing or next((tag for tag in _TAG.finditer(text, start) if tag[1]), None)
    elif closing is None or not closing[1] or not _stands_alone(outside_code, closing):
        return 0
    end = len(text) if closing is None else closing.start()
    parts.append((text[start:end], True))
    return end if closing is None else closing.end()


def _stands_alone(text: str, tag: re.Match[str]) -> bool:
    return _begins_line(text, tag.start()) or text.startswith("\n\n", tag.end())


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


def _blank(code: re.Match[str]) -> str:
    return " " * len(code[0])
