"""Secrets that are given when asked for: "What is your password?" - "sunflower".

The question names what the answer is, so the answer itself need not look like a secret. It must look
like an answer, though: not like agreement, a refusal, a question, or a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kp_langchain.redaction.fields import (
    CODE_KINDS,
    SENTENCE_WORDS,
    SensitiveField,
    classify_secret,
    is_placeholder,
    is_unmistakable,
    looks_generated,
    looks_like_bare_password,
    looks_like_password,
    without_accents,
)
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.named_values import names_in
from kp_langchain.redaction.spans import Span, lazy_pattern, load_table, word_set
from kp_langchain.redaction.structures import has_type
from kp_langchain.values import ANSWER_CHARS, ASKED_CHARS

# ------------------------------------------------------------------ questions and answers

TABLE = {name: word_set(words.lower()) for name, words in load_table("questions").items()}

_MOST_WORDS = 16
_BEFORE_CODES = TABLE["before_codes"] | TABLE["requests"]
_AFTER_NAMES = frozenset(map(without_accents, TABLE["after_names"]))
_PHRASE_WORDS = range(3, 34)
_QUESTION_MARK = lazy_pattern(r"[?？؟;](?:\W|\Z)")
_SENTENCE_END = lazy_pattern(r"[.!?。！？؟](?=\s|\Z|[^\x00-\x7f])|\n(?!\s*(?:[\-*•]|\d[.)])\s)")
_CLAUSE_END = lazy_pattern(r"[,;:–—]")
_WORD = lazy_pattern(r"[^\W\d_][\w'’\-]*|\d+")
_NEXT_WORD = lazy_pattern(r"[\s\-]{1,3}(?P<word>[A-Za-z]{2,16})")
_IS = lazy_pattern(r"['’](?:s|re)\b")
_PUNCTUATION = "\"'`“”„‘’«»()[]<>*.,;"
_CODE = lazy_pattern(r"(?<![\w.,:/\-])#?(?:[A-Za-z]{1,3}-)?\d{3,12}(?![\w:/]|[.,\-]\d)")
_CODE_IN_GROUPS = lazy_pattern(r"(?<![\w.,\-])\d{2,4}(?:[ \-]\d{2,4}){1,3}(?![\w]|[.,\-]\d)")
_NUMBERED = lazy_pattern(r"(?:^|(?<=\s))\(?\d{1,2}[.):]\s*|[,;]")
_PHRASE_NAME = lazy_pattern(
    r"phrase|passphrase|seed|mnemonic|words|frase|wörter|palabras|слов|助记词|词"
)
_PASSWORDS = frozenset(("password", "credential", "secret"))
_USER_AND_VALUE = lazy_pattern(r"[\w.+@\-]{1,64}\s?[:/|]\s?(\S{4,})")
_BASIC_LETTERS = lazy_pattern(
    r"(?!\d+\Z)[A-Za-z0-9\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff\-]{3,40}"
)
_LINK = lazy_pattern(
    r"://|@[\w\-]+\.\w|^www\.|^[a-z0-9\-]+(?:\.[a-z0-9\-]+)*\.[a-z]{2,6}(?:[/:]|\Z)"
)


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
        is_bare: Whether it only says "code" or "key".
        is_pair: Whether it asks for something else before it: "login and password".
    """

    field: SensitiveField
    is_phrase: bool
    is_bare: bool
    is_pair: bool = False


def secrets_given(question: str, answer: str) -> list[Secret]:
    """Return the secrets that a human's answer to an assistant's question gives.

    Args:
        question: The assistant's text; its end counts.
        answer: What the human wrote next.
    """
    answer = answer.strip().replace("：", ": ")
    if not answer or len(answer) > ANSWER_CHARS:
        return []
    request = _request_in(question[-ASKED_CHARS:])
    if request is None:
        return []
    return [Secret(request.field.kind, text) for text in _read_answer(answer, request)]


def _request_in(text: str) -> _Request | None:
    """Return the secret that the last question or request of a text asks for, if it is one."""
    low = text.lower()
    names = _names(text, low) if len(low) == len(text) else []
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(low)), len(low)]
    sentences = [
        (start, end) for start, end in pairwise(ends) if names and _WORD.search(low, start, end)
    ]
    for start, end in reversed(sentences):
        is_last = end == sentences[-1][1]
        for first, request in reversed(names):
            left, right = low[start:first], low[first:end]
            if start <= first < end and _asks(
                left, right, is_bare=request.is_bare, is_last=is_last
            ):
                words = [word for word in _words(left) if word not in TABLE["determiners"]]
                return request._replace(is_pair=words[1:] != [] and words[-1] in TABLE["joints"])
        before = [request for first, request in names if first < start]
        if before and _asks_for_it(_words(low[start:end])):
            return before[-1]
        if _QUESTION_MARK.search(low, start, end):
            return None
    return None


