"""The forms in which a secret occurs elsewhere: escaped, encoded, in other letters."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterator
from json.encoder import encode_basestring, encode_basestring_ascii
from urllib.parse import quote, quote_plus

from kp_langchain.redaction.lazy_pattern import lazy_pattern

_NOT_FOR_SHELLS = lazy_pattern(r"([^\w@%+=:,./\-])")
_QUOTES_IN_SHELL_STRINGS = (r"'\''", "'\"'\"'")
# What URLs keep as it is: all or nothing, a path, JavaScript's encodeURIComponent and encodeURI.
_SAFE_IN_URLS = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")
_HEX_IN_URLS = lazy_pattern("%[0-9A-F]{2}")
_WRITE_JSON = (encode_basestring, encode_basestring_ascii)
_SHORTEST_ENCODED = 8  # characters; fewer may be part of any word
_BYTES_OF_GROUP = 3


def written_forms(secret: str) -> set[str]:
    """Return how a secret is written: in JSON, also within JSON, in Python, a URL, HTML, a shell."""
    cases = {secret, secret.lower(), secret.upper(), secret.capitalize()}
    if secret.isascii() and secret.isalnum():
        return cases
    content = secret.encode("utf-8", "surrogatepass")
    in_urls = {quote(content, safe=safe) for safe in _SAFE_IN_URLS} | {quote_plus(content)}
    in_urls |= {_HEX_IN_URLS.sub(lambda match: match[0].lower(), form) for form in in_urls}
    forms = {secret, repr(secret)[1:-1], html.escape(secret), html.escape(secret, quote=False)}
    forms.add(_NOT_FOR_SHELLS.sub(r"\\\1", secret))
    forms |= {secret.replace("'", quote) for quote in _QUOTES_IN_SHELL_STRINGS}
    for _ in range(2):
        forms |= {write(form)[1:-1] for form in forms for write in _WRITE_JSON}
    return forms | in_urls | cases


def encoded_forms(secret: str) -> Iterator[str]:
    """Yield what base64 of any text that contains a secret contains, and the same for digits.

    Base64 writes three bytes as four characters, so the text before the secret decides at which of
    three places it begins in a group. Of each, the characters that the secret alone decides.
    """
    content = secret.encode("utf-8", "surrogatepass")
    for before in range(_BYTES_OF_GROUP):
        code = b64encode(b"\0" * before + content).decode()
        first = -(-before * 8 // 6)
        last = (before + len(content)) * 8 // 6
        yield from _long_enough(code[first:last])
        yield from _long_enough(code[first:last].translate({ord("+"): "-", ord("/"): "_"}))
    yield from _long_enough(content.hex())
    yield from _long_enough(content.hex().upper())


def _long_enough(code: str) -> Iterator[str]:
    if len(code) >= _SHORTEST_ENCODED:
        yield code
