"""Secrets that occur again: an agent types the password that its user told it.

One place names the secret; the others do not, so no finder would see it there. How far a secret is
looked for depends on how sure it is the same one: a random key goes from everywhere, a word that is
also an ordinary one only from where something beside it says what it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from kp_langchain.redaction import beside
from kp_langchain.redaction.blobs import BLOB
from kp_langchain.redaction.field_names import SensitiveField, split_name
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.scalars import quote_scalars
from kp_langchain.redaction.secret_forms import encoded_forms, written_forms
from kp_langchain.redaction.spans import distinct_key, placeholder, starts_word
from kp_langchain.redaction.values import (
    CODE_KINDS,
    HASH_LIKE,
    is_random,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
)

_LONG = 12
_DIGITS_OF_CODE = 6  # often written in two groups
_CUT = 12  # characters of its beginning by which a secret is recognised that was cut off
_LONG_KEY = 20
_SHORTEST_WORD = 6
_SHORTEST_MIXED = 8
_MAX_CHARS = 4096
_MAX_BACKSLASHES = 32
_MOST = 200  # secrets of one run
_MOST_CHARS = 20_000  # of all of them
_OTHER_KINDS = frozenset((BLOB, "session", "cookie"))
_PASSWORD = SensitiveField("password")
_NUMBER = re.compile(r"\d{4,12}|\d{2,4}(?:[ \-]\d{2,4}){1,3}")
_NUMBER_OR_SIGNS = re.compile(r"[\d.eE+\-]*")  # JSON has numbers without quotes
_ADDRESS = re.compile(r"www\.|[a-z]{2,12}://|[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)")
_PATH = re.compile(r"[\w.~@:\-]*(?:/[\w.~@:\-]*)+")
_PHRASE = re.compile(r"(?=.*[^\W\d_])[^\W_]{2,}(?:[\s,]+[^\W_]{2,}){2,32}")
_HYPHENATED = re.compile(r"[^\W_]{2,}(?:[\-_.][^\W_]{2,}){2,}")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|Bot|ApiKey|Key)\s+(?=\S+\Z)", re.IGNORECASE)
_OF_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-]{0,4096}={0,2}")
_OF_BASE64_REVERSED = re.compile(rb"[A-Za-z0-9+/_\-]{0,4096}")
_CUT_OFF = (b"...", "…".encode(), b"\\u2026", b"*", b"[")
_JOINTS_OF_COMPOUNDS = b":./-_"


class Reach(IntEnum):
    """How far a secret is looked for."""

    BESIDE = 1
    """Only where something beside it says that it is one."""
    WORD = 2
    """Where it is a whole word, and not part of a compound such as `postgres15:latest`."""
    PART = 3
    """Where no letter or digit is directly before or after it."""
    ANYWHERE = 4


class _Named(NamedTuple):
    kind: str
    reach: Reach


class Secrets:
    """The secrets that a value, or the parts of one run, have named so far; a bounded number.

    Attributes:
        chars: The characters of all of them.
    """

    def __init__(self) -> None:
        self.chars = 0
        self._named: dict[str, _Named] = {}
        self._answers: dict[tuple[str, bool], str] = {}
        self._search: _Search | None = None

    def __bool__(self) -> bool:
        return bool(self._named)

    def note(self, kind: str, match: str, *, is_answer: bool = False) -> None:
        """Add a match of a finder, if it can be recognised elsewhere.

        Args:
            kind: Its kind; identifiers are found everywhere by themselves.
            match: The text.
            is_answer: Whether a human gave it when asked for it.
        """
        if kind in KINDS or kind in _OTHER_KINDS or not match:
            return
        secret = match if _PHRASE.fullmatch(match) else _SCHEME.sub("", match)
        reach = _reach_of(secret, kind, is_answer=is_answer)
        if reach is not None:
            self._add(secret, _Named(kind, reach))

    def note_answer(
        self, answer: str, secrets: Iterable[tuple[str, str]], *, is_step: bool = False
    ) -> None:
        """Add the secrets that an answer gives, and have the answer itself be cleaned of them.

        Args:
            answer: The whole answer.
            secrets: Kind and text of each secret.
            is_step: Whether the answer is a step of the run, and not its task.
        """
        clean = answer.strip()
        for kind, secret in secrets:
            self.note(kind, secret, is_answer=True)
            clean = clean.replace(secret, placeholder(kind))
        if clean != answer.strip() and len(self._answers) < _MOST:
            self._answers[answer.strip(), is_step] = clean

    def clean_answer(self, text: str, *, is_step: bool = False) -> str:
        """Return an answer that gives secrets without them; any other text as it is."""
        return self._answers.get((text.strip(), is_step), text) if self._answers else text

    def add_all(self, other: Secrets) -> None:
        """Add the secrets of another value."""
        for secret, named in list(other._named.items()):
            self._add(secret, named)

    def _add(self, secret: str, named: _Named) -> None:
        known = self._named.get(secret)
        if known is not None and known.reach >= named.reach:
            return
        if known is None:
            if len(self._named) >= _MOST or self.chars + len(secret) > _MOST_CHARS:
                return
            self.chars += len(secret)
        self._named[secret] = named
        self._search = None

    def replace(self, value: Any, counts: Counter[str], *, is_name: bool = False) -> Any:
        """Return a redacted value in which the secrets are replaced wherever else they occur.

        Args:
            value: What a `Walker` has returned.
            counts: The number of replacements per kind; updated.
            is_name: Whether it is the name of a tool or the like, which may be any word.
        """
        if not self._named:
            return value
        if self._search is None:
            self._search = _Search(self._named)
        search = self._search

        def clean(text: str, key: str | None = None) -> str:
            return search.clean(text, counts, is_whole_value=beside.is_typed(key))

        def clean_number(number: int, key: str | None) -> Any:
            named = self._named.get(str(number)) if beside.is_typed(key) else None
            if named is None:
                return number
            counts[named.kind] += 1
            return placeholder(named.kind)

        if isinstance(value, str):
            is_word = not is_name and not any(map(str.isdigit, value))
            return search.clean(value, counts, is_whole_value=is_word)
        return _Rebuilder(clean, clean_number).rebuild(value)


def _reach_of(secret: str, kind: str, *, is_answer: bool) -> Reach | None:
    """Return how far a secret is looked for; None if it cannot be recognised elsewhere."""
    size = len(secret)
    if _NUMBER.fullmatch(secret):
        return Reach.BESIDE if kind in CODE_KINDS or is_answer or kind == "password" else None
    if size > _MAX_CHARS or _NUMBER_OR_SIGNS.fullmatch(secret) or _ADDRESS.match(secret):
        return None
    if _PHRASE.fullmatch(secret):
        return Reach.WORD if size >= _LONG else None
    if any(map(str.isspace, secret)):
        return None
    if _PATH.fullmatch(secret) and not (is_random(secret) or _changes_often(secret)):
        return Reach.WORD if is_answer and size >= _SHORTEST_MIXED else None
    is_hash = size >= _LONG_KEY and HASH_LIKE.fullmatch(secret) is not None
    is_generated = size >= _LONG_KEY and (is_random(secret) or _changes_often(secret))
    if is_hash or is_generated or is_unmistakable(secret, _PASSWORD):
        return Reach.ANYWHERE
    if size >= _LONG and (looks_like_bare_password(secret) or looks_generated(secret)):
        return Reach.PART
    shortest = _SHORTEST_WORD if is_answer else _SHORTEST_MIXED
    if size >= shortest and looks_like_bare_password(secret):
        return Reach.WORD
    if size >= _SHORTEST_MIXED and (looks_like_password(secret) or _HYPHENATED.fullmatch(secret)):
        return Reach.WORD
    has_digit = any(map(str.isdigit, secret))
    if size >= (3 if is_answer else _SHORTEST_WORD - has_digit):
        return Reach.BESIDE
    return None


def _changes_often(secret: str) -> bool:
    """Return whether a long text changes case or kind as often as no path does."""
    has_digit = any(map(str.isdigit, secret))
    return has_digit and len(secret) >= _LONG_KEY and 4 * len(split_name(secret)) > len(secret)


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


class _Search:
    """Looks for the forms of secrets, each by its first characters."""

    def __init__(self, named: dict[str, _Named]) -> None:
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
                pieces += [content[position:first], placeholder(kind).encode()]
                position = end
        clean_text = b"".join([*pieces, content[position:]]).decode("utf-8", "surrogatepass")
        return quote_scalars(text, clean_text)


def _forms(named: dict[str, _Named]) -> Iterator[_Form]:
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
        if len(secret) >= _SHORTEST_WORD:
            for form in encoded_forms(secret):
                yield _Form(form[:_CUT].encode(), kind, Reach.ANYWHERE, is_encoded=True)


class _Text:
    """A text in UTF-8 in which forms of secrets may begin.

    Args:
        content: The text.
        is_whole_value: See `_Search.clean`.
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
            end = self._end_of_same(form.content, start)
            follows = content[end : end + 6]
            is_cut = follows.startswith(_CUT_OFF) or (form.may_be_cut and not follows[:1].isalnum())
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