def _names(text: str, low: str) -> list[tuple[int, _Request]]:
    """Return the start of each name of a secret in a text, with what a request for it is."""
    plain = without_accents(low)
    places: dict[int, tuple[int, SensitiveField | None]] = {
        match.end(): (match.start(), None)
        for match in _WORD.finditer(low)
        if match[0] in TABLE["codes"] or match[0] == "key"
    }
    places |= {end: (start, field) for start, end, field in names_in(text, low)}
    names = []
    for end, (start, field) in sorted(places.items()):
        following = _NEXT_WORD.match(plain, end)
        if following is not None and following["word"] not in _AFTER_NAMES:
            continue
        is_phrase = _PHRASE_NAME.search(low, max(0, start - 24), end + 12) is not None
        is_key = low[start:end] == "key"
        is_bare = field is None or (is_key and not field.is_strong)
        name = field or SensitiveField("api_key" if is_key else "otp")
        names.append((start, _Request(name, is_phrase, is_bare)))
    return names


def _asks(left: str, right: str, *, is_bare: bool, is_last: bool) -> bool:
    """Return whether a sentence asks for what a name in it names.

    Args:
        left: The sentence up to the name.
        right: The name and the rest.
        is_bare: Whether the name is only "code" or "key".
        is_last: Whether no sentence follows.
    """
    sentence, before = left + right, _words(left)
    words = [*before, *_words(right)]
    is_other_code = bool(before) and before[-1] not in _BEFORE_CODES
    if is_bare and (is_other_code or not TABLE["no_codes"].isdisjoint(words)):
        return False
    if any(word in sentence for word in TABLE["about"] if not word.isascii()):
        return False
    is_question = _QUESTION_MARK.search(sentence) is not None
    is_label = is_last and sentence.rstrip().endswith((":", "："))
    if not (is_question or is_label or _has_request(sentence, words)):
        return False
    if words[0] in TABLE["yes_or_no"] and words[1:2] not in (["you"], ["i"]):
        return not TABLE["requests"].isdisjoint(before)
    clause = _words(_CLAUSE_END.split(left)[-1])
    requests = [at for at, word in enumerate(clause) if word in TABLE["requests"]]
    return _is_one_noun(clause[requests[-1] + 1 :] if requests else clause)


def _words(text: str) -> list[str]:
    return _WORD.findall(_IS.sub(" is", text))


def _has_request(sentence: str, words: list[str]) -> bool:
    return not TABLE["requests"].isdisjoint(words) or any(
        not word.isascii() and word in sentence for word in TABLE["requests"] if len(word) < 4
    )


def _is_one_noun(words: list[str]) -> bool:
    """Return whether words before a name belong to it: "is the new wifi", not "table has the"."""
    has_name_begun = False
    for word in words:
        if word in TABLE["about"] or (has_name_begun and word in TABLE["determiners"]):
            return False
        if word in TABLE["joints"]:
            has_name_begun = False
        elif not any(word in TABLE[group] for group in ("determiners", "fillers", "lead_ins")):
            has_name_begun = True
    return True


def _asks_for_it(words: list[str]) -> bool:
    """Return whether a sentence asks for what the one before it names: "Please enter it"."""
    if words[0] in ("what", "which") and words[-1] in TABLE["requests"]:
        return True  # "What should I enter?"
    return any(
        word in TABLE["pronouns"] and not TABLE["requests"].isdisjoint(words[:at])
        for at, word in enumerate(words)
    )


def _read_answer(answer: str, request: _Request) -> list[str]:
    """Return the secrets in an answer, the surest only."""
    words = answer.split()
    phrase = _phrase(answer, request)
    if phrase:
        return [phrase]
    if len(words) > _MOST_WORDS:
        return []
    tokens = [word.strip(_PUNCTUATION) for word in words]
    sure = [token for token in tokens if token and _is_sure(token, request)]
    if sure:
        parts = (_USER_AND_VALUE.fullmatch(token) for token in sure)  # "bob:...", "bob/..."
        return [*sure, *(part[1] for part in parts if part)]
    if not TABLE["negations"].isdisjoint(map(str.lower, _WORD.findall(answer))):
        return []
    kind = request.field.kind
    if code := _code(answer, request):
        return list(dict.fromkeys((code, re.sub(r"[ \-]", "", code))))
    word = "" if request.is_bare else _last_word(words, is_pair=request.is_pair)
    return [word] if word and kind in _PASSWORDS else []


def _is_sure(token: str, request: _Request) -> bool:
    """Return whether a word is a secret by its looks, as no ordinary word is one."""
    field = request.field
    if field.kind in ("pin", "cvv") or _LINK.search(token) or is_placeholder(token):
        return False
    if is_unmistakable(token, field) or looks_generated(token):
        return True
    if looks_like_bare_password(token):
        is_short_key = field.kind not in _PASSWORDS | CODE_KINDS and len(token) < 8
        return not (is_short_key or (request.is_bare and field.kind not in CODE_KINDS))
    has_sign = looks_like_password(token) and token[-1] not in "!?" and token[0] not in "#@$"
    return field.kind in _PASSWORDS and has_sign and len(token) >= 6 and not token.isdigit()


