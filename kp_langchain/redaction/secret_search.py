"""The search for secrets that are known: in any form of writing, and by what stands beside them."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from kp_langchain.redaction.fields import classify_secret
from kp_langchain.redaction.questions import TABLE
from kp_langchain.redaction.spans import lazy_pattern, placeholder, starts_word
from kp_langchain.redaction.structures import KEYS, plain_key

_MAX_CHARS = 4096


class Reach(IntEnum):
    """How far a secret is looked for."""

    BESIDE = 1
    """Only where something beside it says that it is one."""
    WORD = 2
    """Where it is a whole word, and not part of a compound such as `postgres15:latest`."""
    ANYWHERE = 3


class SecretTraits(NamedTuple):
    """What is known of a secret: its kind, and how far it is looked for."""

    kind: str
    reach: Reach


# ------------------------------------------------------------------ the forms of a secret

_NOT_FOR_SHELLS = lazy_pattern(r"([^\w@%+=:,./\-])")
_QUOTES_IN_SHELL_STRINGS = (r"'\''", "'\"'\"'")
# What URLs keep as it is: all or nothing, a path, JavaScript's encodeURIComponent and encodeURI.
_SAFE_IN_URLS = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")
_HEX_IN_URLS = lazy_pattern("%[0-9A-F]{2}")
_WRITE_JSON = (encode_basestring, encode_basestring_ascii)
_SHORTEST_ENCODED = 6  # characters; the form of fewer may be part of any word
_SHORTEST_CODE = 8
_BYTES_OF_GROUP = 3
_DIGITS_OF_CODE = 6  # often written in two groups
_JOINTS = (" ", ", ", ",", "\n", "-", "_", "+", '", "')


def _written_forms(secret: str) -> set[str]:
    """Return how a secret is written: in JSON, also within JSON, in Python, a URL, HTML, a shell."""
    cases = {secret, secret.lower(), secret.upper(), secret.capitalize()}
    if secret.isascii() and secret.isalnum():
        return cases
    content = secret.encode("utf-8", "surrogatepass")
    in_urls = {quote(content, safe=safe) for safe in _SAFE_IN_URLS} | {quote_plus(content)}
    in_urls |= {_HEX_IN_URLS.sub(lambda match: match[0].lower(), form) for form in in_urls}
    forms = {secret, repr(secret)[1:-1], html.escape(secret), html.escape(secret, quote=False)}
    forms.add(_NOT_FOR_SHELLS.sub(r"\\\1", secret))
    forms |= {secret.replace("'", quote) for quote in _QUOTES_IN_SHELL_STRINGS}
    for _ in range(2):
        forms |= {write(form)[1:-1] for form in forms for write in _WRITE_JSON}
    return forms | in_urls | cases


def _encoded_forms(secret: str) -> Iterator[str]:
    """Yield what base64 of any text that contains a secret contains, and the same for digits.

    Base64 writes three bytes as four characters, so the text before the secret decides at which of
    three places it begins in a group. Of each, the characters that the secret alone decides.
    """
    content = secret.encode("utf-8", "surrogatepass")
    codes = [content.hex(), content.hex().upper()]
    for before in range(_BYTES_OF_GROUP):
        code = b64encode(b"\0" * before + content).decode()
        code = code[-(-before * 8 // 6) : (before + len(content)) * 8 // 6]
        codes += [code, code.translate({ord("+"): "-", ord("/"): "_"})]
    yield from (code for code in codes if len(code) >= _SHORTEST_CODE)


def _spellings(secret: str) -> set[str]:
    """Return a secret, a code also in two groups, and a phrase with its words joined in any way."""
    if len(secret) == _DIGITS_OF_CODE and secret.isdigit():
        return {secret, *(f"{secret[:3]}{joint}{secret[3:]}" for joint in " -")}
    if any(map(str.isspace, secret)):
        words = re.split(r"[\s,]+", secret)
        return {secret, *(joint.join(words) for joint in _JOINTS)}
    return {secret}


# ------------------------------------------------------------------ the search for them

_CUT = 12  # characters of its beginning by which a secret is recognised that was cut off
_MAX_BACKSLASHES = 32
_OF_BASE64 = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}={0,2}")
_OF_BASE64_REVERSED = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}")
_PLACEHOLDER_START = b"[REDAC"
_CUT_OFF = (b"...", "…".encode(), b"\\u2026", b"*", b"[")
_SYNTAX = frozenset(b" \t\r\n\"'\\{}[](),:")
_MOST_SYNTAX = 2  # within `_CUT`; many texts in JSON or Python begin alike
_JOINTS_OF_COMPOUNDS = b":./-_"


class _Form(NamedTuple):
    """A way to write a secret, in UTF-8.

    Attributes:
        content: Its characters.
        kind: The kind of the secret.
        reach: How far it is looked for.
        is_encoded: Whether it is base64 or the like, which goes as a whole.
        is_cut: Whether the search is for its beginning alone, from which on it may be cut off.
    """

    content: bytes
    kind: str
    reach: Reach
    is_encoded: bool = False
    is_cut: bool = False


class SecretSearch:
    """Looks for the forms of secrets.

    Args:
        named: The secrets.
    """

    def __init__(self, named: Mapping[str, SecretTraits]) -> None:
        self._named = named
        forms: dict[bytes, _Form] = {}
        for secret, (kind, reach) in named.items():
            if len(secret) >= _SHORTEST_ENCODED:
                for code in _encoded_forms(secret):
                    start = code[:_CUT].encode()
                    forms.setdefault(start, _Form(start, kind, Reach.ANYWHERE, is_encoded=True))
            for text in sorted(_spellings(secret)):
                # Of forms that begin alike, the first is also found cut off: its own spelling.
                others = sorted(_written_forms(text) - {text})
                for form_text in (text, *others):
                    content = form_text.encode("utf-8", "surrogatepass")
                    forms[content] = _Form(content, kind, reach)
        for form in list(forms.values()):
            start = form.content[:_CUT]
            has_beginning = len(form.content) > _CUT and form.reach is not Reach.BESIDE
            if has_beginning and sum(map(_SYNTAX.__contains__, start)) <= _MOST_SYNTAX:
                forms.setdefault(start, form._replace(is_cut=True))
        self._forms = list(forms.values())
        self._places = BytesAhoCorasick(list(forms), matchkind=MatchKind.LeftmostLongest)

    def kind_of_value(self, value: object) -> str | None:
        """Return the kind of the secret that a typed value is as a whole; None if it is none."""
        secret = self._named.get(str(value).strip(" \t\r\n\"'`.,;!"))
        return secret.kind if secret else None

    def clean(self, text: str, counts: Counter[str]) -> str:
        """Return a text without the secrets.

        Args:
            text: Any text.
            counts: The number of replacements per kind; updated.
        """
        content = text.encode("utf-8", "surrogatepass")
        matches = self._places.find_matches_as_indexes(content)
        if not matches:
            return text
        characters = content.decode("latin-1")  # one for each byte
        pieces, position = [], 0
        for number, start, _ in matches:
            form = self._forms[number]
            extent = _extent(form, content, characters, start, position)
            if extent is not None:
                first, end = extent
                counts[form.kind] += 1
                quote = b'"' if _is_json_number(content, first, end) else b""
                pieces += [content[position:first], quote, placeholder(form.kind).encode(), quote]
                position = end
        return b"".join([*pieces, content[position:]]).decode("utf-8", "surrogatepass")


def _extent(
    form: _Form, content: bytes, characters: str, start: int, position: int
) -> tuple[int, int] | None:
    """Return start and end of the secret whose form is at `start`, if it is one there.

    Args:
        form: The form.
        content: The text in UTF-8.
        characters: A character for each byte of it.
        start: The place.
        position: The end of the last secret before it.
    """
    before = content[max(0, start - _MAX_BACKSLASHES) : start]
    if start < position or (len(before) - len(before.rstrip(b"\\"))) % 2:
        return None  # within another one, or the "n" of a line break
    if form.is_encoded:
        left = _OF_BASE64_REVERSED.match(content[max(position, start - _MAX_CHARS) : start][::-1])
        right = _OF_BASE64.match(content, start)
        return start - (left.end() if left else 0), right.end() if right else start
    if not form.is_cut:
        end = start + len(form.content)
        return (
            (start, end) if _is_whole_match(form.reach, content, characters, start, end) else None
        )
    size = _CUT
    end = min(len(form.content), len(content) - start)
    while size < end and content[start + size] == form.content[size]:
        size += 1
    while size < len(form.content) and form.content[size] & 0xC0 == 0x80:
        size -= 1  # within a character
    follows = content[start + size : start + size + 6]
    is_cut = follows.startswith(_CUT_OFF) or (
        form.reach is Reach.ANYWHERE and not follows[:1].isalnum()
    )
    is_replaced = follows == _PLACEHOLDER_START  # the rest was
    if is_cut and size >= _CUT and not is_replaced and starts_word(characters, start):
        return start, start + size
    return None


def _is_whole_match(reach: Reach, content: bytes, characters: str, start: int, end: int) -> bool:
    """Return whether the secret of a form is at a place, and not part of something else."""
    if reach is Reach.ANYWHERE:
        return True
    after = content[end : end + 2]
    if not starts_word(characters, start) or after[:1].isalnum():
        return False
    if after[:1] in _JOINTS_OF_COMPOUNDS and after[1:].isalnum():
        return False
    before = content[max(0, start - 2) : start]
    if before[-1:] in (b"-", b"_", b".") and before[:1].isalnum() and len(before) == 2:
        return False
    return reach is Reach.WORD or _is_marked(content, start, end)


# ------------------------------------------------------------------ what stands beside a word

BEFORE = 64  # bytes
AFTER = 48
_TYPED_KEYS = KEYS.value_keys | KEYS.text_keys | TABLE["typed_keys"]
_KEY_BEFORE = lazy_pattern(
    r"([\w\-]{1,40})\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}(?:\\{0,3}[\"'] {0,4})?\Z"
)
_VALUE_END = lazy_pattern(r"[ .,;!]{0,4}\\{0,3}[\"']|\s{0,40}[,\]}]")
_CLAUSE_END = lazy_pattern(r"[.,;!?]\s|\n")
_WORD = lazy_pattern(r"[^\W_]+(?:[_\-'][^\W_]+)*")
_JSON_NUMBER = lazy_pattern(r"[:,\[]\s{0,40}\Z")
_JSON_NUMBER_END = lazy_pattern(r"\s{0,40}[,\]}]")
_MOST_WORDS = 3  # of a name, and between a verb and what was typed


@lru_cache(maxsize=1024)
def is_typed(key: str) -> bool:
    """Return whether the key of a mapping says that its value is typed or answered."""
    return plain_key(key) in _TYPED_KEYS


def _is_json_number(content: bytes, start: int, end: int) -> bool:
    """Return whether `content[start:end]` is a number that is a value or an item of JSON."""
    before = content[max(0, start - BEFORE) : start].decode("utf-8", "ignore")
    is_number = content[start:end].isdigit() and _JSON_NUMBER.search(before)
    after = content[end : end + AFTER].decode("utf-8", "ignore")
    return bool(is_number and _JSON_NUMBER_END.match(after))


def _is_marked(content: bytes, start: int, end: int) -> bool:
    """Return whether something beside the word `content[start:end]` says that it is a secret.

    That is the name of a secret, a verb of typing, or the key of a text that is typed.
    """
    before = content[max(0, start - BEFORE) : start].decode("utf-8", "ignore")
    after = content[end : end + AFTER].decode("utf-8", "ignore")
    key = _KEY_BEFORE.search(before)
    if key and _VALUE_END.match(after):
        return is_typed(key[1])
    words = _WORD.findall(_CLAUSE_END.split(before)[-1].lower())
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())
    is_object = not following or following[0] in TABLE["after_typed"]
    if is_object and not TABLE["typing"].isdisjoint(words[-_MOST_WORDS:]):
        return True
    if not following and words[-1:] and words[-1] in TABLE["used"]:
        return words[-2:-1] != [] and words[-2] in TABLE["users"]
    return kind_beside(before, after) is not None


def kind_beside(before: str, after: str) -> str | None:
    """Return the kind of secret that a name before or after a word says it is; None if none does."""
    words = _WORD.findall(_CLAUSE_END.split(before)[-1].lower())
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())[: 2 * _MOST_WORDS]
    while words and words[-1] in TABLE["lead_ins"]:
        words.pop()
    kind = _kind_of_last(words)
    if kind is None and following and following[0] in TABLE["naming"]:
        kinds = (_kind_of_last(following[:size]) for size in range(2, len(following) + 1))
        kind = next(filter(None, kinds), None)
    return kind


def _kind_of_last(words: list[str]) -> str | None:
    """Return the kind of secret whose name the last of some words are, such as "PIN" or "code"."""
    if words and words[-1] in TABLE["codes"]:
        return "otp" if TABLE["no_codes"].isdisjoint(words) else None
    fields = (classify_secret(" ".join(words[-size:])) for size in range(1, _MOST_WORDS + 1))
    return next((field.kind for field in fields if field is not None and field.is_strong), None)
