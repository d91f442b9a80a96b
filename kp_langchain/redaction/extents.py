"""Start and end of a value: in quotes of any kind, also encoded ones, or unquoted."""

from __future__ import annotations

import re

from kp_langchain.redaction.fields import (
    NEVER_WORDS,
    SENTENCE_WORDS,
    SensitiveField,
    classify_name,
    is_phrase,
    is_placeholder,
    looks_like_password,
    split_name,
)
from kp_langchain.redaction.spans import lazy_pattern, word_set

# ------------------------------------------------------------------ quoted values and words

Extent = tuple[int, int]
"""Start and end of a value in a text."""

# A quote as HTML, URLs and JSON encode it.
ENCODED_QUOTE = r"&(?:quot|apos|[#](?:34|39|x22|x27));|%2[27]|\\{1,40}u00(?:22|27)"
_ENCODED_QUOTE = lazy_pattern(ENCODED_QUOTE)
# Quotation marks of other languages, each with those that close it.
_CLOSING = {
    "\u201c": "\u201d",
    "\u201e": "\u201c\u201d",
    "\u2018": "\u2019",
    "\u201a": "\u2018\u2019",
}
_CLOSING |= {"\u00ab": "\u00bb", "\u00bb": "\u00ab", "\u2039": "\u203a", "\u300c": "\u300d"}
_CLOSING |= {"\u300e": "\u300f", "\u201d": "\u201d", "\u300a": "\u300b", "\u3010": "\u3011"}
TYPOGRAPHIC_QUOTES = "".join(_CLOSING)
_OPEN_QUOTE = lazy_pattern(r"(?:[bBrRuUfFN]{1,2}(?=[\"']))?(\\{0,127})([\"'`])")
_BARE = lazy_pattern(
    r"(?:\[REDACTED:[a-z0-9_#]{1,50}\]|[^\s\x00-\x1f\x7f\"'`,;<>(){}\[\]\\&|"
    r"\u3001\u3002\u3008-\u3011\uff08\uff09\uff0c\uff1b\uff1f\u3040-\ud7ff\u00ab\u00bb\u2018-\u201f]"
    r"|&amp;(?![A-Za-z_][\w.\-]{0,40}=)|&lt;(?![/!]|\w{1,20}(?:[/ ]|&gt;))"
    r"|&(?:gt|quot|apos);(?=\w)"
    r"|&(?![A-Za-z_][\w.\-]{0,40}=|amp;|[lg]t;|#\d|quot;|apos;|&)|\\(?![nrtu\"'\\]))+"
)
_QUOTE = {quote: lazy_pattern(r"(?<!\\)(\\*)" + quote) for quote in "\"'`"}
# What follows a quote that belongs to a string: the same quote, as SQL, YAML and CSV write it, or
# what begins the next part of the string in a shell.
_GOES_ON = {
    "'": lazy_pattern(r"'(?=[^\s,;)\]}])|\\{1,8}''|\"'\"'"),
    '"': lazy_pattern(r"\"(?=[^\s,;)\]}])"),
}
_AFTER_STRING = lazy_pattern(r"[)\]},;]{1,4}(?:\s|\Z)")
_IN_TWO_QUOTES = lazy_pattern(r"[^\s,;:=()'\"`][^\s'\"`]{2,63}[\"'`]")
_REST_OF_LINE = lazy_pattern(r"[^\n\r]+")
# A quote within a word, and the rest of the word
_AFTER_QUOTE = lazy_pattern(
    r"(?<![=:])[\"'`](?=[^\W_])(?:[^\s\x00-\x1f\x7f\"'`,;<>(){}\[\]\\&|]|\\(?![nrtu\"'\\])){1,128}"
)
_MAX_LINE = 400
_MAX_QUOTED = 16_384
_MAX_ENCODED = 4096
_MAX_TYPOGRAPHIC = 256


def _typographic_value(text: str, at: int) -> Extent | None:
    closing = _CLOSING[text[at]]
    start = at + 1
    end = min(
        (i for c in closing if (i := text.find(c, start, start + _MAX_TYPOGRAPHIC)) > 0), default=0
    )
    while start < end and text[start].isspace():
        start += 1
    content = text[start:end].rstrip()
    return (start, start + len(content)) if content and "\n" not in content else None


def quoted_value(text: str, at: int) -> Extent | None:
    """Return start and end of the content of the quoted string that opens at `at`."""
    if text[at : at + 1] in _CLOSING:
        return _typographic_value(text, at)
    opening = _OPEN_QUOTE.match(text, at)
    if opening is None:
        entity = _ENCODED_QUOTE.match(text, at)
        if entity is None:
            return None
        start = entity.end()
        end = text.find(entity.group(), start, start + _MAX_ENCODED)
        return (start, end) if end >= 0 else None
    start = opening.end()
    for more in (2, 1):  # a string in three quotes, or in two as CSV and wikis have it
        if text.startswith(opening[2] * more, start) and not opening[1]:
            inside = start + more
            end = text.find(opening[2] * (more + 1), inside, inside + _MAX_QUOTED)
            if end > inside and (more == 2 or _IN_TWO_QUOTES.match(text, inside, end + 1)):
                return inside, end
    if _AFTER_STRING.match(text, start):
        return None  # the quote closes a string: input("Password: ")
    close = _closing_quote(text, start, opening[2], len(opening[1]))
    if close is None:  # the text is cut off: the rest of the line belongs to the value
        rest = _REST_OF_LINE.match(text, start)
        return (start, rest.end()) if rest and text[start] != ":" else None
    return start, close


