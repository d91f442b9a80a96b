"""Secrets that occur again: an agent types the password that its user told it.

One place names the secret; no finder would see it in the others. A random key is removed wherever it
occurs. A secret that is also an ordinary word is removed only where something beside it names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import unquote

from kp_langchain.redaction.fields import (
    CODE_KINDS,
    SensitiveField,
    is_random,
    is_unmistakable,
    looks_generated,
    looks_like,
    looks_like_bare_password,
    looks_like_password,
    split_name,
)
from kp_langchain.redaction.formats import BLOB
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.secret_search import (
    AFTER,
    BEFORE,
    Reach,
    SecretSearch,
    SecretTraits,
    is_typed,
    kind_beside,
)
from kp_langchain.redaction.spans import lazy_pattern, placeholder

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
_ADDRESS = lazy_pattern(
    r"www\.|[a-z]{2,12}://|[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)"
)
_SCHEME = lazy_pattern(r"(?:Bearer|Basic|Token|Bot|ApiKey|Key)\s+(?=\S+\Z)", re.IGNORECASE)


class Secrets:
    """The secrets that a value, or the parts of one run, have named.

    Beyond the limit, further secrets are removed only where they are named.

    Attributes:
        is_full: Whether there was no room for one.
        has_numbers: Whether one of them is a number.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.has_numbers = False
        self._chars = 0
        self._named: dict[str, SecretTraits] = {}
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
        secret = match if looks_like("recovery phrase", match) else _SCHEME.sub("", match)
        for form in dict.fromkeys((secret, unquote(secret))):
            reach = _reach_of(form, kind, is_answer=is_answer)
            if reach is not None:
                self._add(form, SecretTraits(kind, reach))

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
    def named(self) -> dict[str, SecretTraits]:
        """The secrets, with what is known of each."""
        return dict(self._named)

    def add_all(self, named: Mapping[str, SecretTraits]) -> None:
        """Add the secrets that other values have named."""
        for secret, one in named.items():
            self._add(secret, one)

    def _add(self, secret: str, facts: SecretTraits) -> None:
        earlier = self._named.get(secret)
        if earlier is not None and earlier.reach >= facts.reach:
            return
        if earlier is None:
            if len(self._named) >= _MOST or self._chars + len(secret) > _MOST_CHARS:
                self.is_full = True
                return
            self._chars += len(secret)
        self._named[secret] = facts
        self._search = None
        self.has_numbers = self.has_numbers or looks_like("number", secret)

    @property
    def search(self) -> SecretSearch | None:
        """The search for all secrets, made anew after one was added; None if there are none."""
        if self._search is None and self._named:
            self._search = SecretSearch(self._named)
        return self._search


def _reach_of(secret: str, kind: str, *, is_answer: bool) -> Reach | None:
    """Return how far a secret is looked for; None if it cannot be recognised elsewhere."""
    size = len(secret)
    if looks_like("number", secret):
        if is_answer and len(set(secret)) >= _MIXED_DIGITS and size >= _LONG_NUMBER:
            return Reach.WORD
        is_secret = is_answer or (size > _CVV and (kind in CODE_KINDS or kind == "password"))
        return Reach.BESIDE if is_secret else None
    if size > _MAX_CHARS or looks_like("number or signs", secret) or _ADDRESS.match(secret):
        return None
    if looks_like("identifier", secret) and not is_answer:
        return Reach.BESIDE  # or else one false match would take a name from all of the code
    if any(map(str.isspace, secret)):
        joined = "".join(secret.split())
        is_secret = looks_like("recovery phrase", secret) or looks_like_bare_password(joined)
        return Reach.WORD if is_secret and size >= _LONG else None
    if looks_like("path without a root", secret) and not (
        is_random(secret) or _changes_often(secret)
    ):
        return Reach.WORD if is_answer and size >= _SHORTEST_MIXED else None
    if looks_like("words and numbers", secret) and size >= _SHORTEST_MIXED:
        return Reach.WORD
    is_hash = size >= _LONG_KEY and looks_like("hash or UUID", secret)
    is_generated = size >= _LONG_KEY and (is_random(secret) or _changes_often(secret))
    if is_hash or is_generated or is_unmistakable(secret, _PASSWORD):
        return Reach.ANYWHERE
    if size >= _LONG and (looks_like_bare_password(secret) or looks_generated(secret)):
        return Reach.ANYWHERE
    shortest = _SHORTEST_WORD if is_answer else _SHORTEST_MIXED
    if size >= shortest and looks_like_bare_password(secret):
        return Reach.WORD
    if size >= _SHORTEST_MIXED and (
        looks_like_password(secret) or looks_like("words with hyphens", secret)
    ):
        return Reach.WORD
    has_digit = any(map(str.isdigit, secret))
    return Reach.BESIDE if size >= (3 if is_answer else _SHORTEST_WORD - has_digit) else None


def _changes_often(secret: str) -> bool:
    """Return whether a long text changes case or kind as often as no path does."""
    has_digit = any(map(str.isdigit, secret))
    return has_digit and len(secret) >= _LONG_KEY and 4 * len(split_name(secret)) > len(secret)


# ------------------------------------------------------------------ words that are typed

_TYPED_WORD = lazy_pattern(r"\A\s{0,9}([^\W_]{4,32}(?:[\-.][^\W_]{2,32}){0,8})\s{0,9}\Z")
_MOST_TYPED = 50
_MOST_PLACES = 50


def typed_secrets(parts: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each ordinary word that one part types and another calls a secret.

    "Log in as bob, password sunflower" alone might say anything about the password.

    Args:
        parts: The texts and the inputs of a run.
    """
    texts, typed = [], set[str]()
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            typed.update(_typed_words(part))
    for word in sorted(typed)[:_MOST_TYPED]:
        whole = re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])")
        for text in texts:
            for match in islice(whole.finditer(text), _MOST_PLACES):
                start, end = match.span()
                before = text[max(0, start - BEFORE) : start]
                if kind := kind_beside(before, text[end : end + AFTER]):
                    yield kind, word
                    break


def _typed_words(inputs: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in inputs.items():
        if isinstance(value, dict):
            yield from _typed_words(value)
        elif isinstance(value, str) and isinstance(key, str) and is_typed(key):
            yield from _TYPED_WORD.findall(value)
