"""Credentials recognised by their format: an issuer's prefix, or a marker such as `sk_`.

All literals are searched for in one pass over the long words of a text; the expression of a format
runs only after one of its literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.issuers import TOKEN_FORMATS
from kp_langchain.redaction.spans import (
    TOKEN_CLASS,
    Span,
    cached_pattern,
    character_classes,
    long_runs,
    starts_word,
    trie,
)
from kp_langchain.redaction.values import looks_generated

# Formats without a fixed prefix: the expression before their first literal, read backwards, and the
# expression from that literal on.
_UNPREFIXED = tuple(
    (kind, re.compile(before, re.ASCII), re.compile(after, re.ASCII))
    for kind, before, after in (
        ("mailchimp_key", r"[0-9a-f]{32}", r"-us\d{1,2}(?!\w)"),
        ("mailgun_key", r"[0-9a-f]{32}", r"-[0-9a-f]{8}-[0-9a-f]{8}(?![\w\-])"),
        ("telegram_token", r"\d{8,10}", r":AA[\w\-]{32,34}(?![\w\-])"),
        ("discord_token", r"[\w\-]{22,27}[MNO]", r"\.[\w\-]{6}\.[\w\-]{27,40}(?![\w\-])"),
        (
            "model_key",
            r"[0-9a-f]{32}",
            r"\.(?=[a-z]{0,15}[A-Z0-9])(?=[A-Za-z]{0,15}\d)[A-Za-z0-9]{16}(?![\w.])",
        ),
        ("terraform_token", r"[A-Za-z0-9]{14}", r"\.atlasv1\.[\w\-=]{40,}"),
        ("azure_secret", r"[0-9][\w.~\-]{3}", r"Q~[\w.~\-]{30,36}"),
        ("azure_key", r"[A-Za-z0-9]{52}", r"JQQJ99[A-Za-z0-9]{10,30}"),
        ("azure_token", r"[A-Za-z0-9]{70,80}", r"AZDO[A-Za-z0-9]{4}(?![A-Za-z0-9])"),
        (
            "azure_key",
            r"[A-Za-z0-9+/]{33,100}",
            r"(?:\+A(?:St|Cr|RM|Eh|Sb|SB|Rm|Db|MC|Ba)|A(?:CDb|zCa|zFu|zSe|IoT))"
            r"[A-Za-z0-9+/]{4,9}={0,2}(?![A-Za-z0-9+/=])",
        ),
        ("ghost_key", r"[0-9a-f]{24}", r":[0-9a-f]{64}(?!\w)"),
        ("facebook_token", r"\d{15,16}", r"\|[\w\-]{27,40}(?![\w\-])"),
        ("maxmind_key", r"[A-Za-z0-9]{29}_[A-Za-z0-9]{6}", r"_mmk(?!\w)"),
        ("dropbox_token", r"[a-z0-9]{11}", r"AAAAAAAAAA[\w\-=]{40,50}"),
    )
)
# Each of them contains one of these.
_UNPREFIXED_HINT = re.compile(
    r"-(?:us\d|[0-9a-f]{8}-[0-9a-f]{8})|:(?:AA|[0-9a-f]{64})|\.(?:[\w\-]{6}\.|[A-Za-z0-9]{16}|atlasv1)"
    r"|Q~|JQQJ99|A(?:ZDO|CDb|zCa|zFu|zSe|IoT|AAAAAAAAA)|\+A|\||_mmk",
    re.ASCII,
)
# Markers that many issuers put into their secrets: acme_sk_live_..., acme-pat-...
_MARKER = re.compile(
    trie(
        [
            "sk",
            "rk",
            "pat",
            "key",
            "apikey",
            "secret",
            "token",
            "tok",
            "priv",
            "private",
            "apitoken",
            "live",
            "prod",
            "test",
            "api",
            "access",
            "auth",
            "sandbox",
            "personal",
        ]
    )
    + r"[_\-](?=[A-Za-z0-9])"
)
_OWNER_REVERSED = re.compile(r"(?:[_\-][a-z0-9]{1,15}){0,2}(?![A-Za-z0-9_\-])")
_BODY = re.compile(r"[A-Za-z0-9_\-]{20,512}(?![A-Za-z0-9_\-])")
_SEPARATOR = re.compile(r"[_\-]")
_HEXADECIMAL = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_WALLET = re.compile(r"S(?<![A-Za-z0-9]S)[A-Z2-7]{55}(?![A-Za-z0-9])")
_MIN_UNPREFIXED_CHARS = 36  # of the shortest, such as a mailchimp_key
_MIN_MARKED_CHARS = 23  # a marker, its separator, and the shortest body
_SURE_MARKERS = frozenset(
    ["sk", "rk", "pat", "secret", "priv", "private", "apikey", "apitoken", "token", "tok"]
)
_LONG_BODY = re.compile(r"[_\-][A-Za-z0-9]{32,128}(?![A-Za-z0-9_\-])")
_SHORT_PREFIX = re.compile(r"[a-z]{2,6}(?![A-Za-z0-9_\-])")
_ID_PREFIXES = frozenset(
    "call msg run req resp cs evt user org step file item part chunk batch task job node trace span "
    "event order page image img asset doc obj ref uid id sha hash blob cus sub price prod plan acct "
    "thread asst tool toolu conv chat group team app env test model ft data cache etag rev ver".split()
)
_PASSWORD_HASH = re.compile(
    r"\$(?:apr1|1|2[abxy]|5|6|y|argon2(?:id?|d)|scrypt|pbkdf2[\w\-]{0,8})\$"
    r"[A-Za-z0-9./+=$,\-]{12,200}",
    re.ASCII,
)


_BY_PREFIX: dict[str, list[tuple[str, str]]] = {}
for _format in TOKEN_FORMATS:
    for _prefix in _format.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_format.kind, _format.rest))

_PREFIX = re.compile(trie(sorted(_BY_PREFIX)))
_MIN_CHARS = 18  # of the shortest format, prefix included
# A prefix of this length that ends in punctuation may directly follow a word.
_MIN_FREE_PREFIX_CHARS = 4


def _find_in_words(text: str, _low: str) -> Iterator[Span]:
    """Yield the credentials with an issuer's format or a marker."""
    return _in_words(text, with_markers=True)