def _closing_quote(text: str, start: int, quote: str, depth: int) -> int | None:
    r"""Return the end of the content of the string that starts at `start`.

    JSON within JSON writes its quotes as `\"`, `\\\"`. A string that opens with `depth` backslashes
    before the quote closes with as many. After more backslashes, the quote belongs to the value.
    """
    goes_on = _GOES_ON.get(quote) if depth == 0 else None
    position = start
    for match in _QUOTE[quote].finditer(text, start, start + _MAX_QUOTED):
        extra = len(match[1]) % (2 * (depth + 1))
        if extra > depth or match.end() <= position:
            continue
        more = goes_on.match(text, match.end()) if goes_on and match.end(1) > start else None
        if more is None or not _ends_on_line(text, more.end(), quote):
            return match.end(1) - extra
        position = more.end()
    return None


def _ends_on_line(text: str, at: int, quote: str) -> bool:
    """Return whether a string that goes on at `at` ends on the same line."""
    end = text.find(quote, at, at + _MAX_LINE)
    return end >= 0 and "\n" not in text[at:end]


def _is_open(text: str, at: int, quote: str) -> bool:
    """Return whether the string of a quote before `at`, on the same line, is still open."""
    line_start = text.rfind("\n", max(0, at - _MAX_LINE), at) + 1 or max(0, at - _MAX_LINE)
    return text.count(quote, line_start, at) % 2 == 1


def bare_word(text: str, at: int) -> Extent | None:
    """Return start and end of the unquoted word at `at`, without a full stop after it."""
    match = _BARE.match(text, at)
    if match is None:
        return None
    end = match.end()
    while (rest := _AFTER_QUOTE.match(text, end)) and not _is_open(text, at, text[end]):
        end = rest.end()
    while not text.endswith("...", at, end) and end > at + 1 and text[end - 1] in ".:?":
        end -= 1
    return at, end


def value_at(text: str, at: int) -> Extent | None:
    """Return start and end of the quoted or unquoted value at `at`."""
    return quoted_value(text, at) or bare_word(text, at)


# ------------------------------------------------------------------ unquoted values, as opposed to code, templates and prose

_HOLDERS = word_set("self cls this args config settings get load new read")
_OPENS_CALL = lazy_pattern(r"[(\[]|<(?:[A-Z&]|string|number|boolean|any)")
_IDENTIFIER = lazy_pattern(r"[A-Za-z_][\w.?:]*")
_LINE_START = lazy_pattern(r"(?:\A|[\n\r])[ \t>*#\-]{0,40}(?:export )?\Z")
_LINE = lazy_pattern(r"[^\n\r\\\"'{}<>;]{1,200}")
_DOTTED = lazy_pattern(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_ARROW = lazy_pattern(r"[ \t]{0,4}(?:->|=>|\u2192)")
# A comment, another field, or what the value became.
_COMMENT = lazy_pattern(
    r"[ \t]+(?:#|//|;|--[ \t]|->|=>|\u2192|[-=]\Z).*|,[ \t]{1,4}[\w.\-]{1,64}[:=][ \t].*"
)


def unquoted_value(
    text: str,
    at: int,
    start: int,
    assignment: re.Match[str],
    name: str,
    field: SensitiveField,
) -> Extent | None:
    """Return start and end of the unquoted value at `at`, unless it is code, a template or prose.

    Args:
        text: The whole text.
        at: Where the value would start.
        start: Where the field name starts.
        assignment: The match of the text between name and value, with the group "sign".
        name: The field name.
        field: What the name says about its value.
    """
    span = bare_word(text, at)
    if span is None:
        return None
    value = text[slice(*span)]
    if _OPENS_CALL.match(text, span[1]) and _IDENTIFIER.fullmatch(value):
        return None
    if value == "$" or _DOTTED.fullmatch(value) or "://" in value or _is_other_name(value):
        return None
    if assignment["dash"] and _ARROW.match(text, span[1]):
        return None  # a chain: password -> hash -> database
    if assignment["dash"] and not looks_like_password(value):
        return span if field.kind in ("otp", "pin", "cvv") and value.isdigit() else None
    has_space = assignment["sign"] == ":" and assignment.end() > assignment.end("sign")
    is_sentence = not name.isascii() or text[span[1] : span[1] + 1] == " "
    if is_sentence and not value.isascii() and not any(map(str.isdigit, value)):
        return None  # in another script
    if has_space and value.lower() in SENTENCE_WORDS:
        return None
    if field.kind in NEVER_WORDS:
        return span
    if starts_line(text, start) and (has_space or text[assignment.start("sign") - 1] == " "):
        return _words_of_line(text, span, has_space=has_space)
    return span


def _words_of_line(text: str, span: Extent, *, has_space: bool) -> Extent | None:
    """Extend the value `span` to the end of its line, a comment and other fields left out; None if that is prose.

    A line of more than six words, or one that starts with a placeholder, does not extend it.
    """
    at = span[0]
    line = _LINE.match(text, at)
    content = _COMMENT.sub("", line.group()).rstrip(" \t,") if line else ""
    words = content.split()
    if at + len(content) <= span[1] or len(words) > 6 or is_placeholder(words[0]):
        return span
    if has_space and not is_phrase(content) and not looks_like_password(text[slice(*span)]):
        return None
    return at, at + len(content.rstrip())


def starts_line(text: str, start: int) -> bool:
    """Return whether only indentation precedes `start` on its line."""
    return _LINE_START.search(text, max(0, start - 48), start) is not None


def _is_other_name(value: str) -> bool:
    """Return whether an unquoted value is a variable: `token=userToken`, `key=get_key`."""
    words = split_name(value)
    if any(map(str.isdigit, value)) or len(words) < 2 or _IDENTIFIER.fullmatch(value) is None:
        return False
    return words[0] in _HOLDERS or classify_name(value) is not None
