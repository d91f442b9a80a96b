"""What stands under a telling name: a real value, or something that only fills the place."""

from __future__ import annotations

import re

from kp_langchain.redaction.keys import Telling, word_set
from kp_langchain.redaction.spans import PLACEHOLDER

_NO_VALUE = word_set(
    "none null nil true false undefined nan str string int integer float number bytes bool boolean "
    "any object array list dict secretstr optional required missing invalid expired empty unknown "
    "hidden redacted masked removed filtered yes no on off enabled disabled strict lax default "
    "n/a na tbd todo oauth oauth2 basic bearer digest negotiate ntlm anonymous absent present "
    "wrong incorrect correct weak strong set unset ok new success failed failure error denied granted "
    "pending active inactive started closed refreshed created"
)
_STAND_IN = re.compile(
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
_CHOSEN = re.compile(r"(?=\D*\d|[^!@#$%^&*]*[!@#$%^&*])\S+")
# Words and numbers with signs between: users:2024:11, data/part-0001.parquet
_BUILT = re.compile(
    r"(?:[a-z]{2,}|[0-9]+)(?:[:/._\-]+(?:[a-z]{2,}|[0-9]+))+|[a-z]{3,}[0-9]{1,4}", re.IGNORECASE
)
_GENERATED = re.compile(r"[A-Za-z0-9_\-+/=.~:$%]{14,4096}", re.ASCII)


def looks_generated(value: str) -> bool:
    """Tell whether a value looks drawn at random rather than written by a person."""
    if _GENERATED.fullmatch(value) is None:
        return False
    digits = sum(character.isdigit() for character in value)
    letters = sum(character.isalpha() for character in value)
    return digits >= 3 and letters >= 3 and len(set(value)) >= 9


def looks_chosen(value: str) -> bool:
    """Tell whether a value is one word of mixed characters, as passwords are."""
    letters = any(map(str.isalpha, value))
    return 5 <= len(value) <= 128 and letters and _CHOSEN.fullmatch(value) is not None


def fills_the_place(value: str) -> bool:
    """Tell whether a value is a null, a variable, a template or an earlier placeholder."""
    stripped = _LEADING_SCHEME.sub("", value.strip().strip("\"'`,;"))
    if not stripped or stripped.lower() in _NO_VALUE:
        return True
    if len(stripped) < 4 and not any(map(str.isalnum, stripped)):
        return True  # what separates one quoted string from the next
    if len(stripped) > 120:
        return False
    return PLACEHOLDER.fullmatch(stripped) is not None or _STAND_IN.fullmatch(stripped) is not None


def is_sensitive(value: str, name: str, tells: Telling) -> bool:
    """Tell whether `value`, found under `name`, has to go.

    Args:
        value: The text of the value, without quotes.
        name: The name it was found under.
        tells: What that name says.
    """
    if fills_the_place(value):
        return False
    if not tells.strong:
        if tells.kind == "password":
            return looks_chosen(value)
        if tells.identifier:
            return sum(character.isdigit() for character in value) >= 8
        return looks_generated(value) and not _PATH.fullmatch(value) and not _BUILT.fullmatch(value)
    kind = tells.kind
    if kind == "pin":
        return 4 <= len(value.strip()) <= 12 and any(map(str.isdigit, value))
    if kind == "cookie" and len(value) < 5 and value.isdigit():
        return False
    if kind == "token" and _TICKER.fullmatch(value):
        return False
    if kind == "cvv":
        return any(map(str.isdigit, value))
    if tells.identifier:
        return sum(map(str.isdigit, value)) >= (6 if kind == "phone" else 4)
    # PWD and OLDPWD are the shell's working folders.
    return not (name.lower().endswith("pwd") and _PATH.fullmatch(value))
