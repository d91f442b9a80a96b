"""The user's own redaction rules: patterns, field names, exceptions, pseudonyms."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from pkgutil import resolve_name
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError, SlowPatternError
from kp_langchain.redaction.fields import (
    SensitiveField,
    classify_name,
    classify_secret,
    is_placeholder,
    split_name,
)
from kp_langchain.redaction.spans import Span, lazy_pattern

# ------------------------------------------------------------------ keyed hashes that replace identifiers

_CHARS = 10  # of 5 bits each
_NOT_DIGIT = lazy_pattern(r"\D", re.ASCII)
_BY_DIGITS = frozenset({"phone", "card", "ssn", "account"})


def pseudonym(kind: str, identifier: str, key: str) -> str:
    """Return ten letters and digits that replace an identifier.

    They are the first 50 bits of HMAC-SHA256 (RFC 2104) of kind and identifier, in base 32. Among a
    million people, the probability that any two share a pseudonym is 0.0004.

    Args:
        kind: Its kind; the same digits have different pseudonyms as a card and as an account.
        identifier: The identifier as written.
        key: The secret key. Whoever has it can test guesses.
    """
    message = f"{kind}\0{_normalise(kind, identifier)}".encode("utf-8", "surrogatepass")
    digest = hmac.digest(key.encode("utf-8", "surrogatepass"), message, "sha256")
    return base64.b32encode(digest)[:_CHARS].decode().lower()


def _normalise(kind: str, identifier: str) -> str:
    """Return the same text for all spellings of the same identifier."""
    if kind in _BY_DIGITS:
        return _NOT_DIGIT.sub("", identifier)
    if kind == "ip":
        try:
            return str(ipaddress.ip_address(identifier.strip("[]")))
        except ValueError:
            pass
    text = "".join(identifier.split()).casefold()
    return re.sub(r"[:.\-]", "", text) if kind in ("mac", "iban") else text


# ------------------------------------------------------------------ texts that are known

_SHORT_CHARS = 64
_MAX_TEXTS = 16_384


class HarmlessTexts:
    """A bounded set of texts that need no redaction; longer ones are remembered only by their hash.

    Attributes:
        known: The texts, or their hashes.
    """

    def __init__(self) -> None:
        self.known: set[str | bytes] = set()

    def __contains__(self, text: str) -> bool:
        return _key_of(text) in self.known

    def __reduce__(self) -> tuple[type[HarmlessTexts], tuple[()]]:
        return HarmlessTexts, ()  # no text goes into another process

    def add(self, text: str) -> None:
        """Remember a text; if there are too many, forget the others."""
        if len(self.known) >= _MAX_TEXTS:
            self.known.clear()
        self.known.add(_key_of(text))


def _key_of(text: str) -> str | bytes:
    if len(text) <= _SHORT_CHARS:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# ------------------------------------------------------------------ rules

_SECRET = "secret"  # noqa: S105 - a group's name
KEY_CHARS_MIN = 16
_NAME_CHARS_MAX = 128
_LONGEST_SEARCH_S = 1.0
_PAUSE_AFTER_TIMEOUT_S = 60.0
_LONGEST_QUOTE_CHARS = 80
# A user's name, as a flag or before a sign, and its value. NAME is the expression of its words.
_OF_NAME = r"""(?ix)(?<![^\W_]) (?:[\w\-]{0,64}[_\-])? NAME (?![^\W_])
    (?: (?:\\{0,40}["'`])?
        (?: [ \t]{0,8}(?:=>|:=|={1,2}|:|\uff1a|%3[aAdD])\s{0,8} | [ \t]+(?:is|was)[ \t]+ )
      | (?<=(?<![\w\-])-[\w\-]*)[ \t]+(?!-) )
    (?: \\{0,40}(?P<quote>["'`])(?P<secret>(?:(?!\\{0,40}(?P=quote))[^\n]){1,512})
      | (?P<secret>[^\s"'`,;<>(){}\[\]\\&|]{1,512}) )"""


class _Pattern:
    """A user's regular expression with a time limit.

    Python's own `re` has no time limit, and it holds the GIL, so the agent's threads would wait.
    """

    def __init__(self, text: str, *, is_overlapped: bool = False) -> None:
        # Imported here because it takes 40 ms and most users have no patterns.
        import regex

        self._text = text
        self._is_overlapped = is_overlapped
        self._slow_until = 0.0
        self._expression = regex.compile(text)
        self._group = _SECRET if _SECRET in self._expression.groupindex else 0

    def spans(self, text: str, kind: str) -> list[Span]:
        """Return the matches in a text, or the part of each that its group `secret` matches.

        Raises:
            SlowPatternError: The search takes longer than a second, or one took longer less than a
                minute ago; otherwise each text of a long run could take the whole time limit.
        """
        if time.monotonic() >= self._slow_until:
            try:
                matches = self._expression.finditer(
                    text, overlapped=self._is_overlapped, timeout=_LONGEST_SEARCH_S
                )
                extents = [match.span(self._group) for match in matches]
                return [Span(start, end, kind) for start, end in extents if start < end]
            except TimeoutError:
                self._suspend()
        raise SlowPatternError(self._text[:_LONGEST_QUOTE_CHARS])

    def matches_all_of(self, text: str) -> bool:
        """Return whether the expression matches all of a text; False if that takes too long."""
        if time.monotonic() >= self._slow_until:
            try:
                return self._expression.fullmatch(text, timeout=_LONGEST_SEARCH_S) is not None
            except TimeoutError:
                self._suspend()
        return False

    def _suspend(self) -> None:
        self._slow_until = time.monotonic() + _PAUSE_AFTER_TIMEOUT_S
        warn_once(
            f"slow pattern:{self._text}",
            "the pattern %s of [redaction] takes longer than %.0f s on a text and is suspended for "
            "%.0f s; meanwhile a text that it would search is dropped, and a match that it would "
            "allow is redacted; write the pattern without nested repetition",
            self._text[:_LONGEST_QUOTE_CHARS],
            _LONGEST_SEARCH_S,
            _PAUSE_AFTER_TIMEOUT_S,
        )


def _check_pattern(pattern: str) -> str:
    import regex

    try:
        expression = regex.compile(pattern)
        is_empty = expression.fullmatch("", timeout=_LONGEST_SEARCH_S)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:80]!r} is not a regular expression: {error}") from None
    except TimeoutError:
        is_empty = None
    if is_empty:
        raise ValueError(f"{pattern[:80]!r} matches the empty text, so it would match everywhere")
    return pattern


def _require(is_valid: Callable[[str], object], message: str) -> AfterValidator:
    """Return a validator of texts; its message begins with the text."""

    def check(text: str) -> str:
        if not is_valid(text):
            raise ValueError(f"{text[:80]!r} {message}")
        return text

    return AfterValidator(check)


def _check_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < KEY_CHARS_MIN:
        raise ValueError(f"the key must have at least {KEY_CHARS_MIN} characters")
    return key


_Kind = Annotated[
    str,
    _require(
        re.compile(r"[a-z0-9_]{1,40}").fullmatch,
        "is not a kind; use up to 40 lower-case letters, digits and _",
    ),
]
_Name = Annotated[str, _require(split_name, "contains no word")]
_Function = Annotated[
    str,
    _require(
        re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*").fullmatch,
        "names no function; write package.module:function",
    ),
]
Pattern = Annotated[str, AfterValidator(_check_pattern)]


class Rules(BaseModel):
    """The user's own redaction rules, in addition to the built-in ones.

    The regular expressions use the syntax of the package `regex`, a superset of `re`. If one takes
    longer than a second on a text, that text is dropped and its run is not kept. The pattern
    is then suspended for a minute, and the texts that it would search are dropped as well.

    Attributes:
        patterns: Maps a kind to a regular expression; its matches become `[REDACTED:kind]`. If the
            expression has a group named `secret`, only that group is replaced.
        names: Additional sensitive field names, as words: `employee number` matches
            `employeeNumber`, `EMPLOYEE_NUMBER` and `my-employee-number`. Every value of such a
            field is redacted.
        allow: Regular expressions. A match is kept if one of them matches all of it. Secrets that
            their format proves (an issuer's token, a private key, a JSON Web Token) or their
            context (a password in a URL, an HTTP scheme) are redacted all the same.
        pseudonym_key: A secret of 16 characters or more. With it, identifiers become
            `[REDACTED:email#k3f9x2m1qa]`, the same for the same address and key. A reader can
            follow one person without knowing who it is. Secrets never get pseudonyms.
        redactor: `package.module:function` of a redactor, as `KPCallbackHandler` takes one: for
            handlers without a redactor of their own, and for the notes of verdicts that come from
            elsewhere, such as `kp-langchain label`.

    Raises:
        pydantic.ValidationError: A rule is invalid; the message says which one and why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    patterns: dict[_Kind, Pattern] = Field(default_factory=dict)
    names: list[_Name] = Field(default_factory=list)
    allow: list[Pattern] = Field(default_factory=list)
    pseudonym_key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    redactor: _Function | None = None

    _patterns: list[tuple[str, _Pattern]] = PrivateAttr(default_factory=list)
    _allow: list[_Pattern] = PrivateAttr(default_factory=list)
    _names: list[tuple[list[str], str, _Pattern]] = PrivateAttr(default_factory=list)

    def model_post_init(self, _context: Any) -> None:
        """Compile the patterns and names once."""
        self._patterns = [(kind, _Pattern(text)) for kind, text in self.patterns.items()]
        self._allow = [_Pattern(text) for text in self.allow]
        for words in map(split_name, self.names):
            name = r"[ _\-.]?".join(map(re.escape, words))
            # Overlapped, or else a match would hide the names that start within it.
            pattern = _Pattern(_OF_NAME.replace("NAME", f"(?:{name})"), is_overlapped=True)
            self._names.append((words, _kind_of(words), pattern))

    @cached_property
    def harmless_texts(self) -> defaultdict[bool, HarmlessTexts]:
        """The texts that need no redaction, by whether identifiers are redacted; added to."""
        return defaultdict(HarmlessTexts)

    def load_redactor(self) -> Callable[[str], str] | None:
        """Return the function that `redactor` names; None if it names none.

        Raises:
            ConfigError: It cannot be imported, or is not a function.
        """
        if self.redactor is None:
            return None
        try:
            function = resolve_name(self.redactor)
        except Exception as error:
            raise ConfigError(
                f"the redactor {self.redactor!r} of [redaction] cannot be imported "
                f"({type(error).__name__}); name it as package.module:function"
            ) from error
        if not callable(function):
            raise ConfigError(
                f"the redactor {self.redactor!r} of [redaction] is a {type(function).__name__}; "
                "name a function that takes a text and returns the redacted text"
            )
        return cast("Callable[[str], str]", function)

    def classify_name(self, name: str) -> SensitiveField | None:
        """Return what a field name says about its value, by these names and the built-in ones.

        Args:
            name: The name of a field.

        Returns:
            None if the name is not sensitive.
        """
        if self.names and len(name) <= _NAME_CHARS_MAX:
            words = split_name(name)
            for own_words, kind, _ in self._names:
                if words[-len(own_words) :] == own_words:
                    return SensitiveField(kind)
        return classify_name(name)

    def classifier(self, *, identifiers: bool) -> Callable[[str], SensitiveField | None]:
        """Return the function that tells what a name says about its value.

        Args:
            identifiers: Whether names of identifiers count as sensitive.
        """
        if not self.names:
            return classify_name if identifiers else classify_secret

        def classify(name: str) -> SensitiveField | None:
            field = self.classify_name(name)
            return None if field and field.is_identifier and not identifiers else field

        return classify

    def find(self, text: str) -> Iterator[Span]:
        """Yield the matches of these patterns, and the values of fields with these names.

        Args:
            text: Any text.

        Raises:
            SlowPatternError: A pattern takes too long on the text.
        """
        for kind, pattern in self._patterns:
            yield from pattern.spans(text, kind)
        for _, kind, pattern in self._names:
            for span in pattern.spans(text, kind):
                if not is_placeholder(text[span.start : span.end]):
                    yield span

    def allows(self, match: str) -> bool:
        """Return whether an `allow` pattern keeps `match`, a text that would be redacted."""
        return any(pattern.matches_all_of(match) for pattern in self._allow)


def _kind_of(words: list[str]) -> str:
    """Return the kind of the values of a user's name."""
    return re.sub(r"[^a-z0-9_]", "", "_".join(words))[:40] or "named"


NO_RULES = Rules()
