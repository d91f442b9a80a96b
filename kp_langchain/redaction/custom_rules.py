"""What users add to the redaction: patterns, telling names, exceptions, pseudonyms."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.redaction.extents import bare, quoted
from kp_langchain.redaction.keys import Telling, split_name, telling
from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.values import fills_the_place

if TYPE_CHECKING:
    import regex

_Found = TypeVar("_Found")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_KIND = re.compile(r"[a-z0-9_]{1,40}")
_SECRET = "secret"  # noqa: S105 - the name of a group
KEY_CHARS_MIN = 16
_NAME_CHARS_MAX = 128
_LONGEST_SEARCH_S = 1.0
_PAUSE_S = 60.0
_LONGEST_SHOWN_CHARS = 80
# Between a name and its value, in text: `=`, `:`, `is`, and a flag's blank.
_LEADS_TO = re.compile(
    r"(?:\\{0,40}[\"'`])?"
    r"(?:[ \t]{0,8}(?:=>|:=|={1,2}|:|\uff1a|%3[aAdD])\s{0,8}|[ \t]+(?:is|was)[ \t]+)"
)
_FLAG_GAP = re.compile(r"[ \t]+(?!-)")


class SlowPatternError(Exception):
    """A pattern of the user's takes too long on a text, or did so a short while ago."""


class _Pattern:
    """A regular expression of the user's, under a time limit.

    Python's own `re` has none, and while it searches no other thread runs, the agent's included.
    """

    def __init__(self, text: str) -> None:
        # Here, because it takes 40 ms to import, and most users have no patterns.
        import regex

        self._text = text
        self._slow_until = 0.0
        self.compiled: regex.Pattern[str] = regex.compile(text)

    def run(self, search: Callable[[float], _Found]) -> _Found:
        """Return what `search` returns, which is given the seconds it may take.

        Raises:
            SlowPatternError: It takes longer; or one did in the last minute, so that a run of many
                texts is not held up by each of them.
        """
        if time.monotonic() >= self._slow_until:
            try:
                return search(_LONGEST_SEARCH_S)
            except TimeoutError:
                self._slow_until = time.monotonic() + _PAUSE_S
                warn_once(
                    f"slow pattern:{self._text}",
                    "the pattern %s of [redaction] takes longer than %.0f s on a text, so it is not "
                    "tried for %.0f s at a time: what it is to find is dropped with its whole text, "
                    "and what it is to allow is redacted; write it without nested repetition",
                    self._text[:_LONGEST_SHOWN_CHARS],
                    _LONGEST_SEARCH_S,
                    _PAUSE_S,
                )
        raise SlowPatternError(self._text[:_LONGEST_SHOWN_CHARS])


def _readable(pattern: str) -> str:
    import regex

    try:
        compiled = regex.compile(pattern)
        is_empty = compiled.fullmatch("", timeout=_LONGEST_SEARCH_S)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:80]!r} is no regular expression: {error}") from None
    except TimeoutError:
        is_empty = None
    if is_empty:
        raise ValueError(f"{pattern[:80]!r} matches nothing at all, so it would match everywhere")
    return pattern


def _kind(kind: str) -> str:
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind[:80]!r} is no kind; use lower-case letters, digits and _")
    return kind


def _name(name: str) -> str:
    if not split_name(name):
        raise ValueError(f"{name[:80]!r} holds no word")
    return name


def _strong(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value()) < KEY_CHARS_MIN:
        raise ValueError(f"the key must have at least {KEY_CHARS_MIN} characters")
    return key


def _importable(name: str) -> str:
    if not _FUNCTION.fullmatch(name):
        raise ValueError(f"{name[:80]!r} names no function; write package.module:function")
    return name


Pattern = Annotated[str, AfterValidator(_readable)]


