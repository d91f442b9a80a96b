"""Secrets that are given when asked for: "What is your password?" - "sunflower".

The question names what the answer is, so the answer itself need not look like a secret. It must look
like an answer, though: not like agreement, a refusal, a question, or a text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kp_langchain.redaction.field_names import (
    SensitiveField,
    classify_secret,
    without_accents,
    word_set,
)
from kp_langchain.redaction.named_values import names_in
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import (
    CODE_KINDS,
    SENTENCE_WORDS,
    is_placeholder,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
)

TABLE = {name: word_set(words.lower()) for name, words in load_table("questions").items()}
ASKED_CHARS = 600
"""How much of the end of a text is read as a question."""
ANSWER_CHARS = 400
"""A longer text is no answer that gives a secret."""

_MOST_WORDS = 16
_PHRASE_WORDS = range(3, 34)
_QUESTION_MARK = re.compile(r"[?？؟;](?:\W|\Z)")
_SENTENCE_END = re.compile(r"[.!?。！？؟](?=\s|\Z|[^\x00-\x7f])|\n")
_WORD = re.compile(r"[^\W\d_][\w'’\-]*|\d+")
_NEXT_WORD = re.compile(r"[\s\-]{1,3}(?P<word>[A-Za-z]{2,16})")
_QUOTES = "\"'`“”„‘’«»()[]<>*"
_CODE = re.compile(r"(?<![\w.,:/\-])#?(?:[A-Za-z]{1,3}-)?\d{3,12}(?![\w:/]|[.,\-]\d)")
_CODE_IN_GROUPS = re.compile(r"(?<![\w.,\-])\d{2,4}(?:[ \-]\d{2,4}){1,3}(?![\w]|[.,\-]\d)")
_NUMBERED = re.compile(r"(?:^|(?<=\s))\(?\d{1,2}[.):]\s*|[,;]")
_PHRASE_NAME = re.compile(
    r"phrase|passphrase|seed|mnemonic|words|frase|wörter|palabras|слов|助记词|词"
)
_PASSWORDS = frozenset(("password", "credential", "secret"))
_USER_AND_VALUE = re.compile(r"[\w.+@\-]{1,64}\s?[:/|]\s?(\S{4,})")
_BASIC_LETTERS = re.compile(r"(?!\d+\Z)[A-Za-z0-9\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff\-]{3,40}")
_LINK = re.compile(r"://|@[\w\-]+\.\w|^www\.|^[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)")


class Secret(NamedTuple):
    """A secret in an answer.

    Attributes:
        kind: What it is, as the placeholder names it.
        text: The secret.
    """

    kind: str
    text: str


class _Request(NamedTuple):
    """What a question asks for.

    Attributes:
        field: The kind of secret.
        is_phrase: Whether it is one of several words.
        is_explicit: Whether it certainly asks, so that an ordinary word may be the answer.
        is_bare: Whether it only says "code" or "key".
    """

    field: SensitiveField
    is_phrase: bool
    is_explicit: bool
    is_bare: bool


def secrets_given(question: str, answer: str) -> list[Secret]:
    """Return the secrets that a human's answer to an assistant's question gives.

    Args:
        question: The assistant's text; its end counts.
        answer: What the human wrote next.
    """
    answer = answer.strip()
    if not answer or len(answer) > ANSWER_CHARS:
        return []
    request = _request_in(question[-ASKED_CHARS:])
    return [] if request is None else _read_answer(answer, request)


def _request_in(text: str) -> _Request | None:
    """Return what a text asks for in the end; None if that is no secret."""
    low = text.lower()
    if len(low) != len(text):
        return None
    best: _Request | None = None
    plain = without_accents(low)
    places: list[tuple[int, int, SensitiveField | None]] = list(names_in(text, low))
    places += [
        (match.start(), match.end(), None)
        for match in _WORD.finditer(low)
        if match[0] in TABLE["codes"] or match[0] == "key"
    ]
    for start, end, field in sorted(places, key=lambda place: place[1]):
        following = _NEXT_WORD.match(plain, end)
        if following is not None and following["word"] in TABLE["other_nouns"]:
            continue
        sentence_start = max(
            (match.end() for match in _SENTENCE_END.finditer(low, 0, start)), default=0
        )
        next_end = _SENTENCE_END.search(low, end)
        sentence_end = next_end.end() if next_end else len(low)
        sentence = low[sentence_start:sentence_end]
        words = _WORD.findall(sentence)
        is_bare = field is None
        if is_bare and not TABLE["no_codes"].isdisjoint(words):
            continue
        rest = low[sentence_end:].strip()
        asks = _asks(sentence, words, is_last=not rest)
        if not asks and rest:
            next_words = _WORD.findall(rest)
            refers = not TABLE["pronouns"].isdisjoint(next_words)
            asks = refers and _asks(rest, next_words, is_last=True)
        best = _Request(
            field or SensitiveField("api_key" if low[start:end] == "key" else "otp"),
            _PHRASE_NAME.search(low, max(0, start - 24), end + 12) is not None,
            asks,
            is_bare,
        )
    return best


def _asks(sentence: str, words: list[str], *, is_last: bool) -> bool:
    is_request = not TABLE["requests"].isdisjoint(words) or any(
        not word.isascii() and word in sentence for word in TABLE["requests"] if len(word) < 4
    )
    if _QUESTION_MARK.search(sentence):
        return is_request or not words or words[0] not in TABLE["yes_or_no"]
    return is_request or (is_last and sentence.rstrip()[-1:] in (":", "："))


def _read_answer(answer: str, request: _Request) -> list[Secret]:
    kind = request.field.kind
    words = answer.split()
    phrase = _phrase(answer, request)
    if phrase:
        return [Secret(kind, phrase)]
    if len(words) > _MOST_WORDS:
        return []
    tokens = [_bare(word) for word in words]
    sure = [token for token in tokens if _is_sure(token, request)]
    if sure and not (request.is_bare and not request.is_explicit):
        return [Secret(kind, text) for token in sure for text in _with_parts(token)]
    if answer.endswith(("?", "？", "؟")) or not request.is_explicit:
        return []
    low_words = [word.lower() for word in _WORD.findall(answer)]
    if not TABLE["negations"].isdisjoint(low_words):
        return []
    code = _code(answer, kind)
    if code:
        digits = re.sub(r"[ \-]", "", code)
        return [Secret(kind, text) for text in dict.fromkeys((code, digits))]
    if kind not in _PASSWORDS or request.is_bare:
        return []
    word = _last_word(words)
    return [Secret(kind, word)] if word else []


def _bare(word: str) -> str:
    """Return a word without quotes around it and punctuation after it."""
    bare = word.strip(_QUOTES)
    while bare and bare[-1] in ".,;" and len(bare) > 1:
        bare = bare[:-1].rstrip(_QUOTES)
    return bare


def _is_sure(token: str, request: _Request) -> bool:
    """Return whether a word is a secret by its looks, as no ordinary word is one."""
    if _LINK.search(token) or is_placeholder(token):
        return False
    field = request.field
    if is_unmistakable(token, field) or looks_generated(token):
        return True
    if looks_like_bare_password(token):
        return field.kind in _PASSWORDS or len(token) >= 8 or field.kind in CODE_KINDS
    has_sign = looks_like_password(token) and token[-1] not in "!?" and token[0] not in "#@$"
    return field.kind in _PASSWORDS and has_sign and len(token) >= 6 and not token.isdigit()


def _with_parts(token: str) -> list[str]:
    """Return a secret, and its part behind a user's name: "bob:...", "bob/..."."""
    match = _USER_AND_VALUE.fullmatch(token)
    return [token] if match is None else [token, match[1]]


