"""Values under telling names inside a text.

Found in one walk over the places where a telling word may stand: `key=value`, `key: value`, JSON
and Python literals at any depth of escaping, headers, `--flag value`, XML, pairs, and "the
password is ...".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from kp_langchain.redaction.extents import (
    NAMED_QUOTE,
    bare,
    opens_quote,
    quoted,
    strings_inside,
    to_line_end,
)
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.foreign import after_copula
from kp_langchain.redaction.keys import Telling, may_tell, telling, word_set
from kp_langchain.redaction.notations import noted
from kp_langchain.redaction.prose import (
    beside,
    in_query,
    is_bare_key,
    is_piece,
    nearby,
    said,
    stated,
)
from kp_langchain.redaction.quoting import closing_quote
from kp_langchain.redaction.spans import DIGITS, LETTERS, Span, glued_length, trie
from kp_langchain.redaction.unquoted import starts_line, unquoted
from kp_langchain.redaction.values import fills_the_place, is_sensitive, looks_chosen

# Every telling name holds one of these; the text is searched for them in lower case.
_KEY_ALONE = Telling("api_key", strong=False)
_DRAWN_KINDS = frozenset(("api_key", "token", "secret", "private_key"))
_STEM = re.compile(
    trie(
        [
            *word_set(
                "pass pwd psw pword secret token key auth cookie sess cred otp pin cvv cvc csc cvn "
                "ssn iban card account social security code jwt bearer sig access xsrf csrf mnemonic "
                "phrase connection nino pw psk hmac salt dsn answer community verifier privkey "
                "sandi khau acceso jeton kennwort losungswort zugangscode senha contrasena clave "
                "wachtwoord motdepasse haslo losenord adgangskode salasana heslo jelszo parola sifre "
                "lozinka geslo parole"
            ),
            "maiden name",
        ]
    )
)
_NAME_LEFT = re.compile(r"[A-Za-z0-9_\-]{0,64}")
_NAME_RIGHT = re.compile(r"[A-Za-z0-9_\-]{0,64}")
# What can stand before the last characters of an escape, those of a long name included.
_IN_ESCAPE = frozenset(f"{LETTERS}{DIGITS}_-\\%[;")
_WORDS_LEFT = re.compile(r"[ .](?:[A-Za-z0-9]{1,20}(?:[ .]|(?![A-Za-z0-9]))){1,2}")
# Markup that may stand between a name, its sign and the value: colours, bold, blanks of URLs.
_MARKUP = (
    r"(?:[ \t]|\x1b\[[0-9;]{0,12}m|\*{1,2}(?=[ \t]?[:=]|[^\s*\\\"'])|%20|!!?\w{0,16}(?=[ \t])"
    r"|</?(?:b|strong|em|i|code|span|label|dt)>)"
)
_ASSIGN = re.compile(
    rf"(?P<close>\\{{0,40}}[\"'`]|{NAMED_QUOTE})?\]?(?:[ \t]\([^()\n]{{1,30}}\))?"
    rf"(?:[ \t](?:is|was)(?=[ \t]{{0,4}}[:=]))?{_MARKUP}{{0,64}}"
    r"(?P<sign>:[ \t]?(?:str|bytes|[Ss]tring|SecretStr|Optional\[str\]|str \| None)[ \t]{0,8}="
    r"|=>|:=|={1,3}|:(?!:)|%3[aAdD]|[\uff1a\uff1d]|\\{1,40}u(?:003[aAdD]|ff1a|2192|2014)|[\u2192\u2014]|->|(?<=[ \t])-(?=[ \t])|(?:\|\||\?\?|(?<= )or)(?=[ \t]{0,4}\\{0,40}[\"'])"
    rf"|</t[dh]>\s{{0,8}}<td>|</d[dt]>\s{{0,8}}<dd>)(?:\*\*(?!\*))?{_MARKUP}{{0,64}}"
)
_NEXT_LINE = re.compile(r"\s{1,64}(?=\\{0,40}[\"'])")
_BLOCK = re.compile(
    r"(?P<marker>[|>][+\-]?[ \t]{0,8})?(?:\r?\n|\\{1,16}n)[ \t]{1,40}(?P<item>-[ \t]{1,8})?(?=\S)"
)
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Bot|Key|OAuth)[ \t]{1,8}", re.IGNORECASE)
_LONG_SCHEME = re.compile(r"(?:Digest|AWS4-HMAC-\w+|Hawk|NTLM|Negotiate|SharedKey) ", re.IGNORECASE)
_OPENED_BEFORE = re.compile(r"([\"'])(\\{0,40})")
_COOKIES = re.compile(
    r"[^\s=;,\"'\\]{1,256}=[^\s;,\"'\\]{0,4096}"
    r"(?:;[ \t]*[^\s=;,\"'\\]{1,256}(?:=[^\s;\"'\\]{0,4096})?)*"
)
_AFTER_STRING = re.compile(r"[ \t]*(?:[,;)\]}]|$|[\n\r])")
_OPENS_LIST = re.compile(r"\[\s{0,64}\\{0,40}[\"'\[{]")
_OPENS_MAPPING = re.compile(r"\{\s{0,64}\\{0,40}[\"']")


def finders(*, identifiers: bool) -> tuple[Finder, ...]:
    """Return what finds the values under telling names in a text.

    Args:
        identifiers: Whether names that tell of a person's identifiers count.
    """
    return (Finder(partial(_find, identifiers=identifiers)),)


def _find(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    done = 0
    for stem in _STEM.finditer(low):
        if stem.start() < done:
            continue
        reach = text[max(done, stem.start() - 64) : stem.start()]
        left = _NAME_LEFT.match(reach[::-1])
        start = stem.start() - (left.end() if left else 0)
        right = _NAME_RIGHT.match(text, stem.end())
        end = right.end() if right else stem.end()
        done = end
        if start >= 10 and text.startswith("[REDACTED:", start - 10):
            continue
        if start and text[start - 1] in _IN_ESCAPE:
            start = min(start + _escape_inside(text, start), stem.start())
        for span in _values(text, start, end):
            if identifiers or not span[1].identifier:
                yield span[0]
                done = max(done, span[0].end)


def _escape_inside(text: str, start: int) -> int:
    r"""Return how much of the name at `start` belongs to an escape before it: `\nPASSWORD`."""
    for length in (1, 2, 3, 5, 6):
        if glued_length(text, start + length) > length:
            return length
    return 0


def _values(text: str, start: int, end: int) -> Iterator[tuple[Span, Telling]]:
    """Yield the spans of the values that belong to the name at `text[start:end]`."""
    after = text[end : end + 1]
    if not after:
        return
    name = text[start:end]
    tells = telling(name)
    key_alone = False
    if tells is None:
        if may_tell(name):
            name, tells = _with_words_before(text, start, end)
        if tells is None:
            if text[start:end].lower() != "key" or not is_bare_key(text, start):
                return
            tells, key_alone = _KEY_ALONE, True
    elif name.lower() == "token" and is_piece(text, start):
        return
    if key_alone and text[max(0, start - 1) : start] in ("?", "&"):
        span = in_query(text, end)
        if span is not None:
            yield Span(*span, tells.kind), tells
        return
    if after == "]" and text[max(0, start - 1) : start] == "[":
        return  # cache[token] = ...
    assigned = None if key_alone else _ASSIGN.match(text, end)
    if assigned is not None:
        yield from _assigned(text, start, assigned, name, tells)
        return
    span = None if key_alone else noted(text, start, end, name)
    if span is None and after in " \t\"'`\u2019:=":
        span = None if key_alone else said(text, end, tells)
        if span is None and tells.kind in _DRAWN_KINDS:
            span = nearby(text, end, bare_name=key_alone)
        if span is None and tells.kind == "password":
            span = after_copula(text, end)
        if span is None and tells.kind in ("password", "secret"):
            span = stated(text, end)
        if span is None and not key_alone:
            span = beside(text, name, end, tells)
    if span is not None and is_sensitive(text[slice(*span)], name, tells):
        yield Span(*span, tells.kind), tells


def _assigned(
    text: str, start: int, assigned: re.Match[str], name: str, tells: Telling
) -> Iterator[tuple[Span, Telling]]:
    """Yield what stands after the sign: `=`, `:`, `=>` ..."""
    if tells.kind in ("authorization", "cookie") and assigned["sign"] in (":", "=", "=>"):
        span = _header(text, start, assigned, tells)
        if span is not None:
            if not fills_the_place(text[slice(*span)]):
                yield Span(*span, tells.kind), tells
            return
    at = assigned.end()
    named = assigned["close"] or assigned["sign"] == "="
    line = _NEXT_LINE.match(text, at) if named else None
    yield from _each_value(text, line.end() if line else at, start, assigned, name, tells)


def _with_words_before(text: str, start: int, end: int) -> tuple[str, Telling | None]:
    """Read the name together with up to two words before it: "API Key", "card number"."""
    before = _WORDS_LEFT.match(text[max(0, start - 44) : start][::-1])
    if before is None:
        return "", None
    words = before.group()[::-1].replace(".", " ").split()
    name = " ".join([*words, text[start:end]])
    return name, telling(name)


def _each_value(
    text: str,
    at: int,
    start: int,
    assigned: re.Match[str],
    name: str,
    tells: Telling,
) -> Iterator[tuple[Span, Telling]]:
    """Yield the value at `at`, or each string of the list or mapping there."""
    if _OPENS_LIST.match(text, at) or (not tells.open and _OPENS_MAPPING.match(text, at)):
        for inner in strings_inside(text, at):
            if is_sensitive(text[slice(*inner)], name, tells):
                yield Span(*inner, tells.kind), tells
        return
    span = None if _closes(text, start, at, assigned) else quoted(text, at)
    block = _BLOCK.match(text, at) if span is None and tells.strong else None
    if block is not None:
        span = _in_block(text, start, block)
    elif span is None:
        span = unquoted(text, at, start, assigned, name, tells)
    if span is not None and is_sensitive(text[slice(*span)], name, tells):
        yield Span(*span, tells.kind), tells


def _header(
    text: str, start: int, assigned: re.Match[str], tells: Telling
) -> tuple[int, int] | None:
    """Return the value of an Authorization or Cookie header, which may hold blanks."""
    at = assigned.end()
    if opens_quote(text, at):
        return None
    if tells.kind == "cookie":
        cookies = _COOKIES.match(text, at)
        return cookies.span() if cookies else None
    scheme = _SCHEME.match(text, at)
    if scheme is not None:
        return bare(text, scheme.end()) or (at, at)
    if _LONG_SCHEME.match(text, at) is not None:
        opened = _OPENED_BEFORE.match(text[max(0, start - 41) : start][::-1])
        if opened is not None:
            end = closing_quote(text, at, opened[1], len(opened[2]), 4096)
            if end is not None:
                return at, end
        return to_line_end(text, at)
    return None


def _closes(text: str, start: int, at: int, assigned: re.Match[str]) -> bool:
    """Tell whether the quote at `at` ends a string that the name stands in: 'Password: '."""
    if assigned["close"] or text[at : at + 1] not in ("'", '"'):
        return False
    if not _AFTER_STRING.match(text, at + 1):
        return False
    line = text[max(0, start - 100) : start].rpartition("\n")[2]
    return line.count(text[at]) % 2 == 1


def _in_block(text: str, start: int, block: re.Match[str]) -> tuple[int, int] | None:
    """Return the value that stands on the line after its name, as YAML may write it."""
    span = quoted(text, block.end()) or bare(text, block.end())
    if span is None or not starts_line(text, start, quoted_too=True):
        return None
    if text[span[1] : span[1] + 1] not in ("", "\n", "\r", "\\", '"', "'"):
        return None
    return span if block["marker"] or block["item"] or looks_chosen(text[slice(*span)]) else None
