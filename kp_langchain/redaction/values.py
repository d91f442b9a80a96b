"""Whether the value of a sensitive field is a real secret, or a placeholder such as `<token>`."""

from __future__ import annotations

import re

from kp_langchain.redaction.field_names import SensitiveField, word_set
from kp_langchain.redaction.national_ids import FORMAL_KINDS, has_form
from kp_langchain.redaction.spans import PLACEHOLDER

_EMPTY_WORDS = word_set(
    "none null nil true false undefined nan str string int integer float number bytes bool boolean "
    "any object array list dict secretstr optional required missing invalid expired empty unknown "
    "hidden redacted masked removed filtered yes no on off enabled disabled strict lax default "
    "n/a na tbd todo oauth oauth2 basic bearer digest negotiate ntlm anonymous absent present "
    "wrong incorrect correct weak strong set unset ok new success failed failure error denied granted "
    "pending active inactive started closed refreshed created include same-origin omit"
)
_TEMPLATE = re.compile(
    r"<[^<>\n]{0,80}>|\$\{[^}\n]{0,80}\}|\$\([^)\n]{0,80}\)|(?-i:\$[A-Z_][A-Z0-9_]{0,60})"
    r"|\$[a-z_]{0,30}(?:password|secret|token|key)[a-z_]{0,30}|(?-i:%[A-Z_][A-Z0-9_]{0,60}%)"
    r"|%\(?\w{0,40}\)?s|\{\{.{0,80}\}\}|\{[a-z_][\w.\[\]'\"!:]{0,60}\}|([^\d])\1{2,}|[\w\-]{0,6}\*+|\?+"
    r"|(?:insert[_\- ]|enter[_\- ]|put[_\- ])?your[_\- ][a-z_\- ]{0,40}"
    r"|(?:change|replace)[_\- ](?:me|this)|[\w\-]{0,6}(?:\.{3}|…)"
    r"|process\.env\b.{0,80}|os\.(?:environ|getenv)\b.{0,80}"
    r"|\[(?:redacted|hidden|masked|filtered)\]",
    re.IGNORECASE | re.ASCII,
)
_TICKER = re.compile(r"[A-Z]{2,5}")
_LEADING_SCHEME = re.compile(
    r"(?:Bearer|Basic|Token|Key|ApiKey|Bot) (?=[{<$*]|\w{0,12}\*)", re.IGNORECASE
)
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w./\\ \-]*", re.ASCII)
_PASSWORD = re.compile(r"(?=\D*\d|[^!@#$%^&*]*[!@#$%^&*])\S+")
# Words and numbers with separators: users:2024:11, data/part-0001.parquet
_COMPOUND = re.compile(
    r"(?:[a-z]{2,}|[0-9]+)(?:[:/._\-]+(?:[a-z]{2,}|[0-9]+))+|[a-z]{3,}[0-9]{1,4}", re.IGNORECASE
)
_GENERATED = re.compile(r"[A-Za-z0-9_\-+/=.~:$%]{14,4096}", re.ASCII)


def looks_generated(value: str) -> bool:
    """Return whether a value looks random rather than written by a person."""
    if _GENERATED.fullmatch(value) is None:
        return False
    digits = sum(character.isdigit() for character in value)
    letters = sum(character.isalpha() for character in value)
    return digits >= 3 and letters >= 3 and len(set(value)) >= 9


def looks_like_password(value: str) -> bool:
    """Return whether a value is one word of mixed characters, as passwords are."""
    letters = any(map(str.isalpha, value))
    return 5 <= len(value) <= 128 and letters and _PASSWORD.fullmatch(value) is not None


def looks_like_bare_password(value: str) -> bool:
    """Return whether a value is a password even if only a space precedes it."""
    return len(value) >= 6 and looks_like_password(value) and any(map(str.isdigit, value))


def is_placeholder(value: str) -> bool:
    """Return whether a value is a null, a variable, a template or an earlier placeholder."""
    content = _LEADING_SCHEME.sub("", value.strip().strip("\"'`,;"))
    if not content or content.lower() in _EMPTY_WORDS:
        return True
    if len(content) < 4 and not any(map(str.isalnum, content)):
        return True  # the separator between two quoted strings
    if len(content) > 120:
        return False
    return PLACEHOLDER.fullmatch(content) is not None or _TEMPLATE.fullmatch(content) is not None


def is_sensitive(value: str, name: str, field: SensitiveField) -> bool:
    """Return whether `value`, the value of the sensitive field `name`, must be redacted.

    Args:
        value: The text of the value, without quotes.
        name: The name of the field.
        field: What the name marks its value as.
    """
    if is_placeholder(value):
        return False
    if not field.is_strong:
        if field.kind == "password":
            return looks_like_password(value)
        if field.is_identifier:
            return sum(character.isdigit() for character in value) >= 8
        return (
            looks_generated(value) and not _PATH.fullmatch(value) and not _COMPOUND.fullmatch(value)
        )
    kind = field.kind
    if kind == "pin":
        return 4 <= len(value.strip()) <= 12 and any(map(str.isdigit, value))
    if kind == "cookie" and len(value) < 5 and value.isdigit():
        return False
    if kind == "token" and _TICKER.fullmatch(value):
        return False
    if kind == "cvv":
        return any(map(str.isdigit, value))
    if kind in FORMAL_KINDS:
        return has_form(name, value)
    if field.is_identifier:
        return sum(map(str.isdigit, value)) >= (6 if kind == "phone" else 4)
    # PWD and OLDPWD hold the shell's working folders.
    return not (name.lower().endswith("pwd") and _PATH.fullmatch(value))