def _code(answer: str, kind: str) -> str:
    """Return the one number in an answer, which may be in groups of digits; "" if there is none."""
    if kind not in CODE_KINDS and kind not in _PASSWORDS and kind != "token":
        return ""
    codes = _CODE_IN_GROUPS.findall(answer) or _CODE.findall(answer)
    shortest = 3 if kind == "cvv" else 4
    is_short = len(answer.split()) <= 6 + len(codes[0].split()) if codes else False
    digits = sum(map(str.isdigit, codes[0])) if codes else 0
    return codes[0].lstrip("#") if len(codes) == 1 and is_short and digits >= shortest else ""


def _phrase(answer: str, request: _Request) -> str:
    """Return the words of a phrase; "" if the answer is none."""
    content = answer.rpartition(":")[2] if answer.count(":") == 1 else answer
    content = content.strip().strip(_QUOTES).rstrip(".")
    words = _NUMBERED.sub(" ", content).split()
    if len(words) not in _PHRASE_WORDS or not all(
        word.replace("-", "").isalpha() for word in words
    ):
        return ""
    low_words = [word.lower() for word in words]
    if not TABLE["negations"].isdisjoint(low_words):
        return ""
    common = sum(word in SENTENCE_WORDS or word in TABLE["no_answers"] for word in low_words)
    is_password = request.is_explicit and request.field.kind in _PASSWORDS and content.islower()
    return content if (request.is_phrase or is_password) and common * 4 <= len(words) else ""


def _last_word(words: list[str]) -> str:
    """Return the word that an answer gives: alone, or after "it is", "sure," and the like."""
    word = _bare(words[-1]).rstrip("!")
    low = word.lower()
    is_answer = (
        _BASIC_LETTERS.fullmatch(word) is not None
        and low not in TABLE["no_answers"]
        and low not in SENTENCE_WORDS
        and not is_placeholder(word)
        and classify_secret(word) is None
    )
    if not is_answer or len(words) > _MOST_WORDS // 2:
        return ""
    if len(words) == 1:
        return word
    before = words[-2]
    bare = before.strip(",.!:").lower()
    is_lead_in = before[-1] in ":=/" or bare in TABLE["lead_ins"]
    is_agreement = before[-1] in ",.!" and bare in TABLE["no_answers"]
    return word if is_lead_in or is_agreement else ""
