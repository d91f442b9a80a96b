"""Removal of secrets and identifiers, before anything is embedded, logged or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kp_langchain.errors import ConfigError
from kp_langchain.redaction.custom_rules import Rules

if TYPE_CHECKING:
    from kp_langchain.redaction.walk import Walker

__all__ = ["LEVELS", "Redaction", "Rules", "redact"]

LEVELS: Final = ("aggregated", "federated", "private")


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `redact` returns.

    Attributes:
        value: The redacted value, of the same shape as what was given.
        counts: How many finds there were per kind ("password", "email", "github_token" ...).
            It never holds what was found. Under "failed" it counts the leaves that could not be
            judged and were dropped.
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

    What was found becomes `[REDACTED:kind]`. Redacting a second time changes nothing and counts
    nothing (unless a `redactor` does). The input is never changed, and no value makes this raise.

    Strings, bytes and bytearrays are searched at any place: as values, mapping keys, list items,
    set members, and as JSON, headers or command lines inside a string. Dicts, lists, tuples
    (named ones too), sets and frozensets are rebuilt; subclasses of dict, list and set come back
    as the plain type. Other mappings, dataclasses, pydantic and attrs objects, exceptions and enum
    members become dicts of what they hold, and a deque a list. Numbers, dates and UUIDs stay.
    A path becomes its text, and any other object the name of its type: `<Thing>`.

    Long base64, data URLs and bytes that are no UTF-8 become their length and hash:
    `[BLOB:image/png 48213 bytes sha256:1a2b3c4d5e6f7081]`. A container within itself becomes
    `[REDACTED:cycle]`, one nested deeper than 200 `[REDACTED:depth]`, and a leaf that cannot be
    judged `[REDACTED:failed]`.

    Args:
        value: Anything; JSON-like structures are what it is made for.
        level: The privacy level. "aggregated" and "federated" remove secrets and identifiers
            (email, telephone, network addresses, card and account numbers, user names in home
            paths); "private" removes secrets alone.
        rules: What else goes, what stays, and whether identifiers get pseudonyms.
        redactor: Called with each text that is left, keys included; what it returns is kept in its
            place. Where it raises, or returns no text, the text becomes `[REDACTED:failed]`.

    Raises:
        ConfigError: `level` is none of the three.
    """
    if level not in LEVELS:
        allowed = ", ".join(repr(known) for known in LEVELS)
        raise ConfigError(f"unknown privacy level {level!r}; use one of {allowed}")
    walker = _walker_type()(
        identifiers=level != "private", rules=rules or _NO_RULES, redactor=redactor
    )
    redacted = walker.walk(value)
    return Redaction(redacted, dict(walker.counts))


def load() -> None:
    """Load all that is looked for, which takes 60 ms; otherwise the first `redact` does."""
    _walker_type()


@cache
def _walker_type() -> type[Walker]:
    from kp_langchain.redaction.walk import Walker

    return Walker


_NO_RULES = Rules()
