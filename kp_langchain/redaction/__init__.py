"""Removal of secrets and identifiers, before anything is embedded, logged or stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kp_langchain.errors import ConfigError
from kp_langchain.redaction.walk import Walker

__all__ = ["LEVELS", "Redaction", "redact"]

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


def redact(value: object, *, level: str = "aggregated") -> Redaction:
    """Return a copy of `value` in which secrets and identifiers are replaced.

    What was found becomes `[REDACTED:kind]`. Redacting a second time changes nothing and counts
    nothing. The input is never changed, and no value makes this function raise.

    Strings, bytes and bytearrays are searched at any place: as values, mapping keys, list items,
    set members, and as JSON, headers or command lines inside a string. Dicts, lists, tuples
    (named ones too), sets and frozensets are rebuilt; subclasses of dict, list and set come back
    as the plain type. Objects of other types are returned as they are, unless a telling name
    ("password") stands over them: turn models and dataclasses into dicts first. A container
    within itself becomes `[REDACTED:cycle]`, one nested deeper than 200 `[REDACTED:depth]`, and
    a leaf that cannot be judged `[REDACTED:failed]`.

    Args:
        value: Anything; JSON-like structures are what it is made for.
        level: The privacy level. "aggregated" and "federated" remove secrets and identifiers
            (email, telephone, network addresses, card and account numbers, user names in home
            paths); "private" removes secrets alone.

    Raises:
        ConfigError: `level` is none of the three.
    """
    if level not in LEVELS:
        allowed = ", ".join(repr(known) for known in LEVELS)
        raise ConfigError(f"unknown privacy level {level!r}; use one of {allowed}")
    walker = Walker(identifiers=level != "private")
    redacted = walker.walk(value)
    return Redaction(redacted, dict(walker.counts))
