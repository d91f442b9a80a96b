"""Values of sensitive fields in a text.

One pass over the words that a sensitive name may contain finds `key=value`, `key: value`, JSON and
Python literals at any depth of escaping, headers, `--flag value`, XML, pairs, and "the password is
...".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from kp_langchain.redaction.extents import (
    ENCODED_QUOTE,
    bare_word,
    opens_quote,
    quoted_value,
    rest_of_line,
    strings_inside,
)
from kp_langchain.redaction.field_names import SensitiveField, classify_name, may_end_name, word_set
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.notations import notation_value
from kp_langchain.redaction.other_languages import value_after_copula
from kp_langchain.redaction.prose import (
    is_credential_key,
    is_model_token,
    query_value,
    random_value_nearby,
    value_after_colon,
    value_after_space,
    value_after_verb,
)
from kp_langchain.redaction.quoting import closing_quote
from kp_langchain.redaction.spans import DIGITS, LETTERS, Span, escape_length_before, trie
from kp_langchain.redaction.unquoted_values import starts_line, unquoted_value
from kp_langchain.redaction.values import is_placeholder, is_sensitive, looks_like_password

# The meaning of the word "key" alone.
_WORD_KEY = SensitiveField("api_key", is_strong=False)
_RANDOM_KINDS = frozenset(("api_key", "token", "secret", "private_key"))
# Characters that may follow a name whose value is in the same sentence.
_BEFORE_PROSE_VALUE = " \t\"'`\u2019:="
# Every sensitive name contains one of these; the lower-case text is searched for them.
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
# Characters that may be part of an escape before a name.
_IN_ESCAPE = frozenset(f"{LETTERS}{DIGITS}_-\\%[;")
_WORDS_LEFT = re.compile(r"[ .](?:[A-Za-z0-9]{1,20}(?:[ .]|(?![A-Za-z0-9]))){1,2}")
# Markup between a name, its sign and the value: colours, bold, spaces in URLs.
_MARKUP = (
    r"(?:[ \t]|\x1b\[[0-9;]{0,12}m|\*{1,2}(?=[ \t]?[:=]|[^\s*\\\"'])|%20|!!?\w{0,16}(?=[ \t])"
    r"|</?(?:b|strong|em|i|code|span|label|dt)>)"
)
_ASSIGN = re.compile(
    rf"(?P<close>\\{{0,40}}[\"'`]|{ENCODED_QUOTE})?\]?(?:[ \t]\([^()\n]{{1,30}}\))?"
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
    """Return the finders of the values of sensitive fields in a text.

    Args:
        identifiers: Whether fields that identify a person count as sensitive.
    """
    return (Finder(partial(_find, identifiers=identifiers)),)


def _find(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    position = 0
    for stem in _STEM.finditer(low):
        if stem.start() < position:
            continue
        reach = text[max(position, stem.start() - 64) : stem.start()]
        before = _NAME_LEFT.match(reach[::-1])
        start = stem.start() - (before.end() if before else 0)
        right = _NAME_RIGHT.match(text, stem.end())
        end = right.end() if right else stem.end()
        position = end
        if start >= 10 and text.startswith("[REDACTED:", start - 10):
            continue
        if start and text[start - 1] in _IN_ESCAPE:
            start = min(start + _escape_inside(text, start), stem.start())
        for span in _values(text, start, end):
            if identifiers or not span[1].is_identifier:
                yield span[0]
                position = max(position, span[0].end)


def _escape_inside(text: str, start: int) -> int:
    r"""Return how many characters at `start` end an escape before the name: `\nPASSWORD`."""
    for length in (1, 2, 3, 5, 6):
        if escape_length_before(text, start + length) > length:
            return length
    return 0


def _values(text: str, start: int, end: int) -> Iterator[tuple[Span, SensitiveField]]:
    """Yield the sensitive values of the name at `text[start:end]`, with what the name says."""
    after = text[end : end + 1]
    if not after or (after == "]" and text[max(0, start - 1) : start] == "["):
        return  # no value follows the end of the text, nor cache[token]
    name, field = _classify(text, start, end)
    if field is None:
        if text[start:end].lower() == "key" and is_credential_key(text, start):
            yield from _value_of_word_key(text, start, end)
        return
    assignment = _ASSIGN.match(text, end)
    if assignment is not None:
        yield from _values_after_sign(text, start, assignment, name, field)
        return
    span = notation_value(text, start, end, name)
    if span is None and after in _BEFORE_PROSE_VALUE:
        span = _value_in_prose(text, name, end, field)
    if span is not None and is_sensitive(text[slice(*span)], name, field):
        yield Span(*span, field.kind), field


def _classify(text: str, start: int, end: int) -> tuple[str, SensitiveField | None]:
    """Return the name at `text[start:end]`, with words before it if needed, and what it says."""
    name = text[start:end]
    field = classify_name(name)
    if field is None:
        return _with_words_before(text, start, end) if may_end_name(name) else (name, None)
    if name.lower() == "token" and is_model_token(text, start):
        return name, None
    return name, field


def _with_words_before(text: str, start: int, end: int) -> tuple[str, SensitiveField | None]:
    """Classify the name together with up to two words before it: "API Key", "card number"."""
    before = _WORDS_LEFT.match(text[max(0, start - 44) : start][::-1])
    if before is None:
        return "", None
    words = before.group()[::-1].replace(".", " ").split()
    name = " ".join([*words, text[start:end]])
    return name, classify_name(name)


def _value_of_word_key(text: str, start: int, end: int) -> Iterator[tuple[Span, SensitiveField]]:
    """Yield the value of the word "key" alone: only a random one is sensitive."""
    if text[max(0, start - 1) : start] in ("?", "&"):
        span = query_value(text, end)
        if span is not None:
            yield Span(*span, _WORD_KEY.kind), _WORD_KEY
    elif text[end] in _BEFORE_PROSE_VALUE:
        span = random_value_nearby(text, end, bare_name=True)
        if span is not None and is_sensitive(text[slice(*span)], "key", _WORD_KEY):
            yield Span(*span, _WORD_KEY.kind), _WORD_KEY


def _value_in_prose(
    text: str, name: str, end: int, field: SensitiveField
) -> tuple[int, int] | None:
    """Return start and end of the value of a name in a sentence, or None."""
    span = value_after_verb(text, end, field)
    if span is None and field.kind in _RANDOM_KINDS:
        span = random_value_nearby(text, end, bare_name=False)
    if span is None and field.kind == "password":
        span = value_after_copula(text, end)
    if span is None and field.kind in ("password", "secret"):
        span = value_after_colon(text, end)
    return value_after_space(text, name, end, field) if span is None else span


def _values_after_sign(
    text: str, start: int, assignment: re.Match[str], name: str, field: SensitiveField
) -> Iterator[tuple[Span, SensitiveField]]:
    """Yield the sensitive values after the sign: `=`, `:`, `=>` ..."""
    if field.kind in ("authorization", "cookie") and assignment["sign"] in (":", "=", "=>"):
        span = _header_value(text, start, assignment, field)
        if span is not None:
            if not is_placeholder(text[slice(*span)]):
                yield Span(*span, field.kind), field
            return
    at = assignment.end()
    has_clear_name = assignment["close"] or assignment["sign"] == "="
    line = _NEXT_LINE.match(text, at) if has_clear_name else None
    yield from _each_value(text, line.end() if line else at, start, assignment, name, field)


def _each_value(
    text: str,
    at: int,
    start: int,
    assignment: re.Match[str],
    name: str,
    field: SensitiveField,
) -> Iterator[tuple[Span, SensitiveField]]:
    """Yield the sensitive value at `at`, or those among the strings of a list or mapping there."""
    if _OPENS_LIST.match(text, at) or (
        not field.may_hold_fields and _OPENS_MAPPING.match(text, at)
    ):
        for inner in strings_inside(text, at):
            if is_sensitive(text[slice(*inner)], name, field):
                yield Span(*inner, field.kind), field
        return
    span = None if _closes_string(text, start, at, assignment) else quoted_value(text, at)
    block = _BLOCK.match(text, at) if span is None and field.is_strong else None
    if block is not None:
        span = _block_value(text, start, block)
    elif span is None:
        span = unquoted_value(text, at, start, assignment, name, field)
    if span is not None and is_sensitive(text[slice(*span)], name, field):
        yield Span(*span, field.kind), field


def _header_value(
    text: str, start: int, assignment: re.Match[str], field: SensitiveField
) -> tuple[int, int] | None:
    """Return start and end of an Authorization or Cookie header's value; it may contain spaces."""
    at = assignment.end()
    if opens_quote(text, at):
        return None
    if field.kind == "cookie":
        cookies = _COOKIES.match(text, at)
        return cookies.span() if cookies else None
    scheme = _SCHEME.match(text, at)
    if scheme is not None:
        return bare_word(text, scheme.end()) or (at, at)
    if _LONG_SCHEME.match(text, at) is not None:
        opening = _OPENED_BEFORE.match(text[max(0, start - 41) : start][::-1])
        if opening is not None:
            end = closing_quote(text, at, opening[1], len(opening[2]), 4096)
            if end is not None:
                return at, end
        return rest_of_line(text, at)
    return None


def _closes_string(text: str, start: int, at: int, assignment: re.Match[str]) -> bool:
    """Return whether the quote at `at` closes the string that contains the name: 'Password: '."""
    if assignment["close"] or text[at : at + 1] not in ("'", '"'):
        return False
    if not _AFTER_STRING.match(text, at + 1):
        return False
    line = text[max(0, start - 100) : start].rpartition("\n")[2]
    return line.count(text[at]) % 2 == 1


def _block_value(text: str, start: int, block: re.Match[str]) -> tuple[int, int] | None:
    """Return start and end of a value on the line after its name, as in YAML."""
    span = quoted_value(text, block.end()) or bare_word(text, block.end())
    if span is None or not starts_line(text, start, or_string=True):
        return None
    if text[span[1] : span[1] + 1] not in ("", "\n", "\r", "\\", '"', "'"):
        return None
    return (
        span
        if block["marker"] or block["item"] or looks_like_password(text[slice(*span)])
        else None
    )
