"""Values of sensitive fields in a text.

One pass over the stems of sensitive names finds `key=value`, `key: value`, headers, typed code,
`--flag value`, XML, pairs, and sentences. `documents` reads JSON and Python literals; here they only
matter where they are broken or cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from kp_langchain.redaction.extents import (
    Extent,
    quoted_value,
    starts_line,
    unquoted_value,
    value_at,
)
from kp_langchain.redaction.fields import (
    TAILS,
    SensitiveField,
    classify_name,
    is_evident,
    is_random,
    is_sensitive,
    looks_like,
    looks_like_password,
    may_end_name,
    without_accents,
)
from kp_langchain.redaction.finders import JOINT, Finder, expression_of_names, stems_in
from kp_langchain.redaction.sentences import (
    BELOW,
    CODES,
    NOTATIONS,
    TABLE_EXPRESSIONS,
    code_in_groups,
    linked_value,
    value_in_prose,
)
from kp_langchain.redaction.spans import (
    DIGITS,
    LETTERS,
    PLACEHOLDER,
    Span,
    escape_length_before,
    lazy_pattern,
)

# The meaning of the words "key" and "code" alone.
_WORD_KEY = SensitiveField("api_key", is_strong=False)
_WORD_CODE = SensitiveField("token", is_strong=False)
_ONE_TIME = SensitiveField("otp")
_TAIL = lazy_pattern(
    expression_of_names("".join(JOINT + word for word in tail) for tail in TAILS) + r"(?![a-z0-9])"
)
_NAME_LEFT = lazy_pattern(r"[A-Za-z0-9_\-]{0,64}")
_NAME_RIGHT = lazy_pattern(r"[A-Za-z0-9_\-]{0,64}")
# Characters that may be part of an escape before a name.
_IN_ESCAPE = frozenset(f"{LETTERS}{DIGITS}_-\\%[;")
_WORDS_LEFT = lazy_pattern(r"[ .](?:[A-Za-z0-9\-]{1,20}(?:[ .]|(?![A-Za-z0-9]))){1,2}")
_TAG_BEFORE = lazy_pattern(r"<(?:[\w.\-]{1,20}:)?\Z")
_SIGN_OF_CODE = lazy_pattern(r"(?:=|[\"']:[ ]?)(?=[\"']?[\w\-./%]{10})")
_OAUTH = lazy_pattern(
    r"state=|callback|oauth|authorization_code|redirect_uri|scope=|grant_type", re.IGNORECASE
)
_ASSIGN = TABLE_EXPRESSIONS["assignment"]
_BLOCK = lazy_pattern(
    r"(?P<marker>[|>][+\-\d]{0,2}[ \t]{0,8})?(?:\r?\n|\\{1,16}n)[ \t]{1,40}(?P<item>-[ \t]{1,8})?(?=\S)"
)
_INDENTED_LINES = lazy_pattern(
    r"(?:\r?\n[ \t]*)*?\r?\n(?P<indent>[ \t]+)\S[^\n]*(?:\n(?:[ \t]*\r?\n)*(?P=indent)[ \t]*\S[^\n]*)*"
)
_HEADERS = {kind: TABLE_EXPRESSIONS[kind] for kind in ("authorization", "cookie")}
_UNQUOTED_WORD = lazy_pattern(r"[^\s\"'`,;&|<>(){}\[\]]*")
_LONG_WORD = 1024
_NEXT_ITEM = lazy_pattern(
    r"""["'`]?[\s,;|\[\]\u2022\u2610*\-]{1,6}(?:\d{1,2}[.)][ ])?["'`]?
    (?P<value>[A-Za-z0-9]{4,12}(?:[ \-][A-Za-z0-9]{4,12}){0,8})(?!\w)""",
    re.VERBOSE,
)
# The rest of a string in parts: "..." "...", "..." + "..."
_NEXT_PART = lazy_pattern(
    r"""(?P<quote>["'])[ \t]{0,4}(?:\\?\n\s{0,80}|[+.]\s{0,80})[ \t]{0,4}
    (?P=quote)(?P<value>[^"'\n\\]{2,512})(?=(?P=quote)(?!\s{0,8}:))""",
    re.VERBOSE,
)
# What a value became: "from ... to ...", "... -> ..."
_NEXT_VALUE = lazy_pattern(
    r"""["'`]?[ \t](?:to|into|auf|al?|\u00e0|naar|na|til|till|\u043d\u0430|->|=>|\u2192)[ \t]["'`]?
    (?P<value>[^\s"'`,;]{4,512}?)(?=[.!]?(?:[\s"'`,;]|\Z))""",
    re.VERBOSE,
)
_KEY_SIGN = lazy_pattern(r" ?[=:] ?")
_PRINTED = lazy_pattern(r"\] => ")  # by print_r of PHP
_BUILDER = lazy_pattern(r"(?:with|using|use)_?(?=[A-Za-z])", re.IGNORECASE)
_MAX_NAMES_IN_WORD = 8
# Searches in prose that may fail: this many, and one more for each `_CHARS_PER_NAME` characters. A
# text with more names that have no value is no prose.
_FEW_NAMES = 400
_CHARS_PER_NAME = 40


def finders(*, identifiers: bool) -> tuple[Finder, ...]:
    """Return the finders of the values of sensitive fields in a text.

    Args:
        identifiers: Whether fields that identify a person count as sensitive.
    """
    return (Finder(partial(_find, identifiers=identifiers), is_named=True),)


def _find(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    plain = without_accents(low)
    position = word_end = names_in_word = 0
    searches_left = _FEW_NAMES + len(text) // _CHARS_PER_NAME
    for first, last in stems_in(low):
        if first < position:
            continue
        start, end = _name_around(plain, first, last, position)
        position = end
        if end > word_end:
            names_in_word = 0
            word = _UNQUOTED_WORD.match(text, start)
            word_end = word.end() if word else end
        names_in_word += 1
        if names_in_word > _MAX_NAMES_IN_WORD and word_end - start > _LONG_WORD:
            continue  # the value of each name would be read up to the end of the word
        if text.startswith("[REDACTED:", max(0, start - 10)):
            continue
        if start and text[start - 1] in _IN_ESCAPE:
            start = min(start + _escape_inside(text, start), first)
        value = _value_of_name(text, plain, start, end, in_prose=searches_left > 0)
        searches_left -= value is None
        if value is not None and (identifiers or not value[1].is_identifier):
            (start, end), field = value
            following = _NEXT_ITEM if plain.endswith("s", 0, position) else _NEXT_PART
            yield Span(start, end, field.kind)
            position = max(position, end)
            while other := following.match(text, position) or _NEXT_VALUE.match(text, position):
                if other.re is not _NEXT_PART and not is_evident(other["value"], field):
                    break
                position = other.end()
                yield Span(*other.span("value"), field.kind)


def names_in(text: str, low: str) -> Iterator[tuple[int, int, SensitiveField]]:
    """Yield start and end of each name of a secret in a text, and what it says about its value.

    Args:
        text: Any text.
        low: The text in lower case, of the same length.
    """
    plain = without_accents(low)
    position = 0
    for first, last in stems_in(low):
        if first < position:
            continue
        start, end = _name_around(plain, first, last, position)
        tail = _TAIL.match(plain, end)
        position = end = tail.end() if tail and classify_name(plain[start : tail.end()]) else end
        _, field = _classify(text, plain, start, end)
        if field is not None and not field.is_identifier:
            yield start, end, field


def _name_around(plain: str, first: int, last: int, position: int) -> tuple[int, int]:
    """Return start and end of the name that contains a stem, in a text without accents."""
    reach = plain[max(position, first - 64) : first]
    before = _NAME_LEFT.match(reach[::-1])
    right = _NAME_RIGHT.match(plain, last)
    return first - (before.end() if before else 0), right.end() if right else last


def _escape_inside(text: str, start: int) -> int:
    r"""Return how many characters at `start` end an escape before the name: `\nPASSWORD`."""
    for length in (1, 2, 3, 5, 6):
        if escape_length_before(text, start + length) > length:
            return length
    return 0


def _value_of_name(
    text: str, plain: str, start: int, end: int, *, in_prose: bool
) -> tuple[Extent, SensitiveField] | None:
    """Return the sensitive value of the name at `text[start:end]`, with what the name says.

    Without `in_prose`, the value must follow a sign, or stand in a notation such as XML.
    """
    if end - start == len(text):
        return None
    tail = _TAIL.match(plain, end)
    if tail is not None and classify_name(plain[start : tail.end()]):
        end = tail.end()
    after = text[end : end + 1]
    before = text[max(0, start - 2) : start]
    if before == "//" or (after == "]" and before[-1:] == "[" and not _PRINTED.match(text, end)):
        return None  # https://token:...@host, cache[token]
    name, field = _classify(text, plain, start, end)
    if field is None:
        word = plain[start:end]
        code = linked_value(CODES, text, start, end, _ONE_TIME) if word == "code" else None
        if code is not None:
            return code, _ONE_TIME
        name, field = "key", _WORD_CODE if word == "code" else _WORD_KEY
        extents = _after_bare_word(text, start, end, word)
    else:
        extents = _after_name(text, start, end, name, field, in_prose=in_prose)
    for extent in extents:
        if extent is not None and PLACEHOLDER.fullmatch(text, *extent):
            return None
        if extent is not None and is_sensitive(text[slice(*extent)], name, field):
            return extent, field
    return None


def _after_name(
    text: str, start: int, end: int, name: str, field: SensitiveField, *, in_prose: bool
) -> Iterator[Extent | None]:
    """Yield what may be the value of a name: after a sign, in a notation, in a sentence."""
    is_element = text[end : end + 1] in (" ", "\t") and _TAG_BEFORE.search(
        text, max(0, start - 24), start
    )
    assignment = None if is_element else _ASSIGN.match(text, end)
    if assignment is not None:
        yield _value_after_sign(text, start, assignment, name, field)
    elif end < len(text) and (extent := linked_value(NOTATIONS, text, start, end, field)):
        yield extent
        return
    if in_prose and not name.lower().startswith("your_"):
        yield value_in_prose(text, start, end, name, field)


def _classify(text: str, plain: str, start: int, end: int) -> tuple[str, SensitiveField | None]:
    """Return the name at `text[start:end]`, with words before it if needed, and what it says."""
    name = text[start:end]
    field = classify_name(name)
    if field is None and text[end : end + 1] == "(":
        field = classify_name(_BUILDER.sub("", name, count=1))  # with_api_key("...")
    if field is None:
        return _with_words_before(text, plain, start, end) if may_end_name(name) else (name, None)
    if field.kind == "password" and plain.endswith(("one-time ", "one time "), 0, start):
        return name, _ONE_TIME
    return name, field


def _with_words_before(
    text: str, plain: str, start: int, end: int
) -> tuple[str, SensitiveField | None]:
    """Classify the name together with up to two words before it: "API Key", "card number"."""
    before = _WORDS_LEFT.match(plain[max(0, start - 44) : start][::-1])
    if before is None:
        return "", None
    name = text[start - before.end() : end].replace(".", " ").strip()
    return name, classify_name(name)


def _after_bare_word(text: str, start: int, end: int, word: str) -> Iterator[Extent | None]:
    """Yield what may be the value of the word "key" or "code" alone: only a random one is."""
    if word == "code":
        sign = _SIGN_OF_CODE.match(text, end)
        if sign is not None and _OAUTH.search(text, max(0, start - 160), end + 400):
            yield value_at(text, sign.end())
    elif (
        word == "key"
        and (sign := _KEY_SIGN.match(text, end))
        and (text[start - 1 : start] in ("?", "&") or starts_line(text, start))
    ):  # of a URL, or in a file of settings
        extent = value_at(text, sign.end())
        value = text[slice(*extent)] if extent else ""
        may_be_hash = text[start - 1 : start] in ("?", "&") and "-" not in value
        is_other = looks_like("hash or UUID", value) and not may_be_hash
        if len(value) >= 20 and is_random(value) and not is_other:
            yield extent
    elif word == "key":
        yield linked_value(BELOW, text, start, end, _WORD_KEY)


def _value_after_sign(
    text: str, start: int, assignment: re.Match[str], name: str, field: SensitiveField
) -> Extent | None:
    """Return start and end of the value after the sign: `=`, `:`, `=>` ..."""
    at = assignment.end()
    extent = (
        _header_value(text, start, at, field)
        or quoted_value(text, at)
        or code_in_groups(text, at, field)
    )
    if extent is not None:
        return extent
    block = _BLOCK.match(text, at) if field.is_strong and starts_line(text, start) else None
    if block is not None:
        return _block_value(text, block)
    return unquoted_value(text, at, start, assignment, name, field)


def _header_value(text: str, start: int, at: int, field: SensitiveField) -> Extent | None:
    """Return start and end of an Authorization or Cookie header's value; it may contain spaces."""
    header = _HEADERS.get(field.kind)
    match = header.match(text, at) if header else None
    if match is None or not match["long"]:
        return match.span("value") if match else None
    quote = text[start - 1 : start]
    end = text.find(quote, at, match.end()) if quote in ("'", '"') else -1
    return at, end if end >= 0 else match.end()


def _block_value(text: str, block: re.Match[str]) -> Extent | None:
    """Return start and end of a value on the line after its name, or of all lines of a block, as in YAML."""
    if block["marker"] and (lines := _INDENTED_LINES.match(text, block.end("marker"))):
        return lines.start("indent") + len(lines["indent"]), lines.end()
    span = value_at(text, block.end())
    is_value = span and (block["item"] or looks_like_password(text[slice(*span)]))
    return span if is_value else None
