"""Redaction of secrets and identifiers, before anything is embedded, logged or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kp_langchain.errors import ConfigError
from kp_langchain.redaction.custom_rules import Rules

if TYPE_CHECKING:
    from kp_langchain.redaction.session import Session

__all__ = ["LEVELS", "Redaction", "Rules", "redact"]

LEVELS: Final = ("aggregated", "federated", "private")


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `redact` returns.

    Attributes:
        value: The redacted value, of the same shape as the input.
        counts: The number of replacements per kind ("password", "email", "github_token" ...). The
            kind "failed" counts the parts that were dropped because they could not be examined.
    """

    value: Any
    counts: Mapping[str, int]


def redact(
    value: object,
    *,
    level: str = "aggregated",
    rules: Rules | None = None,
    redactor: Callable[[str], str] | None = None,
) -> Redaction:
    """Return a copy of `value` in which secrets and identifiers are replaced.

    Each match becomes `[REDACTED:kind]`. Redacting a second time changes nothing and counts nothing
    (unless a `redactor` does). The input is never changed. No value makes this function raise.

    Strings, bytes and bytearrays are searched wherever they are: values, mapping keys, list items,
    set members, and JSON, headers or command lines in a string. Dicts, lists, tuples (also named
    tuples), sets and frozensets are rebuilt; subclasses of dict, list and set become the plain
    type. Other mappings, dataclasses, pydantic objects, exceptions and enum members become dicts of
    their content. Numbers, dates and UUIDs are kept. A path becomes its text, and any other object
    the name of its type: `<Thing>`.

    Long base64, data URLs and bytes that are not UTF-8 become their length and hash:
    `[BLOB:image/png 48213 bytes sha256:1a2b3c4d5e6f7081]`. A container that contains itself becomes
    `[REDACTED:cycle]`, a container nested deeper than 200 levels `[REDACTED:depth]`, and a part
    that cannot be examined `[REDACTED:failed]`.

    Args:
        value: Any value, usually a JSON-like structure.
        level: The privacy level. "aggregated" and "federated" redact secrets and identifiers:
            email, telephone, network addresses, card and account numbers, user names in home paths.
            "private" redacts secrets alone.
        rules: The user's rules: additional patterns and names, exceptions, pseudonyms.
        redactor: A function that is called with each redacted text, also with keys; its result
            replaces the text. If it raises or does not return a string, the text becomes
            `[REDACTED:failed]`.

    Returns:
        The redacted copy, and the number of replacements per kind.

    Raises:
        ConfigError: `level` is not one of the three levels.
    """
    if level not in LEVELS:
        levels = ", ".join(repr(name) for name in LEVELS)
        raise ConfigError(f"unknown privacy level {level!r}; use one of {levels}")
    clean_value, counts = open_session(rules=rules, redactor=redactor).redact(value, level)
    return Redaction(clean_value, dict(counts))


def open_session(
    *, rules: Rules | None = None, redactor: Callable[[str], str] | None = None
) -> Session:
    """Return a session that redacts the parts of one run; the arguments are those of `redact`."""
    return _session_type()(rules=rules, redactor=redactor)


def load() -> None:
    """Load and compile all finders, which takes about 0.2 s; otherwise the first `redact` does so."""
    redact("load")


@cache
def _session_type() -> type[Session]:
    from kp_langchain.redaction.session import Session

    return Session
