"""Secrets in sentences: "the password is ...", "your code is ...", a wallet's seed phrase."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.extents import bare_word, quoted_value
from kp_langchain.redaction.field_names import MODEL_TOKEN_WORDS, SensitiveField, word_set
from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.spans import Span, occurrences
from kp_langchain.redaction.values import (
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
)

FUNCTION_WORDS = word_set(
    "a an the this that these those to too not no is are was were be been being in on at of for "
    "from with by as it its your my our their his her must should can could may might will would "
    "has have had do does did required missing invalid incorrect wrong weak strong expired correct "
    "empty too only also used valid blank null none here there same different stored sent set "
    "shown hidden case never always one just now still already unknown unique if when what which "
    "we i you they he she us them about good bad safe secure public private available optional mandatory key all any see "
    "raise return pass break continue yield await assert print else lambda throw new del import "
    "requerido requerida obligatorio obligatoire requis vereist erforderlich vergessen ungültig "
    "and or but then so falsch oublié incorrecta incorrecto vacía olvidada dimenticata wymagane richiesta"
)
_VERB = re.compile(
    r"[\"'`]?(?:(?P<short>['\u2019]s)|[ \t]{1,4}"
    r"(?:(?:for|of|on|at|in)[ \t](?:the |my |our |your )?[\w.@\-/]{1,40}[ \t]{1,4})?"
    r"(?:is|was|are|equals|will be|(?:has|have) been (?:created|changed|set|reset|issued)(?: to)?"
    r"|(?P<moved>to)))(?:[ \t]{0,2}[:=](?!=))?[ \t]{1,4}"
    r"(?:now |still |set to |currently )?"
)
_ENDS_CLAUSE = re.compile(
    r"[.,;!?)]*(?:\s*$|\s*\n|[.,;!?)]\s| (?:and|for|but|on|in case|please)\b)"
)
_WORD_ONLY = re.compile(r"[^\W\d_]+(?:['\-][^\W\d_]+)?")

# A random value a few words after the name: "use this key for acme: ...".
_WORDS_BETWEEN = re.compile(
    r"(?P<words>(?:[ \t]{1,3}[A-Za-z][\w'\-]{0,20}){0,5})(?P<sign>[ \t]{0,2}[:=])?[ \t]{1,3}[\"'`*]{0,2}"
    r"(?=(?P<value>[A-Za-z0-9_\-+/=.~]{16,512}))"
)
_FILLERS = word_set(
    "is was be been has have will for to of with as the a an my our your their this that new old "
    "current value now here below follows follow use using used uses created generated issued "
    "rotated changed set expired named called from in at on by it and"
)
_HASH_LIKE = re.compile(r"[0-9a-f]+|[0-9A-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH_LIKE = re.compile(
    r"[a-z]{2,12}[_\-][A-Za-z0-9]+|[\w.\-]*(?:/[\w.\-]*)+|[a-z0-9]+(?:[.\-_][a-z0-9]+)+"
)
_ARTICLES = word_set("the my your our this that new correct following their its a secret")

# Terms that look like a value after a name and a space, as in "password step2".
_TECHNICAL_TERM = re.compile(
    r"(?:sha|md|utf|oauth|base|rsa|dsa|ed|aes|des|v|p|http|tls|ssl|ipv|crc|hs|rs|es|step|line|page|"
    r"field|version|rule|test|case|item|level|phase|part|section|chapter|figure|table|node|worker|"
    r"host|user|app|db|web|py|python|gpt|x|q|day|week|key|token|cookie|col|row|arg|param|blake|ver)"
    r"[\-_.]?\d[\d.]*[a-z]?",
    re.IGNORECASE,
)
_WORDS_AND_COLON = re.compile(r"(?:[ \t][\w'\u2019\"`/.\-]{1,40}){1,4}[ \t]?[:\uff1a][ \t]{1,4}")
_DIGITS_FOLLOW = re.compile(
    r"[ \t]{1,3}#?(?P<digits>\d{3,8})(?![\w\-]|[.,]\d|[ \t]?(?:digit|char|tim|atte|sec|min|%))"
)
_SPACE = re.compile(r"[ \t]{1,4}(?:is[ \t]|\()?(?![ \t])")

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
    r"(?:2fa|mfa|sms|one-time|access|security|verification|login) )\Z"
)
_CODE_AFTER = re.compile(rf"(?:code|otp|pin|passcode)(?: is)?(?: now)?:? {_CODE_NUMBER}")

_SENTENCE_WORDS = frozenset(
    ("the", "and", "for", "are", "was", "has", "not", "but", "which", "when")
)
_SEED_NAMES = ("seed", "mnemonic", "recovery", "backup", "wallet")
_SEED_WORDS = re.compile(
    r"[^\n]{0,60}?[:=\"'`]\s{0,4}[\"'`]?(?P<words>[a-z]{3,8}(?: [a-z]{3,8}){11,23})\b"
)
_SEED_AFTER_VERB = re.compile(
    r"[^\n]{0,40}? (?:is|are):? [\"'`]?(?P<words>[a-z]{3,8}(?: [a-z]{3,8}){11,23})\b"
)


def value_after_verb(text: str, end: int, field: SensitiveField) -> tuple[int, int] | None:
    """Return start and end of the value in "the password is ...", or None if no value follows.

    Args:
        text: The whole text.
        end: Where the sensitive name ends.
        field: What the name says about its value.
    """
    match = _VERB.match(text, end)
    if match is None:
        return None
    content = quoted_value(text, match.end())
    if content is not None:
        return content if not match["moved"] or looks_like_password(text[slice(*content)]) else None
    span = bare_word(text, match.end())
    if span is None:
        return None
    value = text[slice(*span)]
    if "://" in value:
        return None
    if match["moved"] or match["short"]:
        return span if looks_like_password(value) and not _TECHNICAL_TERM.fullmatch(value) else None
    if any(character.isdigit() for character in value) or looks_generated(value):
        return span
    if value.lower() in FUNCTION_WORDS or field.kind not in ("password", "credential"):
        return span if "-" in value.strip("-") and value.count("-") > 1 else None
    if _WORD_ONLY.fullmatch(value) is None:
        return span
    if value.lower().endswith(("ed", "ing", "ly", "able", "ible", "ful")):
        return None
    return span if _ENDS_CLAUSE.match(text, span[1]) else None


def value_after_space(
    text: str, name: str, end: int, field: SensitiveField
) -> tuple[int, int] | None:
    """Return start and end of the value after a name and a space: "PASSWORD x1y2z3"."""
    if field.kind in ("cvv", "otp", "pin") or name.lower() == "passcode":
        digits = _DIGITS_FOLLOW.match(text, end)
        if digits is None or (field.kind != "cvv" and len(digits["digits"]) < 4):
            return None
        return digits.span("digits")
    space = _SPACE.match(text, end)
    if space is None:
        return None
    content = quoted_value(text, space.end())
    if content is not None:
        return (
            content if field.kind == "password" and field.is_strong and text[end] == " " else None
        )
    if (field.kind != "password" or not field.is_strong) and not name.isupper():
        return None
    span = bare_word(text, space.end())
    if span is None:
        return None
    value = text[slice(*span)]
    if not looks_like_bare_password(value) or "://" in value or _TECHNICAL_TERM.fullmatch(value):
        return None
    return span


def random_value_nearby(text: str, end: int, *, bare_name: bool) -> tuple[int, int] | None:
    """Return start and end of a random value a few words after the name of a key or token.

    Args:
        text: The whole text.
        end: Where the name ends.
        bare_name: Whether the name is just "key"; then fewer values match.
    """
    match = _WORDS_BETWEEN.match(text, end)
    if match is None:
        return None
    words = match["words"].lower().split()
    if sum(word not in _FILLERS for word in words) > 1:
        return None
    value = match["value"].rstrip(".=" if match["value"].endswith(".") else ".")
    if not looks_generated(value) or (
        _PATH_LIKE.fullmatch(value) and not _HASH_LIKE.fullmatch(value)
    ):
        return None
    if _HASH_LIKE.fullmatch(value):
        is_assignment = match["sign"] is not None or "is" in words or not words
        if not is_assignment or (
            bare_name and not ("for" in words or ("is" in words and "-" not in value))
        ):
            return None
    return match.start("value"), match.start("value") + len(value)


def value_after_colon(text: str, end: int) -> tuple[int, int] | None:
    """Return start and end of the value after words and a colon: "passphrase for key /x/id: ..."."""
    match = _WORDS_AND_COLON.match(text, end)
    span = (quoted_value(text, match.end()) or bare_word(text, match.end())) if match else None
    if span is None:
        return None
    value = text[slice(*span)]
    is_random = looks_like_password(value) and any(map(str.isdigit, value)) and "://" not in value
    return span if is_random and not _TECHNICAL_TERM.fullmatch(value) else None


def is_credential_key(text: str, start: int) -> bool:
    """Return whether the word "key" at `start` means a credential, by the word before it."""
    before = text[max(0, start - 24) : start].split()
    if start and text[start - 1].isalnum():
        return False
    last = before[-1].lower().strip("\"'`(*") if before else ""
    return not last or last in _ARTICLES or last[-1] in ":;,.?&"


def is_model_token(text: str, start: int) -> bool:
    """Return whether the "token" at `start` is one of a language model: "next token: ..."."""
    before = text[max(0, start - 24) : start].split()
    last = before[-1].lower().strip("\\\"'`(*:") if before else ""
    return text[start - 1 : start] == " " and last in MODEL_TOKEN_WORDS


def query_value(text: str, end: int) -> tuple[int, int] | None:
    """Return start and end of the value of `?key=...` in a URL if it can only be a credential."""
    span = bare_word(text, end + 1) if text[end : end + 1] == "=" else None
    if span is None:
        return None
    value = text[slice(*span)]
    is_other_kind = _HASH_LIKE.fullmatch(value) or _PATH_LIKE.fullmatch(value) or len(value) < 20
    return span if looks_generated(value) and not is_other_kind else None


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
    """Yield the 12 to 24 words of a wallet's seed phrase after a word such as "seed"."""
    for at in occurrences(low, _SEED_NAMES):
        match = _SEED_WORDS.match(text, at) or _SEED_AFTER_VERB.match(text, at)
        if match is not None:
            words = match["words"].split()
            if len(words) % 3 == 0 and not _SENTENCE_WORDS & set(words):
                yield Span(*match.span("words"), "private_key")


FINDERS = (
    Finder(_find_codes, (ANY_DIGIT,), _CODE_WORDS),
    Finder(_find_seeds, words=_SEED_NAMES),
)