_AROUND_VALUE = b" \t\r\n\"'`.,;!"


class _Rebuilder:
    """Rebuilds a value with all its texts cleaned.

    Args:
        clean: Returns a text without secrets; its second argument is the key of a mapping, if any.
        clean_number: The same for whole numbers.
    """

    def __init__(
        self,
        clean: Callable[[str, str | None], str],
        clean_number: Callable[[int, str | None], Any],
    ) -> None:
        self._clean = clean
        self._clean_number = clean_number
        self._known: dict[int, Any] = {}  # containers that were rebuilt

    def rebuild(self, value: Any, key: str | None = None) -> Any:
        """Return the value rebuilt."""
        if isinstance(value, str):
            return self._clean(value, key)
        if isinstance(value, (bytes, bytearray)):
            text = self._clean(value.decode("utf-8", "surrogateescape"), key)
            return type(value)(text.encode("utf-8", "surrogateescape"))
        if type(value) is int:
            return self._clean_number(value, key)
        if not isinstance(value, (dict, list, tuple, set, frozenset)):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = self._container(value)
        return self._known[id(value)]

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            result: dict[Any, Any] = {}
            for key, item in value.items():
                new_key = distinct_key(self.rebuild(key), result)
                result[new_key] = self.rebuild(item, key if isinstance(key, str) else None)
            return result
        items = [self.rebuild(item) for item in value]
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
        return make(items)
