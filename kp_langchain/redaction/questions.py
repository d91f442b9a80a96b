"""Secrets that are given when asked for: "What is your password?" - "sunflower".

The question names what the answer is, so the answer itself need not look like a secret. It must look
like an answer, though: not like agreement, a refusal, a question, or a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from kp_langchain.redaction.finders import NON_ASCII, Finder
from kp_langchain.redaction.named_values import names_in
from kp_langchain.redaction.spans import Span, lazy_pattern, word_set
from kp_langchain.redaction.structures import has_type
from kp_langchain.redaction.tables import load_table
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
_GENITIVE = lazy_pattern(r"['’]s\s*\Z")
_IS = lazy_pattern(r"['’](?:s|re)\b")
_QUOTES = "\"'`“”„‘’«»()[]<>*"
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
    is_pair: bool


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
    return [] if request is None else _read_answer(answer, request)


def _request_in(text: str) -> _Request | None:
    """Return the secret that the last question or request of a text asks for, if it is one."""
    low = text.lower()
    if len(low) != len(text):
        return None
    names = _names(text, low)
    ends = [match.end() for match in _SENTENCE_END.finditer(low)]
    sentences = [
        (start, end)
        for start, end in zip([0, *ends], [*ends, len(low)], strict=True)
        if _WORD.search(low, start, end)
    ]
    for start, end in reversed(sentences if names else ()):
        is_last = end == sentences[-1][1]
        for first, _, request in reversed(names):
            if start <= first < end and _asks(
                low[start:first], low[first:end], is_bare=request.is_bare, is_last=is_last
            ):
                return request._replace(is_pair=_is_pair(low[start:first]))
        before = [request for first, _, request in names if first < start]
        if before and _asks_for_it(low[start:end]):
            return before[-1]
        if _QUESTION_MARK.search(low, start, end):
            return None
    return None


def _names(text: str, low: str) -> list[tuple[int, int, _Request]]:
    """Return start and end of each name of a secret in a text, with what a request for it is."""
    plain = without_accents(low)
    places: list[tuple[int, int, SensitiveField | None]] = list(names_in(text, low))
    places += [
        (match.start(), match.end(), None)
        for match in _WORD.finditer(low)
        if (match[0] in TABLE["codes"] or match[0] == "key")
        and all(match.end() != end for _, end, _ in places)
    ]
    names = []
    for start, end, field in sorted(places, key=lambda place: place[1]):
        following = _NEXT_WORD.match(plain, end)
        if following is not None and following["word"] not in _AFTER_NAMES:
            continue
        is_phrase = _PHRASE_NAME.search(low, max(0, start - 24), end + 12) is not None
        name = field or SensitiveField("api_key" if low[start:end] == "key" else "otp")
        is_bare = field is None or (low[start:end] == "key" and not field.is_strong)
        names.append((start, end, _Request(name, is_phrase, is_bare, is_pair=False)))
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
    is_other_code = before and before[-1] not in _BEFORE_CODES and before[-1].isalpha()
    if is_bare and (is_other_code or not TABLE["no_codes"].isdisjoint(words)):
        return False
    if any(word in sentence for word in TABLE["about"] if not word.isascii()):
        return False
    if words[0] == "which" and _GENITIVE.search(left):
        return False  # whose password is to be changed
    head, colon, items = left.rpartition(":")
    if colon and not TABLE["requests"].isdisjoint(_words(head)):
        return _is_one_noun(_words(items))  # of a list of what is asked for
    clause = _words(_CLAUSE_END.split(left)[-1])
    before = before if TABLE["requests"].isdisjoint(clause) else clause
    requests = [at for at, word in enumerate(before) if word in TABLE["requests"]]
    if not requests:
        is_question = _QUESTION_MARK.search(sentence) is not None
        is_label = is_last and sentence.rstrip()[-1:] in (":", "：")
        asks = is_question or is_label or _has_request(sentence, words)
        if not asks or (words[0] in TABLE["yes_or_no"] and words[1:2] not in (["you"], ["i"])):
            return False
    start = requests[-1] + 1 if requests else 0
    return _is_one_noun([word for word in before[start:] if word not in TABLE["requests"]])


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
        if word in TABLE["about"]:
            return False
        if word in TABLE["joints"]:
            has_name_begun = False
        elif word in TABLE["determiners"]:
            if has_name_begun:
                return False
        elif word not in TABLE["fillers"] and word not in TABLE["lead_ins"] and word.isalpha():
            has_name_begun = True
    return True


def _is_pair(before: str) -> bool:
    words = [word for word in _words(before) if word not in TABLE["determiners"]]
    return len(words) > 1 and words[-1] in TABLE["joints"]


def _asks_for_it(sentence: str) -> bool:
    """Return whether a sentence asks for what the one before it names: "Please enter it"."""
    words = _words(sentence)
    if words[0] in ("what", "which") and words[-1] in TABLE["requests"]:
        return True  # "What should I enter?"
    for at, word in enumerate(words):
        if word in TABLE["pronouns"]:
            before = words[:at]
            asked = [at for at, word in enumerate(before) if word in TABLE["requests"]]
            if asked and _is_one_noun([*before[asked[-1] + 1 :], "the"]):
                return True
    return False


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
    if sure:
        return [Secret(kind, text) for token in sure for text in _with_parts(token)]
    if answer.endswith(("?", "？", "؟")):
        return []
    low_words = [word.lower() for word in _WORD.findall(answer)]
    if not TABLE["negations"].isdisjoint(low_words):
        return []
    code = _code(answer, request)
    if code:
        digits = re.sub(r"[ \-]", "", code)
        return [Secret(kind, text) for text in dict.fromkeys((code, digits))]
    if kind not in _PASSWORDS or request.is_bare:
        return []
    word = _last_word(words, is_pair=request.is_pair)
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
    if field.kind in ("pin", "cvv"):
        return False  # they are numbers
    if is_unmistakable(token, field) or looks_generated(token):
        return True
    if request.is_bare and field.kind not in CODE_KINDS:
        return False
    if looks_like_bare_password(token):
        return field.kind in _PASSWORDS or len(token) >= 8 or field.kind in CODE_KINDS
    has_sign = looks_like_password(token) and token[-1] not in "!?" and token[0] not in "#@$"
    return field.kind in _PASSWORDS and has_sign and len(token) >= 6 and not token.isdigit()


def _with_parts(token: str) -> list[str]:
    """Return a secret, and its part behind a user's name: "bob:...", "bob/..."."""
    match = _USER_AND_VALUE.fullmatch(token)
    return [token] if match is None else [token, match[1]]