def _code(answer: str, request: _Request) -> str:
    """Return the one number in an answer, which may be in groups of digits; "" if there is none."""
    kind = request.field.kind
    if kind not in CODE_KINDS | _PASSWORDS | {"token"}:
        return ""
    codes = _CODE_IN_GROUPS.findall(answer) or _CODE.findall(answer)
    shortest = 3 if kind == "cvv" or request.is_bare else 4
    is_code = len(codes) == 1 and sum(map(str.isdigit, codes[0])) >= shortest
    return codes[0].lstrip("#") if is_code else ""


def _phrase(answer: str, request: _Request) -> str:
    """Return the words of a phrase; "" if the answer is none."""
    content = answer.rpartition(":")[2] if answer.count(":") == 1 else answer
    content = content.strip().strip(_PUNCTUATION)
    words = _NUMBERED.sub(" ", content).lower().split()
    is_text = all(
        word.replace("-", "").isalpha() or (request.is_phrase and word.isdigit()) for word in words
    )
    if len(words) not in _PHRASE_WORDS or not is_text or TABLE["negations"].intersection(words):
        return ""
    common = sum(word in SENTENCE_WORDS or word in TABLE["no_answers"] for word in words)
    is_password = request.field.kind in _PASSWORDS and content.islower()
    return content if (request.is_phrase or is_password) and common * 4 <= len(words) else ""


def _last_word(words: list[str], *, is_pair: bool) -> str:
    """Return the word that an answer gives: alone, or after "it is", "sure," and the like."""
    plain = [word.strip(_PUNCTUATION).rstrip("!") for word in words]
    while len(plain) > 1 and plain[-1].lower() in TABLE["no_answers"]:
        plain.pop()  # "..., thanks"
    word = plain[-1]
    is_answer = (
        _BASIC_LETTERS.fullmatch(word) is not None
        and word.lower() not in TABLE["no_answers"] | SENTENCE_WORDS
        and not is_placeholder(word)
        and classify_secret(word) is None
    )
    if not is_answer or len(plain) > _MOST_WORDS // 2:
        return ""
    if len(plain) == 1 or (is_pair and len(plain) == 2):
        return word
    before = words[len(plain) - 2]
    bare = before.strip(",.!:").lower()
    is_lead_in = before[-1] in ":=/" or bare in TABLE["lead_ins"]
    is_agreement = before[-1] in ",.!" and bare in TABLE["no_answers"]
    return word if is_lead_in or is_agreement else ""


# ------------------------------------------------------------------ logs of chats

_AUTHOR_KEYS = ("role", "type", "from", "sender", "author", "user", "speaker")
_TEXT_KEYS = ("content", "text", "value", "message", "body")
_LINE = lazy_pattern(
    r"^[ \t]{0,8}(?:\[[^\]\n]{1,24}\][ \t]{0,4}|\d\d?:\d\d(?::\d\d)?[ \t]{1,4})?"
    r"(?P<speaker>[*<]{0,2}[^\W\d_][\w .'\-]{0,24}[*>]{0,2})[ \u00a0]?[:>：][ \t*]{0,4}(?P<text>\S[^\n]*)$",
    re.MULTILINE,
)
_QUESTION_MARKS = frozenset("?？؟;")
_SIGNS = " *<>"
_ROLES = word_set(
    "user human customer client caller me assistant agent bot ai system support operator q a"
)
_NO_SPEAKERS = frozenset(("system", "developer", "tool", "function"))


def answers_in(items: Sequence[Any]) -> Iterator[tuple[int, str, list[Secret]]]:
    """Yield each message that gives secrets when asked: its place, the key of its text, the secrets.

    Args:
        items: The items of a list, which may be messages or anything else.
    """
    asker, question = "", ""
    for place, item in enumerate(items):
        author, text = (_first(item, keys) for keys in (_AUTHOR_KEYS, _TEXT_KEYS))
        if author is None or text is None or author[1] in _NO_SPEAKERS:
            continue
        secrets = secrets_given(question, text[1]) if question and author[1] != asker else []
        if secrets:
            yield place, text[0], secrets
        asker, question = author[1], text[1]


def _first(item: Any, keys: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of some keys whose value is a text, with the text; None if there is none."""
    if not has_type(item, dict):
        return None
    values = ((key, dict.get(item, key)) for key in keys)
    return next(((key, str.__str__(text)) for key, text in values if has_type(text, str)), None)


def _find_in_transcripts(text: str, _low: str) -> Iterator[Span]:
    """Yield each secret that a line gives, in "Agent: What is the PIN? / Client: 4471"."""
    speaker, question = "", ""
    for line in _LINE.finditer(text):
        may_ask = question.count(" ") > 1 or not _QUESTION_MARKS.isdisjoint(question)
        if may_ask and _may_speak(speaker) and line["speaker"].strip(_SIGNS) != speaker:
            for kind, secret in secrets_given(question, line["text"]):
                start = text.find(secret, *line.span("text"))
                if start >= 0 and not secret.isalpha():
                    yield Span(start, start + len(secret), kind)
        speaker, question = line["speaker"].strip(_SIGNS), line["text"]


def _may_speak(name: str) -> bool:
    """Return whether a name is that of a person or a role, and not of a setting."""
    return not name[:1].islower() or name in _ROLES


FINDERS = (Finder(_find_in_transcripts, is_named=True),)
