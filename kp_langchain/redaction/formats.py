"""Credentials recognised by their format, or by a marker such as `sk_` before random characters.

The formats are the rows of the table `issuers.toml`, which explains its notation. One pass over the
long words of a text finds all prefixes. The expression of a row is compiled when its prefix first
occurs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.spans import (
    DIGITS,
    LETTERS,
    TOKEN_CLASS,
    Span,
    character_classes,
    class_table,
    lazy_pattern,
    load_table,
    long_runs,
    starts_word,
    trie,
)

# ------------------------------------------------------------------ published formats and markers


class Format(NamedTuple):
    """A row of the table.

    Attributes:
        kind: The kind that the placeholder names.
        expression: What follows the prefix, or the whole, in the notation of the table.
        check: What else must hold: "random", "json", "base58", or nothing.
    """

    kind: str
    expression: str
    check: str


_ALPHABETS = {
    "h": "0-9A-Fa-f",
    "d": "0-9",
    "a": "a-z",
    "l": "a-z0-9",
    "A": "A-Z0-9",
    "x": "A-Za-z0-9",
    "u": r"A-Za-z0-9_\-",
    "b": "A-Za-z0-9+/",
    "B": "A-Z2-7",
    "z": "1-9A-HJ-NP-Za-km-z",
}
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_FIELD = lazy_pattern(rf"\{{([{''.join(_ALPHABETS)}])([\d,]*)\}}")
_UUID = "{h8}-{h4}-{h4}-{h4}-{h12}"

_TABLE = load_table("issuers")
_GENERIC = _TABLE.pop("generic")
_MARKERS = frozenset(_GENERIC["markers"])
_SURE_MARKERS = frozenset(_GENERIC["sure_markers"])
_ID_PREFIXES = frozenset(_GENERIC["id_prefixes"])
_COMMON_PAIRS = frozenset(_GENERIC["common_pairs"])

_BY_PREFIX: dict[str, list[Format]] = {}
_UNPREFIXED: list[Format] = []
for _kind, _rows in _TABLE.items():
    for _row in _rows:
        _format = Format(_kind, _row.get("body") or _row["pattern"], _row.get("check", ""))
        for _prefix in _row.get("prefixes", ()):
            _BY_PREFIX.setdefault(_prefix, []).append(_format)
        if "pattern" in _row:
            _UNPREFIXED.append(_format)

_PREFIX = lazy_pattern(trie(sorted(_BY_PREFIX)))
# The prefixes with which each prefix starts, the longest first.
_CANDIDATES = {
    longest: [longest[:end] for end in range(len(longest), 0, -1) if longest[:end] in _BY_PREFIX]
    for longest in _BY_PREFIX
}
_MIN_CHARS = 18  # of the shortest format, prefix included
_MIN_MARKED_CHARS = 23
# In every secret with a marker, and in every format without a prefix.
_LONG_WORD = lazy_pattern(r"[A-Za-z0-9_.+~\-]{20}")
# Every credential has a digit or an upper-case letter.
_NOT_LOWER = lazy_pattern("[0-9A-Z]")
_MAX_CHECKED_CHARS = 80
# A prefix of this length that ends in punctuation may directly follow a word.
_MIN_FREE_PREFIX_CHARS = 4

# Directly after an escape, which is not a part of the word, or after another character.
_WORD_START = r"""(?x: (?<=\\) (?: [nrtfbv] | u[0-9A-Fa-f]{4} | x[0-9A-Fa-f]{2} )
    | (?<=%) [0-9A-Fa-f]{2} | (?<=\[) [0-9;]{1,8}m | (?<![A-Za-z0-9]) )"""
_WORD = lazy_pattern(_WORD_START + r"(?<![_\-])(?P<word>[A-Za-z0-9_\-]{23,512})(?![A-Za-z0-9_\-])")
_SEPARATOR = lazy_pattern(r"[_\-]")
_HEXADECIMAL = lazy_pattern(r"[0-9a-f]+|[0-9A-F]+")
_SHORT_NAME = lazy_pattern(r"[a-z]{2,6}")
_CLAIM = lazy_pattern(rb'"[a-z_]{2,20}":["{\[\d]')


def _find(text: str, _low: str, *, with_markers: bool) -> Iterator[Span]:
    """Yield the credentials with an issuer's published format, or a marker if these are wanted."""
    for first, last in long_runs(character_classes(text, TOKEN_CLASS), _MIN_CHARS):
        if _NOT_LOWER.search(text, first, last) is None:
            continue  # a path, an address or a name
        position = first
        while (prefix := _PREFIX.search(text, position, last)) is not None:
            span = _match_prefix(text, prefix.start(), prefix.group())
            position = span.end if span else prefix.start() + 1
            if span:
                yield span
        if last - first >= _MIN_MARKED_CHARS and _LONG_WORD.search(text, first, last):
            yield from _find_without_prefix(text, first, last)
            if with_markers:
                yield from _find_markers(text, first, last)


def _find_without_prefix(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _unprefixed().finditer(text, first, min(last + 1, len(text))):
        group = match.lastgroup or ""
        row = _UNPREFIXED[int(group[1:])]
        if _passes(row.check, match[group]):
            yield Span(*match.span(group), row.kind)


def _find_markers(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _WORD.finditer(text, first, last):
        if _is_marked_secret(match["word"]):
            yield Span(*match.span("word"), "api_key")


def _match_prefix(text: str, start: int, longest: str) -> Span | None:
    """Return the credential whose prefix starts at `start`; the longest prefix is tried first."""
    begins_word = starts_word(text, start)
    for prefix in _CANDIDATES[longest]:
        may_follow_word = len(prefix) >= _MIN_FREE_PREFIX_CHARS and not prefix[-1].isalnum()
        if not begins_word and not may_follow_word:
            continue
        for kind, expression, check in _BY_PREFIX[prefix]:
            match = _compile(expression).match(text, start + len(prefix))
            if match is not None and _passes(check, match.group()):
                # The path of a URL before the secret is kept.
                return Span(match.start() if prefix[-1] == "/" else start, match.end(), kind)
    return None


@cache
def _compile(expression: str) -> re.Pattern[str]:
    return lazy_pattern(_expand(expression), re.ASCII)


@cache
def _unprefixed() -> re.Pattern[str]:
    """Return one expression for all formats without a prefix; group `fN` is the Nth row."""
    rows = (f"(?P<f{n}>{_expand(row.expression)})" for n, row in enumerate(_UNPREFIXED))
    return lazy_pattern(f"{_WORD_START}(?:{'|'.join(rows)})", re.ASCII)


def _expand(notation: str) -> str:
    """Return the regular expression that a row writes in the notation of the table."""
    notation = notation.replace("{U}", _UUID)
    last = _FIELD.fullmatch(notation, max(0, notation.rfind("{")))
    end = _ALPHABETS["x"] + (_ALPHABETS[last[1]] if last else "")
    return _FIELD.sub(_character_class, notation) + f"(?![{end}])"


def _character_class(field: re.Match[str]) -> str:
    return f"[{_ALPHABETS[field[1]]}]" + (f"{{{field[2]}}}" if field[2] else "")


def _passes(check: str, match: str) -> bool:
    if not match.strip("xX"):
        return False  # sk_test_xxxxxxxx
    if check == "random":
        return _is_random(match)
    if check == "base58":
        return _has_checksum(match)
    return check != "json" or _is_json(match)


def _has_checksum(text: str) -> bool:
    """Return whether base58 ends with the checksum of what it encodes, as Bitcoin writes it."""
    number = 0
    for character in text:
        number = number * len(_BASE58) + _BASE58.index(character)
    content = number.to_bytes(len(text), "big").lstrip(b"\0")
    digest = hashlib.sha256(hashlib.sha256(content[:-4]).digest()).digest()
    return digest[:4] == content[-4:]


def _is_random(text: str) -> bool:
    """Return whether a text is drawn at random rather than composed of words and numbers.

    Most pairs of letters in words are common ones; of a random text, fewer than one in five. Of random
    texts of 20 characters, about one in 1,000 is refused (of hexadecimal ones, eight).
    """
    text = text[:_MAX_CHECKED_CHARS]
    kinds = sum(any(map(kind, text)) for kind in (str.islower, str.isupper, str.isdigit))
    if kinds < 2 or len(set(text)) < 8 or sum(map(str.isalpha, text)) <= len(text) / 10:
        return False
    common = sum(one + other in _COMMON_PAIRS for one, other in pairwise(text.lower()))
    return common < 0.4 * len(text) + 1 and len(_SEPARATOR.findall(text)) <= 2 + len(text) / 10


def _is_json(text: str) -> bool:
    """Return whether base64 whose beginning is cut off encodes a part of a JSON object."""
    content = text.partition(".")[0]
    shifted = (content[skip : skip + (len(content) - skip) // 4 * 4] for skip in range(4))
    return any(_CLAIM.search(base64.urlsafe_b64decode(part)) for part in shifted)


def _is_marked_secret(word: str) -> bool:
    """Return whether a word is a random secret after a marker, or after an unknown short prefix."""
    parts = _SEPARATOR.split(word)
    longest = max(parts, key=len)
    names = parts[: parts.index(longest)]
    for place, name in enumerate(names):
        if name in _MARKERS:
            body = word[sum(map(len, parts[: place + 1])) + place + 1 :]
            return _is_secret_body(body, longest, is_sure=not _SURE_MARKERS.isdisjoint(names))
    return (
        bool(names)
        and longest is parts[-1]
        and len(longest) >= 32 + 4 * (word[-len(longest) - 1] == "-")
        and _SHORT_NAME.fullmatch(names[-1]) is not None
        and names[-1] not in _ID_PREFIXES
        and not longest.islower()
        and not longest.isupper()
        and _is_random(longest)
    )


def _is_secret_body(body: str, longest: str, *, is_sure: bool) -> bool:
    """Return whether the text after a marker is random; its longest part must be if it is long."""
    if _HEXADECIMAL.fullmatch(longest):
        # The name of an environment is often followed by the hash of a commit or an image.
        return is_sure and len(longest) >= 20 and _is_random(longest)
    if len(longest) >= 20:
        return _is_random(longest)
    return is_sure and len(body) >= 24 and _is_random(body)


# ------------------------------------------------------------------ key material: PEM, OpenPGP, OpenVPN

_BEGIN = lazy_pattern(
    r"-{4,5} ?BEGIN (?:[A-Z0-9]{1,20} ){0,4}"
    r"(?:PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1|OpenVPN tls-crypt-v2 client key) ?-{4,5}"
)
_END = lazy_pattern(r"-{4,5} ?END [A-Za-z0-9 \-]{0,80}?-{4,5}")
_BODY = lazy_pattern(
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Subject):[^\n\\]*|[A-Za-z0-9+/=\s]|\\+[nrt]|%0[AaDd]"
    r"|[\"'],?\s{0,64}\+?\s{0,64}[\"']|[>|*#])*"
)
_MAX_BLOCK = 65_536
_KEY_MATERIAL = lazy_pattern(r"[A-Za-z0-9+/]{10}")
_PRIVATE_KEY_END = lazy_pattern(
    r"-{4,5} ?END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
)
_LINE_BREAK = r"(?:\s|[nrt]\\{1,16}){1,8}"
# Read backwards from an END: the last line, full lines, and the rest of the first line.
_BODY_REVERSED = lazy_pattern(
    rf"(?:{_LINE_BREAK}[A-Za-z0-9+/=]*(?!\\))?(?:{_LINE_BREAK}[A-Za-z0-9+/]{{16,}}(?!\\))*"
    rf"(?:{_LINE_BREAK}[A-Za-z0-9+/]{{1,15}}(?=\s*[^A-Za-z0-9+/\s\\]|\Z))?"
)


def _find_armoured(text: str, _low: str) -> Iterator[Span]:
    begins = [match.span() for match in _BEGIN.finditer(text)]
    for place, (start, inside) in enumerate(begins):
        following = begins[place + 1][0] if place + 1 < len(begins) else len(text)
        last = min(following, inside + _MAX_BLOCK)
        end = _END.search(text, inside, last)
        body = _BODY.match(text, inside, last)
        last = end.end() if end else body.end() if body else inside
        if _KEY_MATERIAL.search(text, inside, last):
            yield Span(start, last, "private_key")
    last = 0
    for end in _PRIVATE_KEY_END.finditer(text, 0, begins[0][0] if begins else len(text)):
        # The start of the block is cut off.
        before = text[max(last, end.start() - _MAX_BLOCK) : end.start()]
        body = _BODY_REVERSED.match(before[::-1])
        yield Span(end.start() - (body.end() if body else 0), end.end(), "private_key")
        last = end.end()


# ------------------------------------------------------------------ long base64: images, sound, documents

BLOB = "blob"

_MIN_CHARS_OF_BLOBS = 1024  # a small icon is kept
_RUN = lazy_pattern(
    r"(?:data:[\w.+\-]{1,40}/[\w.+\-]{1,80}(?:;[\w=.\-]{1,80}){0,4};base64,)?"
    r"(?<![A-Za-z0-9+/_\-=])[A-Za-z0-9+/_\-]{1024,}={0,2}(?![A-Za-z0-9+/_\-=])"
    # Wrapped into lines, as mail and many programs do.
    r"|(?<![A-Za-z0-9+/_\-=])(?:[A-Za-z0-9+/]{60,76}(?:\r?\n|\\n)){13,}[A-Za-z0-9+/]{0,76}={0,2}"
)
_LINE_END = lazy_pattern(r"\r?\n|\\n")
_BASE64_CLASS = class_table(LETTERS + DIGITS + "+/_-")
_LONG_RUN = b"\1" * 60
_TYPE_BEFORE = lazy_pattern(r"data:([\w.+\-]{1,40}/[\w.+\-]{1,80})")


def _find_blobs(text: str, _low: str) -> Iterator[Span]:
    is_short = len(text) < _MIN_CHARS_OF_BLOBS
    if is_short or _LONG_RUN not in character_classes(text, _BASE64_CLASS):
        return
    for match in _RUN.finditer(text):
        if _is_base64(match.group().rpartition(",")[2]):
            yield Span(*match.span(), BLOB)


def summary(blob: str) -> str:
    """Return what replaces a blob: its media type if stated, its length and its hash."""
    media_type = _TYPE_BEFORE.match(blob)
    _, _, content = blob.rpartition(",")
    data = _decode(content)
    if data is None:
        data = content.encode("ascii", "replace")
    return summary_of_bytes(data, f"{media_type[1]} " if media_type else "")


def summary_of_bytes(data: bytes, kind: str = "") -> str:
    """Return what replaces binary data: its length and hash, after `kind`."""
    return f"[BLOB:{kind}{len(data)} bytes sha256:{hashlib.sha256(data).hexdigest()[:16]}]"


def _is_base64(run: str) -> bool:
    """Return whether a run is base64, rather than hexadecimal, a long name or a row of dashes.

    Base64 mixes upper case, lower case and digits.
    """
    head = run[: _MIN_CHARS_OF_BLOBS // 4]
    upper, lower = sum(map(str.isupper, head)), sum(map(str.islower, head))
    digits = sum(map(str.isdigit, head))
    return min(upper, lower, 4 * digits) >= len(head) // 8 and _decode(run) is not None


def _decode(run: str) -> bytes | None:
    body = _LINE_END.sub("", run).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


_KEY_BLOCKS = Finder(_find_armoured, ("private key", "openvpn"))
CERTAIN = (Finder(partial(_find, with_markers=False)), _KEY_BLOCKS)
"""Without credentials that only have a marker such as `sk_`."""
FINDERS = (
    Finder(partial(_find, with_markers=True)),
    _KEY_BLOCKS,
    Finder(_find_blobs),
)
