"""Quote placeholders where a bare one is no scalar: YAML, TOML, arguments and assignments in code.

`[REDACTED:pin]` alone is a list in YAML, and nothing in TOML and Python. What was valid before stays
valid, with the same keys and containers. JSON and Python literals are rewritten by `documents`.
"""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from typing import Any

from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import PLACEHOLDER

# PyYAML is imported where a text may be YAML: it takes 20 ms to load, and most runs have none.

_MAX_CHARS = 65_536
_SLOW_CHARS = 4096
# A placeholder that may start a scalar, or be within brackets. A quote does not start one within.
_BARE = lazy_pattern(
    r"(?:\A|[\n\r:=,(\[{?\-!&*])(?:[^\n\r\"']|(?<=[^\s:=,(\[{?\-!&*]) ?[\"']){0,64}\[REDACTED:"
)
_FENCE = lazy_pattern(
    r"^[ \t]*```(?:(?P<yaml>ya?ml)|toml)\b[^\n]*\n(?P<body>.*?)^[ \t]*```", re.MULTILINE | re.DOTALL
)

# What each line of YAML begins with if it is not indented, and what YAML of one entry begins with: no
# label of a sentence, and no header.
_ROOT_LINE = r"(?:(?:[\w.$/@~ \-]{1,80}|\"[^\"\n]*\"|'[^'\n]*'):\s|[\-#%?\s\]}\[{]|\.\.\.)"
_ROOT_LINES = lazy_pattern(rf"(?:{_ROOT_LINE}[^\n]*(?:\n|\Z))+")
_NOT_INDENTED = lazy_pattern(r"^\S", re.MULTILINE)
_ONE_ENTRY = lazy_pattern(
    r"\s*(?:-\s|[\[{]|(?=\w*_|\w*[a-z][A-Z]|[a-z])[\w.\-]{1,64}:\s"
    r"|[\w.\-]{1,64}:[ \t]*\n[ \t]+(?:-\s|[\w.\-]{1,64}:\s))"
)

_PYTHON_STRING = lazy_pattern(r"[A-Za-z]{1,2}([\"']).*\1", re.DOTALL)  # b"...": no YAML is meant
_TAGS = lazy_pattern(r"\A(?:[&!]\S*\s*)*")  # before a scalar: an anchor, a type

_TOML_STRING_OR_COMMENT = (
    r'"""(?s:.*?)"""' r"|'''(?s:.*?)'''" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|\#[^\n]*"
)
_IN_TOML = lazy_pattern(f"({_TOML_STRING_OR_COMMENT})|{PLACEHOLDER.pattern}")

_NUMBER = lazy_pattern(r"[+\-]?\d[\d_]*(?:\.\d+)?")
# An argument of a call, a member of a list, or an assignment: run(pin=4821), [4821], pin = 4821
_ARGUMENT = lazy_pattern(
    r"(?:[(,]\s{0,40}[A-Za-z_]\w{0,64} ?= ?|\[(?:[^\[\]\n]{0,100},)?\s{0,40})\Z"
)
_ASSIGNMENT = lazy_pattern(r"(?:\A|\n)[ \t]*[A-Za-z_][\w.]{0,64} = \Z")
_END_OF_ARGUMENT = lazy_pattern(r"\s*[,)\]]")
_END_OF_LINE = lazy_pattern(r"[ \t]*(?:#[^\n]*)?\r?(?:\n|\Z)")
_REACH = 120


def is_number_in_code(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is the number of an argument or assignment in code."""
    if _NUMBER.fullmatch(text, start, end) is None:
        return False
    before = text[max(0, start - _REACH) : start]
    return bool(
        (_END_OF_ARGUMENT.match(text, end) and _ARGUMENT.search(before))
        or (_END_OF_LINE.match(text, end) and _ASSIGNMENT.search(before))
    )


def quote_scalars(source: str, clean: str) -> str:
    """Return `clean` with quotes around the placeholders that need them to keep the form of `source`.

    Args:
        source: A text before its redaction.
        clean: The same text redacted.
    """
    if len(source) > _MAX_CHARS or _BARE.search(clean) is None:
        return clean
    before, after = (list(_FENCE.finditer(text)) for text in (source, clean))
    if not before or len(before) != len(after):
        return _quote(source, clean)
    for block, clean_block in zip(reversed(before), reversed(after), strict=True):
        start, end = clean_block.span("body")
        clean = (
            f"{clean[:start]}{_quote(block['body'], clean[start:end], block['yaml'])}{clean[end:]}"
        )
    return clean


def _quote(source: str, clean: str, language: str | None = None) -> str:
    if source == clean or _BARE.search(clean) is None:
        return clean
    if language or _is_yaml(source):
        return _quote_in_yaml(clean)
    if "=" in source and _is_toml(source):
        quoted = _IN_TOML.sub(lambda match: match[1] or f'"{match.group()}"', clean)
        return quoted if _is_toml(quoted) else clean
    return clean


def _is_yaml(text: str) -> bool:
    """Return whether a text is YAML with a mapping or a list, rather than prose."""
    if not text.startswith("---\n"):
        is_one_entry = sum(1 for _ in islice(_NOT_INDENTED.finditer(text), 2)) < 2
        match = _ONE_ENTRY.match(text) if is_one_entry else _ROOT_LINES.fullmatch(f"{text}\n")
        if match is None:
            return False
    import yaml  # type: ignore[import-untyped]

    return any(isinstance(event, yaml.CollectionStartEvent) for event in _events(text))


def _events(text: str) -> list[Any]:
    """Return the events of a text that is YAML; none if it is not."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", None)  # without it, reading takes 50 times as long
    if loader is None and len(text) > _SLOW_CHARS:
        return []
    try:
        return list(yaml.parse(text, Loader=loader or yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []


def _quote_in_yaml(text: str) -> str:
    import yaml

    # With letters in its place, a placeholder is a part of a scalar whose start and end can be read.
    letters = PLACEHOLDER.sub(lambda match: "x" * len(match.group()), text)
    pieces, position, flow_depth = [], 0, 0
    for event in _events(letters):
        if isinstance(event, yaml.CollectionStartEvent):
            flow_depth += bool(event.flow_style)
        elif isinstance(event, yaml.CollectionEndEvent):
            flow_depth = max(0, flow_depth - 1)
        elif isinstance(event, yaml.ScalarEvent) and not event.style:
            start, end = event.start_mark.index, event.end_mark.index
            scalar = _TAGS.sub("", text[start:end])
            start = end - len(scalar)
            is_within = flow_depth and not _PYTHON_STRING.fullmatch(scalar)
            if PLACEHOLDER.match(scalar) or (is_within and PLACEHOLDER.search(scalar)):
                pieces += [text[position:start], _quoted(scalar)]
                position = end
    return "".join([*pieces, text[position:]])


def _quoted(scalar: str) -> str:
    if '"' in scalar or "\\" in scalar:
        return "'" + scalar.replace("'", "''") + "'"
    return f'"{scalar}"'


def _is_toml(text: str) -> bool:
    try:
        return bool(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
