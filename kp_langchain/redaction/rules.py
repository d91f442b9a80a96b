"""What users add to the redaction: patterns, telling names, exceptions, pseudonyms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from kp_langchain.redaction.extents import bare, quoted
from kp_langchain.redaction.keys import Telling, split_name, telling
from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.values import fills_the_place

_KIND = re.compile(r"[a-z0-9_]{1,40}")
_SECRET = "secret"  # noqa: S105 - the name of a group
_KEY_CHARS_MIN = 16
_NAME_CHARS_MAX = 128
# Between a name and its value, in text: `=`, `:`, `is`, and a flag's blank.
_LEADS_TO = re.compile(
    r"(?:\\{0,40}[\"'`])?"
    r"(?:[ \t]{0,8}(?:=>|:=|={1,2}|:|\uff1a|%3[aAdD])\s{0,8}|[ \t]+(?:is|was)[ \t]+)"
)
_FLAG_GAP = re.compile(r"[ \t]+(?!-)")


def _readable(pattern: str) -> str:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern[:80]!r} is no regular expression: {error}") from None
    if compiled.fullmatch(""):
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
    if len(key.get_secret_value()) < _KEY_CHARS_MIN:
        raise ValueError(f"the key must have at least {_KEY_CHARS_MIN} characters")
    return key


Pattern = Annotated[str, AfterValidator(_readable)]


class Rules(BaseModel):
    """What is redacted besides what always is.

    The regular expressions are yours: one that backtracks without end holds up the worker, not the
    agent.

    Args:
        patterns: By kind, a regular expression for what becomes `[REDACTED:kind]`. With a group
            named `secret`, only that group does.
        names: Further telling names, in words: `employee number` stands for `employeeNumber`,
            `EMPLOYEE_NUMBER` and `my-employee-number`. Whatever stands under one goes.
        allow: Regular expressions. What would be replaced stays if one of them matches all of it.
        pseudonym_key: With it (16 characters or more), identifiers become
            `[REDACTED:email#k3f9x2m1qa]`: the same for the same address under the same key, so that
            a reader can follow one person without knowing who it is. Secrets never do.

    Raises:
        pydantic.ValidationError: Something cannot be used; the message says what and why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    patterns: dict[Annotated[str, AfterValidator(_kind)], Pattern] = Field(default_factory=dict)
    names: list[Annotated[str, AfterValidator(_name)]] = Field(default_factory=list)
    allow: list[Pattern] = Field(default_factory=list)
    pseudonym_key: Annotated[SecretStr, AfterValidator(_strong)] | None = None

    _patterns: list[tuple[str, re.Pattern[str]]] = PrivateAttr(default_factory=list)
    _allow: list[re.Pattern[str]] = PrivateAttr(default_factory=list)
    _names: list[list[str]] = PrivateAttr(default_factory=list)
    _in_text: re.Pattern[str] | None = PrivateAttr(default=None)

    def model_post_init(self, _context: Any) -> None:
        """Prepare what every text is searched with."""
        self._patterns = [(kind, re.compile(text)) for kind, text in self.patterns.items()]
        self._allow = [re.compile(text) for text in self.allow]
        self._names = [split_name(name) for name in self.names]
        self._in_text = _names_in_text(self._names)

    def tells(self, name: str) -> Telling | None:
        """Say what a name tells about its value: one of these names, or one known anyway."""
        if self.names and len(name) <= _NAME_CHARS_MAX:
            words = split_name(name)
            for own in self._names:
                if words[-len(own) :] == own:
                    return Telling(_kind_of(own))
        return telling(name)

    def find(self, text: str) -> Iterator[Span]:
        """Yield what these rules find in a text."""
        for kind, pattern in self._patterns:
            group = _SECRET if _SECRET in pattern.groupindex else 0
            for match in pattern.finditer(text):
                if match.start(group) < match.end(group):
                    yield Span(*match.span(group), kind)
        if self._in_text is not None:
            for named in self._in_text.finditer(text):
                extent = _value_after(text, named)
                if extent is not None and not fills_the_place(text[slice(*extent)]):
                    tells = self.tells(named.group())
                    yield Span(*extent, tells.kind if tells else "named")

    def allows(self, found: str) -> bool:
        """Tell whether what would be replaced is to stay."""
        return any(pattern.fullmatch(found) for pattern in self._allow)


def _names_in_text(names: list[list[str]]) -> re.Pattern[str] | None:
    if not names:
        return None
    spelt = "|".join(r"[ _\-.]?".join(map(re.escape, words)) for words in names)
    return re.compile(rf"(?<![^\W_])(?:[\w\-]{{0,64}}[_\-])?(?:{spelt})(?![^\W_])", re.IGNORECASE)


def _value_after(text: str, named: re.Match[str]) -> tuple[int, int] | None:
    leads = _LEADS_TO.match(text, named.end())
    if leads is None and named.group().startswith("-"):
        leads = _FLAG_GAP.match(text, named.end())
    if leads is None:
        return None
    return quoted(text, leads.end()) or bare(text, leads.end())


def _kind_of(words: list[str]) -> str:
    kind = re.sub(r"[^a-z0-9_]", "", "_".join(words))[:40]
    return kind or "named"
