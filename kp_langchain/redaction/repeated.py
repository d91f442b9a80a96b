"""Secrets that occur again: an agent types the password that its user told it.

One place names the secret; the others do not, so no finder would see it there. How far a secret is
looked for depends on how sure it is the same one: a random key goes from everywhere, a word that is
also an ordinary one only from where something beside it says what it is.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from kp_langchain.redaction import beside
from kp_langchain.redaction.blobs import BLOB
from kp_langchain.redaction.field_names import SensitiveField, classify_secret, split_name
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.secret_search import Named, Reach, SecretSearch
from kp_langchain.redaction.spans import distinct_key, placeholder
from kp_langchain.redaction.values import (
    CODE_KINDS,
    HASH_LIKE,
    is_random,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
)

_CVV = 3
_LONG_NUMBER = 6  # such a number hardly occurs twice by chance, unless it is 100000 or the like
_MIXED_DIGITS = 4
_LONG = 12
_LONG_KEY = 20
_SHORTEST_WORD = 6
_SHORTEST_MIXED = 8
_MAX_CHARS = 4096
_MOST = 200  # secrets of one run
_MOST_CHARS = 20_000  # of all of them
_OTHER_KINDS = frozenset((BLOB, "session", "cookie"))
_PASSWORD = SensitiveField("password")
_NUMBER = lazy_pattern(r"\d{3,12}|\d{2,4}(?:[ \-]\d{2,4}){1,3}")
_NUMBER_OR_SIGNS = lazy_pattern(r"[\d.eE+\-]*")  # JSON has numbers without quotes
_ADDRESS = lazy_pattern(
    r"www\.|[a-z]{2,12}://|[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)"
)
_IDENTIFIER = lazy_pattern(
    r"_*[a-z]+\d{0,3}(?:_[a-z]+\d{0,3})+|_*[A-Z]+\d?(?:_[A-Z]+\d?)+"
    r"|[A-Z]?[a-z]+(?:[A-Z][a-z]+)+(?:V?\d)?"
)
_PATH = lazy_pattern(r"[\w.~@:\-]*(?:/[\w.~@:\-]*)+")
_PHRASE = lazy_pattern(r"(?=.*[^\W\d_])[^\W_]{2,}(?:[\s,]+[^\W_]{2,}){2,32}")
_HYPHENATED = lazy_pattern(r"[^\W_]{2,}(?:[\-_.][^\W_]{2,}){2,}")
_WORDS_AND_NUMBERS = lazy_pattern(
    r"(?:[A-Z]?[a-z]{1,15}|\d{1,8})(?:[\-_.](?:[A-Z]?[a-z]{1,15}|\d{1,8})){2,}"
)
_SCHEME = lazy_pattern(r"(?:Bearer|Basic|Token|Bot|ApiKey|Key)\s+(?=\S+\Z)", re.IGNORECASE)


class Secrets:
    """The secrets that a value, or the parts of one run, have named.

    Of more than there is room for, the first are kept; the others go only from where they are named.

    Attributes:
        is_full: Whether there was no room for one.
        has_numbers: Whether one of them is a number.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.has_numbers = False
        self._chars = 0
        self._named: dict[str, Named] = {}
        self._answers: dict[tuple[str, bool], str] = {}
        self._search: SecretSearch | None = None

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
        for form in dict.fromkeys((secret, unquote(secret), _decoded(secret, kind))):
            reach = _reach_of(form, kind, is_answer=is_answer)
            if reach is not None:
                self._add(form, Named(kind, reach))

    def note_answer(
        self, answer: str, secrets: Iterable[tuple[str, str]], *, is_step: bool = False
    ) -> None:
        """Add the secrets that an answer gives, and have the answer itself be cleaned of them.

        Args:
            answer: The whole answer.
            secrets: Kind and text of each secret.
            is_step: Whether the answer is a step of the run, and not its task.
        """
        clean = self.take_answer(answer.strip(), secrets, lambda kind, _: placeholder(kind))
        if clean != answer.strip() and len(self._answers) < _MOST:
            self._answers[answer.strip(), is_step] = clean

    def take_answer(
        self, answer: str, secrets: Iterable[tuple[str, str]], write: Callable[[str, str], str]
    ) -> str:
        """Add the secrets that an answer gives, and return it with what `write` makes of each.

        Args:
            answer: The whole answer.
            secrets: Kind and text of each secret.
            write: Returns the replacement of a secret, by its kind and text.
        """
        for kind, secret in sorted(secrets, key=lambda one: len(one[1]), reverse=True):
            self.note(kind, secret, is_answer=True)
            whole = rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])"  # not a part of another word
            first, *others = re.split(whole, answer)
            if others:
                answer = write(kind, secret).join((first, *others))
        return answer

    def clean_answer(self, text: str, *, is_step: bool = False) -> str:
        """Return an answer that gives secrets without them; any other text as it is."""
        return self._answers.get((text.strip(), is_step), text) if self._answers else text

    @property
    def named(self) -> dict[str, Named]:
        """The secrets, with what is known of each."""
        return dict(self._named)

    def add_all(self, named: Mapping[str, Named]) -> None:
        """Add the secrets that other values have named."""
        for secret, one in named.items():
            self._add(secret, one)

    def _add(self, secret: str, named: Named) -> None:
        known = self._named.get(secret)
        if known is not None and known.reach >= named.reach:
            return
        if known is None:
            if len(self._named) >= _MOST or self._chars + len(secret) > _MOST_CHARS:
                self.is_full = True
                return
            self._chars += len(secret)
        self._named[secret] = named
        self._search = None
        self.has_numbers = self.has_numbers or _NUMBER.fullmatch(secret) is not None

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
            self._search = SecretSearch(self._named)
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
        if is_answer and len(set(secret)) >= _MIXED_DIGITS and size >= _LONG_NUMBER:
            return Reach.WORD
        is_secret = is_answer or (size > _CVV and (kind in CODE_KINDS or kind == "password"))
        return Reach.BESIDE if is_secret else None
    if size > _MAX_CHARS or _NUMBER_OR_SIGNS.fullmatch(secret) or _ADDRESS.match(secret):
        return None
    if _IDENTIFIER.fullmatch(secret) and not is_answer:
        return Reach.BESIDE  # or else one false match would take a name from all of the code
    if _PHRASE.fullmatch(secret):
        return Reach.WORD if size >= _LONG else None
    if any(map(str.isspace, secret)):
        is_mixed = looks_like_bare_password("".join(secret.split()))
        return Reach.PART if is_mixed and size >= _LONG else None
    if _PATH.fullmatch(secret) and not (is_random(secret) or _changes_often(secret)):
        return Reach.WORD if is_answer and size >= _SHORTEST_MIXED else None
    if _WORDS_AND_NUMBERS.fullmatch(secret) and size >= _SHORTEST_MIXED:
        return Reach.WORD
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


def _decoded(secret: str, kind: str) -> str:
    """Return the text that a value of a Kubernetes Secret encodes, if it is one; or else the value."""
    if kind != "secret" or len(secret) % 4:
        return secret
    try:
        text = b64decode(secret, validate=True).decode("ascii")
    except ValueError:
        return secret
    return text.strip() if text.strip().isprintable() else secret


def _changes_often(secret: str) -> bool:
    """Return whether a long text changes case or kind as often as no path does."""
    has_digit = any(map(str.isdigit, secret))
    return has_digit and len(secret) >= _LONG_KEY and 4 * len(split_name(secret)) > len(secret)


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
            name = value.get("name")
            has_other_name = isinstance(name, str) and classify_secret(name) is None
            for key, item in value.items():
                new_key = distinct_key(self.rebuild(key), result)
                may_type = isinstance(key, str) and not (has_other_name and key == "value")
                result[new_key] = self.rebuild(item, key if may_type else None)
            return result
        items = [self.rebuild(item) for item in value]
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
        return make(items)
