"""Secrets of several words or numbers: one-time codes, recovery codes, seed phrases, setup keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.spans import Span, occurrences

_CODE_WORDS = ("code", "passw", "passcode", "otp", "pin")
_CODE_NUMBER = r"(?P<code>\d{3}[ \-]\d{3}|[A-Z]{1,3}-\d{4,8}|\d{4,8})(?![\w\-]|[.,]\d)"
# "123456 is your verification code", "use 123456 as your one-time password"
_CODE_BEFORE = re.compile(
    rf"(?<![\w\-.,#/:]){_CODE_NUMBER}(?= (?:is|as) (?:your|the|a|my)\b"
    r"[^\n]{0,30}(?:verification|security|log-?in|sign-?in|confirmation|authentication|access|"
    r"one-time|2fa|mfa|otp|sms|reset|activation|pass)?[ \-]?\Z)"
)
# "your Acme code is 123456", "enter the code 123456"
_CODE_LEFT = re.compile(
    r"(?:your (?:\w{1,20} ){0,2}|(?:enter|use|type|with|using) (?:the |this |your )?|"
    r"(?:2fa|mfa|sms|one-time|access|security|verification|login|recovery) |(?:text|sms|email), the )\Z"
)
_CODE_AFTER = re.compile(rf"(?:code|otp|pin|passcode)(?: is)?(?: now)?:? {_CODE_NUMBER}")

# A wallet's phrase of 12 to 24 words, which may be numbered.
_SEED_NAMES = ("seed", "mnemonic", "recovery", "backup", "wallet", "12 words", "24 words")
_NUMBER = r"(?:\d{1,2}[.):]?[ \t]{1,2})?"
_SEED_WORDS = re.compile(
    rf"""
    [^\n]{{0,80}}?(?:[:="'`]|[ ](?:is|are))(?:\s|\\n){{0,4}}["'`]?
    (?P<words>{_NUMBER}[a-z]{{3,8}}(?:(?:,[ ]?|[ ]|\\n|\s{{1,3}}){_NUMBER}[a-z]{{3,8}}){{11,23}})\b
    """,
    re.VERBOSE,
)
_SEED_BELOW = re.compile(
    rf"[^\n]{{0,80}}\n\s{{0,3}}(?P<words>{_NUMBER}[a-z]{{3,8}}"
    rf"(?:(?:[ ,]|\n){{1,2}}{_NUMBER}[a-z]{{3,8}}){{11,23}})(?=\s*(?:\n|$))"
)
_LETTERS = re.compile("[a-z]+")
_SENTENCE_WORDS = frozenset(("the", "and", "for", "are", "was", "has", "not", "but", "which"))
_SEED_LENGTHS = (12, 15, 18, 21, 24)

# A list of at least two codes after "recovery codes", each on its own line or after a comma.
_LIST_NAMES = ("recovery code", "backup code", "scratch code", "emergency code", "recovery key")
_CODE_ITEM = (
    r"(?=[a-z\-]{0,11}\d|[a-z]{4,6}-[a-z]{4,6}\b)[a-z0-9]{4,12}(?:[ \-][a-z0-9]{4,12}){0,8}"
)
_BEFORE_ITEM = r"(?:[\s,;|\"'\[\]\u2022*\-]|\d{1,2}[.)][ ]){1,6}"
_LIST_STARTS = re.compile(r"\w{6,9} \w{3,5}\b[^\n:]{0,60}(?::|\n)")
_NEXT_ITEM = re.compile(rf"{_BEFORE_ITEM}(?P<code>{_CODE_ITEM})(?![\w])")
_MAX_ITEMS = 40

# The setup key of an authenticator: base32, in groups of four or after a word such as "totp".
_SETUP_NAMES = ("secret", "totp", "2fa", "mfa", "authenticator", "setup key", "seed")
_SETUP_KEY = re.compile(
    r"[^\n]{0,60}?(?::|\bis|\()?\s{1,4}[\"'`]?(?P<key>(?P<first>[A-Z2-7]{4}|[a-z2-7]{4})(?:[ -]"
    r"(?:[A-Z2-7]{4}|[a-z2-7]{4})){3,15})(?![\w])"
)
_SETUP_WORD = re.compile(
    r"totp[^\n]{0,12}?[ (\"'](?P<key>[A-Z2-7]{16,64}|[a-z2-7]{16,64})(?!\w)", re.IGNORECASE
)


def _find_codes(text: str, low: str) -> Iterator[Span]:
    """Yield one-time codes: "123456 is your verification code", "enter the code 123456"."""
    for at in occurrences(low, _CODE_WORDS):
        if at >= 9 and low[at - 1] in " -":
            first = max(0, at - 64)
            code = _CODE_BEFORE.search(text[first:at])
            if code is not None:
                yield Span(first + code.start("code"), first + code.end("code"), "otp")
        after = _CODE_AFTER.match(text, at) or _CODE_AFTER.match(low, at)
        if after is not None and _CODE_LEFT.search(low[max(0, at - 44) : at]):
            yield Span(*after.span("code"), "otp")


def _find_seeds(text: str, low: str) -> Iterator[Span]:
    """Yield the words of a wallet's seed phrase after a word such as "seed"."""
    for at in occurrences(low, _SEED_NAMES):
        match = _SEED_WORDS.match(text, at) or _SEED_BELOW.match(text, at)
        if match is not None:
            words = _LETTERS.findall(match["words"])
            if len(words) in _SEED_LENGTHS and not _SENTENCE_WORDS & set(words):
                yield Span(*match.span("words"), "private_key")


def _find_lists(_text: str, low: str) -> Iterator[Span]:
    """Yield the recovery codes of a list."""
    for at in occurrences(low, _LIST_NAMES):
        start = _LIST_STARTS.match(low, at)
        if start is None:
            continue
        codes: list[Span] = []
        position = start.end() - 1
        while len(codes) < _MAX_ITEMS and (item := _NEXT_ITEM.match(low, position)):
            codes.append(Span(*item.span("code"), "otp"))
            position = item.end()
        if len(codes) > 1 or (codes and low[codes[0].start : position].count("-") > 2):
            yield from codes


def _find_setup_keys(text: str, low: str) -> Iterator[Span]:
    """Yield the setup keys of authenticators."""
    for at in occurrences(low, _SETUP_NAMES):
        match = _SETUP_KEY.match(text, at) or _SETUP_WORD.match(text, at)
        if match is not None and sum(map(str.isdigit, match["key"])) > 0:
            yield Span(*match.span("key"), "otp")


FINDERS = (
    Finder(_find_codes, (ANY_DIGIT,), _CODE_WORDS),
    Finder(_find_seeds, words=_SEED_NAMES),
    Finder(_find_lists, (ANY_DIGIT,), _LIST_NAMES),
    Finder(_find_setup_keys, (ANY_DIGIT,), _SETUP_NAMES),
)
"""Find secrets of several words or numbers."""
