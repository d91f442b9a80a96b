"""Reasoning that a model writes into its text, between `<think>` tags.

Only what stands where a model puts it counts: a text that shows the tags in code, or names them in
a sentence, is an answer.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_OPENS = re.compile(r"\s*<think(?:ing)?>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_CODE_LEFT_OPEN = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_READ_CHARS = 200_000  # further on no tags are looked for, but the end of the first reasoning


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a model's text into its reasoning, without the tags, and what it says.

    Tags count at the beginning of a text and of a line; after a first one everywhere. One that is
    never closed holds all the rest. A text whose first tag closes begins with reasoning: templates
    of some models put the opening one into the prompt.
    """
    if "<think" not in text and "</think" not in text:
        return "", text
    thoughts: list[str] = []
    said: list[str] = []
    at = _leading(text, thoughts)
    reasons = at > 0
    masked = _CODE_LEFT_OPEN.sub(_blank, text[at : at + _READ_CHARS])
    text, at = text[at:], 0
    begin: re.Match[str] | None = None
    for tag in _TAG.finditer(masked):
        if begin is None:
            if not tag[1] and (reasons or _begins_line(masked, tag.start())):
                begin = tag
        elif tag[1]:
            said.append(text[at : begin.start()])
            thoughts.append(text[begin.end() : tag.start()])
            at, begin, reasons = tag.end(), None, True
    if begin is not None and reasons:
        said.append(text[at : begin.start()])
        thoughts.append(text[begin.end() :])
    else:
        said.append(text[at:])
    if not thoughts:
        return "", text
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(said).strip()


def _leading(text: str, thoughts: list[str]) -> int:
    """Add the reasoning that a text begins with; return where what follows it begins."""
    masked = _CODE.sub(_blank, text[:_READ_CHARS])
    opening = _OPENS.match(text)
    start = opening.end() if opening else 0
    closing = next((tag for tag in _TAG.finditer(masked, start) if tag[1] or not opening), None)
    if opening:
        # A stray backtick may have hidden the end.
        closing = closing or next((tag for tag in _TAG.finditer(text, start) if tag[1]), None)
    elif closing is None or not closing[1] or not _stands_alone(masked, closing):
        return 0
    if closing is None:
        thoughts.append(text[start:])
        return len(text)
    thoughts.append(text[start : closing.start()])
    return closing.end()


def _stands_alone(text: str, tag: re.Match[str]) -> bool:
    return _begins_line(text, tag.start()) or text.startswith("\n\n", tag.end())


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


def _blank(code: re.Match[str]) -> str:
    return " " * len(code[0])
