"""Credentials that say what they are, by an issuer's form or by a marker in their beginning.

All literals are looked for in one pass over the long words of a text; a form's own expression
runs only where one of its literals was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.issuers import FORMS
from kp_langchain.redaction.spans import (
    TOKEN_CLASS,
    Span,
    classified,
    compiled,
    long_runs,
    starts_word,
    trie,
)
from kp_langchain.redaction.values import looks_generated

# Forms without a fixed beginning: what stands before their first mark, read backwards, and the
# mark with all that follows.
_LOOSE = tuple(
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
# One of these stands in each of them.
_LOOSE_SIGN = re.compile(
    r"-(?:us\d|[0-9a-f]{8}-[0-9a-f]{8})|:(?:AA|[0-9a-f]{64})|\.(?:[\w\-]{6}\.|[A-Za-z0-9]{16}|atlasv1)"
    r"|Q~|JQQJ99|A(?:ZDO|CDb|zCa|zFu|zSe|IoT|AAAAAAAAA)|\+A|\||_mmk",
    re.ASCII,
)
# Issuers without a row of their own mark what is secret, too: acme_sk_live_..., acme-pat-...
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
_PART = re.compile(r"[_\-]")
_HEXADECIMAL = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_WALLET = re.compile(r"S(?<![A-Za-z0-9]S)[A-Z2-7]{55}(?![A-Za-z0-9])")
_LOOSE_LENGTH = 36  # characters of the shortest of them, such as a mailchimp_key
_MARKED_LENGTH = 23  # a marker, its sign, and the shortest body
_SURE = frozenset(
    ["sk", "rk", "pat", "secret", "priv", "private", "apikey", "apitoken", "token", "tok"]
)
_LONG_BODY = re.compile(r"[_\-][A-Za-z0-9]{32,128}(?![A-Za-z0-9_\-])")
_SHORT_PREFIX = re.compile(r"[a-z]{2,6}(?![A-Za-z0-9_\-])")
_THINGS = frozenset(
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
for _form in FORMS:
    for _prefix in _form.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_form.kind, _form.rest))

_PREFIX = re.compile(trie(sorted(_BY_PREFIX)))
_SHORTEST = 18  # characters of the shortest form, prefix included
# A prefix this long with a mark at its end is told from words without a boundary before it.
_FREE_LENGTH = 4


def _find_in_words(text: str, _low: str) -> Iterator[Span]:
    """Yield the credentials in `text` that their format gives away."""
    return _in_words(text, marked=True)


def _find_issued(text: str, _low: str) -> Iterator[Span]:
    """Yield the credentials in `text` that an issuer's published format gives away."""
    return _in_words(text, marked=False)


def _in_words(text: str, *, marked: bool) -> Iterator[Span]:
    """Yield those of published formats, and those that only a marker gives away if wanted."""
    for first, last in long_runs(classified(text, TOKEN_CLASS), _SHORTEST):
        position = first
        while (found := _PREFIX.search(text, position, last)) is not None:
            position = found.start() + 1
            span = _form_end(text, found.start(), found.group())
            if span is not None:
                yield span
                position = span.end
        if marked and last - first >= _MARKED_LENGTH:
            yield from _marked(text, first, last)
        if last - first >= _LOOSE_LENGTH:
            if _LOOSE_SIGN.search(text, first, last):
                yield from _loose(text, first, last)
            if marked:
                yield from _prefixed(text, first, last)
            for match in _WALLET.finditer(text, first, last):
                yield Span(*match.span(), "wallet_key")


def _find_hashes(text: str, _low: str) -> Iterator[Span]:
    for match in _PASSWORD_HASH.finditer(text):
        yield Span(*match.span(), "password_hash")


def _marked(text: str, first: int, last: int) -> Iterator[Span]:
    for match in _MARKER.finditer(text, first, last):
        body = _BODY.match(text, match.end())
        if body is None or not starts_word(text, match.start()):
            continue
        if _is_drawn(body.group(), match.group()):
            reach = text[max(first, match.start() - 40) : match.start()]
            owner = _OWNER_REVERSED.match(reach[::-1])
            yield Span(match.start() - (owner.end() if owner else 0), body.end(), "api_key")


def _prefixed(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield long random words behind a short prefix, which identifiers of things rarely are."""
    for match in _LONG_BODY.finditer(text, first, min(last + 1, len(text))):
        body = match.group()[1:]
        owner = _SHORT_PREFIX.match(text[max(0, match.start() - 8) : match.start()][::-1])
        if (
            owner is None
            or owner.group()[::-1] in _THINGS
            or len(body) < 32 + 4 * (match[0][0] == "-")
        ):
            continue
        start = match.start() - owner.end()
        mixed = not body.islower() and not body.isupper() and looks_generated(body)
        changes = sum(map(_differ, body, body[1:]))
        if mixed and changes >= len(body) * 0.42 and starts_word(text, start):
            yield Span(start, match.end(), "api_key")


def _loose(text: str, first: int, last: int) -> Iterator[Span]:
    for kind, before, after in _LOOSE:
        for match in after.finditer(text, first, min(last + 1, len(text))):
            head = before.match(text[max(first, match.start() - 101) : match.start()][::-1])
            start = match.start() - (head.end() if head else 0)
            if head is not None and starts_word(text, start):
                yield Span(start, match.end(), kind)


def _form_end(text: str, start: int, longest: str) -> Span | None:
    """Try the forms whose prefix begins at `start`, the longest prefix first."""
    for length in range(len(longest), 1, -1):
        forms = _BY_PREFIX.get(longest[:length])
        if forms is None:
            continue
        free = length >= _FREE_LENGTH and not longest[length - 1].isalnum()
        if not free and not starts_word(text, start):
            continue
        for kind, rest in forms:
            match = compiled(rest, re.ASCII).match(text, start + length)
            if match is not None:
                # A path leading to the secret is no part of it.
                first = match.start() if longest[length - 1] == "/" else start
                return Span(first, match.end(), kind)
    return None


def _is_drawn(body: str, marker: str) -> bool:
    """Tell whether what follows a marker was drawn at random, not put together from words."""
    longest = max(_PART.split(body), key=len)
    sure = marker[:-1] in _SURE or marker == "live_"
    if _HEXADECIMAL.fullmatch(longest):
        # The hash of a commit or an image often follows the name of its environment.
        return sure and looks_generated(longest)
    least = 0.25 if longest.islower() else 0.42
    if len(longest) < 20:
        if len(body) < 24 or not sure:
            return False
        longest, least = _PART.sub("", body), 0.5
    if not looks_generated(longest):
        return False
    return sum(map(_differ, longest, longest[1:])) >= len(longest) * least


def _differ(one: str, other: str) -> bool:
    return (one.isdigit(), one.isupper()) != (other.isdigit(), other.isupper())


FINDERS = (Finder(_find_in_words), Finder(_find_hashes, ("$",)))
CERTAIN = (Finder(_find_issued), Finder(_find_hashes, ("$",)))
"""Without those that only a marker such as `sk_` gives away."""
