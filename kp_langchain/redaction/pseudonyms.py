"""Pseudonyms: keyed hashes that replace identifiers, the same for the same person."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import re

from kp_langchain.redaction.lazy_pattern import lazy_pattern

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
