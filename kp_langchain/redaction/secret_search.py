"""Looks for secrets in a text, in all their forms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from kp_langchain.redaction import beside
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.scalars import quote_scalars
from kp_langchain.redaction.secret_forms import encoded_forms, written_forms
from kp_langchain.redaction.spans import placeholder, starts_word

_CUT = 12  # characters of its beginning by which a secret is recognised that was cut off
_DIGITS_OF_CODE = 6  # often written in two groups
_SHORTEST_ENCODED = 6
_MAX_CHARS = 4096
_MAX_BACKSLASHES = 32
_OF_BASE64 = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}={0,2}")
_OF_BASE64_REVERSED = lazy_pattern(rb"[A-Za-z0-9+/_\-]{0,4096}")
_PLACEHOLDER = placeholder("").encode()
_CUT_OFF = (b"...", "…".encode(), b"\\u2026", b"*", b"[")
_SYNTAX = lazy_pattern(rb"[\s\"'\\{}\[\](),:]")
_MOST_SYNTAX = 2  # within `_CUT`; many texts in JSON or Python begin alike
_JOINTS_OF_COMPOUNDS = b":./-_"
_AROUND_VALUE = b" \t\r\n\"'`.,;!"


class Reach(IntEnum):
    """How far a secret is looked for."""

    BESIDE = 1
    """Only where something beside it says that it is one."""
    WORD = 2
    """Where it is a whole word, and not part of a compound such as `postgres15:latest`."""
    PART = 3
    """Where no letter or digit is directly before or after it."""
    ANYWHERE = 4


class Named(NamedTuple):
    """What is known of a secret: its kind, and how far it is looked for."""

    kind: str
    reach: Reach


class _Form(NamedTuple):
    """A way to write a secret, in UTF-8.

    Attributes:
        content: Its characters.
        kind: The kind of the secret.
        reach: How far it is looked for.
        may_be_cut: Whether its beginning alone is the secret as well, whatever follows.
        is_encoded: Whether it is base64 or the like, which goes as a whole.
    """

    content: bytes
    kind: str
    reach: Reach
    may_be_cut: bool = False
    is_encoded: bool = False


class SecretSearch:
    """Looks for the forms of secrets, each by its first characters.

    Args:
        named: The secrets.
    """

    def __init__(self, named: Mapping[str, Named]) -> None:
        forms: dict[bytes, list[_Form]] = {}
        for form in _forms(named):
            forms.setdefault(form.content[:_CUT], []).append(form)
        # A shorter form counts where a longer one begins like it and does not match.
        for start, same_start in forms.items():
            for size in range(1, len(start)):
                same_start += (
                    form for form in forms.get(start[:size], ()) if len(form.content) == size
                )
            same_start.sort(key=lambda form: len(form.content), reverse=True)
        self._forms = list(forms.values())
        self._starts = BytesAhoCorasick(list(forms), matchkind=MatchKind.LeftmostLongest)

    def clean(self, text: str, counts: Counter[str], *, is_whole_value: bool) -> str:
        """Return a text without the secrets.

        Args:
            text: Any text.
            counts: The number of replacements per kind; updated.
            is_whole_value: Whether a text that is nothing but a secret is one, also if the secret
                is an ordinary word.
        """
        content = text.encode("utf-8", "surrogatepass")
        found = self._starts.find_matches_as_indexes(content)
        if not found:
            return text
        place = _Text(content, is_whole_value=is_whole_value)
        pieces, position = [], 0
        for number, start, _ in found:
            if start < position:
                continue
            match = place.match(self._forms[number], start, position)
            if match is not None:
                first, end, kind = match
                counts[kind] += 1
                quote = b'"' if beside.is_json_number(content, first, end) else b""
                pieces += [content[position:first], quote, placeholder(kind).encode(), quote]
                position = end
        clean_text = b"".join([*pieces, content[position:]]).decode("utf-8", "surrogatepass")
        return quote_scalars(text, clean_text)


def _forms(named: Mapping[str, Named]) -> Iterator[_Form]:
    for secret, (kind, reach) in named.items():
        is_phrase = any(map(str.isspace, secret))
        secrets = {secret}
        if len(secret) == _DIGITS_OF_CODE and secret.isdigit():
            secrets |= {f"{secret[:3]}{joint}{secret[3:]}" for joint in " -"}
        if is_phrase:
            words = re.split(r"[\s,]+", secret)
            secrets |= {
                joint.join(words) for joint in (" ", ", ", ",", "\n", "-", "_", "+", '", "')
            }
        for text in secrets:
            may_be_cut = reach is Reach.ANYWHERE and not is_phrase
            for form in written_forms(text):
                yield _Form(form.encode("utf-8", "surrogatepass"), kind, reach, may_be_cut)
        if len(secret) >= _SHORTEST_ENCODED:
            for form in encoded_forms(secret):
                yield _Form(form[:_CUT].encode(), kind, Reach.ANYWHERE, is_encoded=True)


class _Text:
    """A text in UTF-8 in which forms of secrets may begin.

    Args:
        content: The text.
        is_whole_value: See `SecretSearch.clean`.
    """

    def __init__(self, content: bytes, *, is_whole_value: bool) -> None:
        self._content = content
        self._characters = content.decode("latin-1")  # one for each byte
        self._whole_value = content.strip(_AROUND_VALUE) if is_whole_value else b""

    def match(self, forms: list[_Form], start: int, position: int) -> tuple[int, int, str] | None:
        """Return start, end and kind of the secret that begins at `start`, if one does.

        Args:
            forms: Those that begin like the text there, the longest first.
            start: The place.
            position: The end of the last secret before it.
        """
        content = self._content
        before = content[max(0, start - _MAX_BACKSLASHES) : start]
        if (len(before) - len(before.rstrip(b"\\"))) % 2:
            return None  # the "n" of a line break
        for form in forms:
            end = start + len(form.content)
            if not content.startswith(form.content, start):
                continue
            if form.is_encoded:
                left = _OF_BASE64_REVERSED.match(
                    content[max(position, start - _MAX_CHARS) : start][::-1]
                )
                right = _OF_BASE64.match(content, end)
                first = start - (left.end() if left else 0)
                return first, right.end() if right else end, form.kind
            if self._is_there(form.reach, start, end):
                return start, end, form.kind
        for form in forms:
            if form.is_encoded or len(form.content) <= _CUT or form.reach is Reach.BESIDE:
                continue
            if len(_SYNTAX.findall(form.content[:_CUT])) > _MOST_SYNTAX:
                continue
            end = self._end_of_same(form.content, start)
            follows = content[end : end + 6]
            is_cut = follows.startswith(_CUT_OFF) or (form.may_be_cut and not follows[:1].isalnum())
            if follows == _PLACEHOLDER[:6]:
                continue  # the rest was replaced already
            if is_cut and end - start >= _CUT and self._starts_word(start):
                return start, end, form.kind
        return None

    def _end_of_same(self, form: bytes, start: int) -> int:
        content = self._content
        most = min(len(form), len(content) - start)
        size = next((at for at in range(most) if form[at] != content[start + at]), most)
        while size and size < len(form) and form[size] & 0xC0 == 0x80:  # within a character
            size -= 1
        return start + size

    def _starts_word(self, start: int) -> bool:
        return starts_word(self._characters, start)

    def _is_there(self, reach: Reach, start: int, end: int) -> bool:
        """Return whether the secret of a form is at a place, and not part of something else."""
        if reach is Reach.ANYWHERE:
            return True
        content = self._content
        after = content[end : end + 2]
        if not self._starts_word(start) or after[:1].isalnum():
            return False
        if reach is Reach.PART:
            return True
        if after[:1] in _JOINTS_OF_COMPOUNDS and after[1:].isalnum():
            return False
        before = content[max(0, start - 2) : start]
        if before[-1:] in (b"-", b"_", b".") and before[:1].isalnum() and len(before) == 2:
            return False
        if reach is Reach.WORD:
            return True
        if self._whole_value == content[start:end]:
            return True
        return beside.marks(content, start, end)