class Rules(BaseModel):
    """What is redacted besides what always is.

    The regular expressions are those of the package `regex`, which knows what `re` does and more.
    Where one takes longer than a second on a text, that text is dropped, and its run is not
    contributed; the pattern is then left alone for a minute, with the same outcome.

    Attributes:
        patterns: By kind, a regular expression for what becomes `[REDACTED:kind]`. With a group
            named `secret`, only that group does.
        names: Further telling names, in words: `employee number` stands for `employeeNumber`,
            `EMPLOYEE_NUMBER` and `my-employee-number`. Whatever stands under one goes.
        allow: Regular expressions. What would be replaced stays if one of them matches all of it,
            unless it is a secret by its own form (an issuer's token, a private key, a JSON Web
            Token) or by what carries it (a password in a URL, an HTTP scheme).
        pseudonym_key: With it (16 characters or more), identifiers become
            `[REDACTED:email#k3f9x2m1qa]`: the same for the same address under the same key, so that
            a reader can follow one person without knowing who it is. Secrets never do.
        redactor: `package.module:function` of a redactor, as `KPCallbackHandler` takes one: for
            handlers without a redactor of their own, and for the notes of verdicts that come from
            elsewhere, such as `kp-langchain label`.

    Raises:
        pydantic.ValidationError: Something cannot be used; the message says what and why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    patterns: dict[Annotated[str, AfterValidator(_kind)], Pattern] = Field(default_factory=dict)
    names: list[Annotated[str, AfterValidator(_name)]] = Field(default_factory=list)
    allow: list[Pattern] = Field(default_factory=list)
    pseudonym_key: Annotated[SecretStr, AfterValidator(_strong)] | None = None
    redactor: Annotated[str, AfterValidator(_importable)] | None = None

    _patterns: list[tuple[str, _Pattern]] = PrivateAttr(default_factory=list)
    _allow: list[_Pattern] = PrivateAttr(default_factory=list)
    _names: list[list[str]] = PrivateAttr(default_factory=list)
    _in_text: list[regex.Pattern[str]] = PrivateAttr(default_factory=list)

    def model_post_init(self, _context: Any) -> None:
        """Prepare what every text is searched with."""
        self._patterns = [(kind, _Pattern(text)) for kind, text in self.patterns.items()]
        self._allow = [_Pattern(text) for text in self.allow]
        self._names = [split_name(name) for name in self.names]
        self._in_text = [_in_text(words) for words in self._names]

    def load_redactor(self) -> Callable[[str], str] | None:
        """Return the function that `redactor` names; None if it names none.

        Raises:
            ConfigError: It cannot be imported, or is no function.
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
                "name a function that takes a text and returns what is to be kept of it"
            )
        return cast("Callable[[str], str]", function)

    def tells(self, name: str) -> Telling | None:
        """Say what a name tells about its value: one of these names, or one known anyway."""
        if self.names and len(name) <= _NAME_CHARS_MAX:
            words = split_name(name)
            for own in self._names:
                if words[-len(own) :] == own:
                    return Telling(_kind_of(own))
        return telling(name)

    def find(self, text: str) -> Iterator[Span]:
        """Yield what these rules find in a text.

        Raises:
            SlowPatternError: A pattern takes too long.
        """
        for kind, pattern in self._patterns:
            yield from pattern.run(partial(_spans, pattern, kind, text))
        # One by one: an alternative that matches hides those that begin within it.
        for in_text in self._in_text:
            for named in in_text.finditer(text, overlapped=True):
                extent = _value_after(text, named)
                if extent is not None and not fills_the_place(text[slice(*extent)]):
                    tells = self.tells(named.group())
                    yield Span(*extent, tells.kind if tells else "named")

    def allows(self, found: str) -> bool:
        """Tell whether what would be replaced is to stay."""
        return any(_matches(pattern, found) for pattern in self._allow)


def _spans(pattern: _Pattern, kind: str, text: str, limit_s: float) -> list[Span]:
    group = _SECRET if _SECRET in pattern.compiled.groupindex else 0
    matches = pattern.compiled.finditer(text, timeout=limit_s)
    extents = (match.span(group) for match in matches)
    return [Span(start, end, kind) for start, end in extents if start < end]


def _matches(pattern: _Pattern, found: str) -> bool:
    try:
        return pattern.run(
            lambda limit_s: pattern.compiled.fullmatch(found, timeout=limit_s) is not None
        )
    except SlowPatternError:
        return False


def _in_text(words: list[str]) -> regex.Pattern[str]:
    import regex

    name = r"[ _\-.]?".join(map(regex.escape, words))
    return regex.compile(rf"(?<![^\W_])(?:[\w\-]{{0,64}}[_\-])?{name}(?![^\W_])", regex.IGNORECASE)


def _value_after(text: str, named: regex.Match[str]) -> tuple[int, int] | None:
    leads = _LEADS_TO.match(text, named.end())
    if leads is None and named.group().startswith("-"):
        leads = _FLAG_GAP.match(text, named.end())
    if leads is None:
        return None
    return quoted(text, leads.end()) or bare(text, leads.end())


def _kind_of(words: list[str]) -> str:
    kind = re.sub(r"[^a-z0-9_]", "", "_".join(words))[:40]
    return kind or "named"