def _code(answer: str, request: _Request) -> str:
    """Return the one number in an answer, which may be in groups of digits; "" if there is none."""
    kind = request.field.kind
    if kind not in CODE_KINDS and kind not in _PASSWORDS and kind != "token":
        return ""
    codes = _CODE_IN_GROUPS.findall(answer) or _CODE.findall(answer)
    shortest = 3 if kind == "cvv" or request.is_bare else 4
    digits = sum(map(str.isdigit, codes[0])) if codes else 0
    return codes[0].lstrip("#") if len(codes) == 1 and digits >= shortest else ""


def _phrase(answer: str, request: _Request) -> str:
    """Return the words of a phrase; "" if the answer is none."""
    content = answer.rpartition(":")[2] if answer.count(":") == 1 else answer
    content = content.strip().strip(_QUOTES).rstrip(".")
    words = _NUMBERED.sub(" ", content).split()
    letters = [word.replace("-", "") for word in words]
    is_text = all(word.isalpha() or (request.is_phrase and word.isdigit()) for word in letters)
    if len(words) not in _PHRASE_WORDS or not is_text:
        return ""
    low_words = [word.lower() for word in words]
    if not TABLE["negations"].isdisjoint(low_words):
        return ""
    common = sum(word in SENTENCE_WORDS or word in TABLE["no_answers"] for word in low_words)
    is_password = request.field.kind in _PASSWORDS and content.islower()
    return content if (request.is_phrase or is_password) and common * 4 <= len(words) else ""


def _last_word(words: list[str], *, is_pair: bool) -> str:
    """Return the word that an answer gives: alone, or after "it is", "sure," and the like."""
    while len(words) > 1 and _bare(words[-1]).rstrip("!").lower() in TABLE["no_answers"]:
        words = words[:-1]  # "..., thanks"
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
    if len(words) == 1 or (is_pair and len(words) == 2):
        return word
    before = words[-2]
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


FINDERS = (Finder(_find_in_transcripts, symbols=(":", ">", NON_ASCII), is_named=True),)