def _find_by_issuer(text: str, _low: str) -> Iterator[Span]:
    """Yield the credentials with an issuer's published format."""
    return _in_words(text, with_markers=False)


def _in_words(text: str, *, with_markers: bool) -> Iterator[Span]:
    """Yield the credentials with a published format, and those with a marker if asked for."""
    for first, last in long_runs(character_classes(text, TOKEN_CLASS), _MIN_CHARS):
        position = first
        while (prefix := _PREFIX.search(text, position, last)) is not None:
            position = prefix.start() + 1
            span = _match_prefix(text, prefix.start(), prefix.group())
            if span is not None:
                yield span
                position = span.end
        if with_markers and last - first >= _MIN_MARKED_CHARS:
            yield from _find_marked(text, first, last)
        if last - first >= _MIN_UNPREFIXED_CHARS:
            if _UNPREFIXED_HINT.search(text, first, last):
                yield from _find_unprefixed(text, first, last)
            if with_markers:
                yield from _find_prefixed(text, first, last)
            for match in _WALLET.finditer(text, first, last):
                yield Span(*match.span(), "wallet_key")


def _find_hashes(text: str, _low: str) -> Iterator[Span]:
    for match in _PASSWORD_HASH.finditer(text):
        yield Span(*match.span(), "password_hash")


def _find_marked(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _MARKER.finditer(text, first, last):
        body = _BODY.match(text, match.end())
        if body is None or not starts_word(text, match.start()):
            continue
        if _is_random(body.group(), match.group()):
            reach = text[max(first, match.start() - 40) : match.start()]
            owner = _OWNER_REVERSED.match(reach[::-1])
            yield Span(match.start() - (owner.end() if owner else 0), body.end(), "api_key")


def _find_prefixed(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield long random words after a short prefix that is not one of an object's id."""
    for match in _LONG_BODY.finditer(text, first, min(last + 1, len(text))):
        body = match.group()[1:]
        owner = _SHORT_PREFIX.match(text[max(0, match.start() - 8) : match.start()][::-1])
        if (
            owner is None
            or owner.group()[::-1] in _ID_PREFIXES
            or len(body) < 32 + 4 * (match[0][0] == "-")
        ):
            continue
        start = match.start() - owner.end()
        is_random = not body.islower() and not body.isupper() and looks_generated(body)
        changes = sum(map(_differ_in_class, body, body[1:]))
        if is_random and changes >= len(body) * 0.42 and starts_word(text, start):
            yield Span(start, match.end(), "api_key")


def _find_unprefixed(text: str, first: int, last: int) -> Iterator[Span]:
    for kind, before, after in _UNPREFIXED:
        for match in after.finditer(text, first, min(last + 1, len(text))):
            head = before.match(text[max(first, match.start() - 101) : match.start()][::-1])
            start = match.start() - (head.end() if head else 0)
            if head is not None and starts_word(text, start):
                yield Span(start, match.end(), kind)


def _match_prefix(text: str, start: int, longest: str) -> Span | None:
    """Return the credential whose prefix starts at `start`; the longest prefix is tried first."""
    for length in range(len(longest), 1, -1):
        formats = _BY_PREFIX.get(longest[:length])
        if formats is None:
            continue
        may_follow_word = length >= _MIN_FREE_PREFIX_CHARS and not longest[length - 1].isalnum()
        if not may_follow_word and not starts_word(text, start):
            continue
        for kind, rest in formats:
            match = cached_pattern(rest, re.ASCII).match(text, start + length)
            if match is not None:
                # The path of a URL before the secret is kept.
                first = match.start() if longest[length - 1] == "/" else start
                return Span(first, match.end(), kind)
    return None


def _is_random(body: str, marker: str) -> bool:
    """Return whether the text after a marker is random, rather than composed of words."""
    longest = max(_SEPARATOR.split(body), key=len)
    is_sure = marker[:-1] in _SURE_MARKERS or marker == "live_"
    if _HEXADECIMAL.fullmatch(longest):
        # The name of an environment is often followed by the hash of a commit or an image.
        return is_sure and looks_generated(longest)
    min_share = 0.25 if longest.islower() else 0.42
    if len(longest) < 20:
        if len(body) < 24 or not is_sure:
            return False
        longest, min_share = _SEPARATOR.sub("", body), 0.5
    if not looks_generated(longest):
        return False
    return sum(map(_differ_in_class, longest, longest[1:])) >= len(longest) * min_share


def _differ_in_class(one: str, other: str) -> bool:
    return (one.isdigit(), one.isupper()) != (other.isdigit(), other.isupper())


FINDERS = (Finder(_find_in_words), Finder(_find_hashes, ("$",)))
CERTAIN = (Finder(_find_by_issuer), Finder(_find_hashes, ("$",)))
"""The same without credentials that only have a marker such as `sk_`."""
