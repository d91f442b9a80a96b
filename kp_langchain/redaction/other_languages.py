"""Words for password, key and code in other languages, and the values after them.

Between word and value stands a sign (`:`, `：`), a verb ("es", "ist", "是", "は") or a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.extents import bare_word, quoted_value
from kp_langchain.redaction.finders import NON_ASCII, Finder
from kp_langchain.redaction.spans import Span, trie
from kp_langchain.redaction.unicode_escapes import decode_escapes
from kp_langchain.redaction.values import (
    is_placeholder,
    looks_like_bare_password,
    looks_like_password,
)

# `field_names` has the words that are written in ASCII letters, and some others.
_WORDS = [
    "contraseña",
    "hasło",
    "lösenord",
    "jelszó",
    "parolă",
    "şifre",
    "slaptažodis",
    "пароль",
    "парола",
    "κωδικός",
    "סיסמה",
    "סיסמא",
    "密码",
    "密碼",
    "口令",
    "パスワード",
    "暗証番号",
    "비밀번호",
    "암호",
    "รหัสผ่าน",
    "पासवर्ड",
    "গুপ্তশব্দ",
    "கடவுச்சொல்",
    "رمز",
    "密钥",
    "密鑰",
    "令牌",
    "验证码",
    "驗證碼",
    "ключ",
    "暗号",
    "トークン",
    "토큰",
    "токен",
]
_PHRASES = (
    "كلمة المرور",
    "كلمة السر",
    "رمز عبور",
    "mật khẩu",
    "clé secrète",
    "clé api",
    "código pin",
    "секретный ключ",
)
_WORD = re.compile(trie([*_WORDS, *_PHRASES]))
# A letter outside ASCII; typographic quotes, dashes and arrows do not match.
_OTHER_LETTER = re.compile("[\u00c0-\u1fff\u2e80-\ud7ff]")
_ASSIGNMENT = re.compile(
    r"(?P<close>\\{0,40}[\"'`*]{1,2})?\]?[ \t\u00a0]{0,4}"
    r"(?P<sign>[:=\uff1a\uff1d]|=>|[\u2014\u2013\u2192-](?= ))[ \t\u3000\u00a0*]{0,8}"
)
_MORE_WORDS = re.compile(r"(?:[ \t][^\W\d_]{1,16}){1,3}[ \t]?[:\uff1a][ \t]{0,4}")
_COPULA = re.compile(
    r"(?:[ \t]{1,4}(?:(?:de|für|pour|para|per|voor|dla|för|для)[ \t][\w@.\-]{1,40}[ \t])?"
    r"(?:es|est|ist|lautet|é|è|to|jest|är|er|on|je|este|là|adalah|είναι|это|является|هي|هو|היא|है)[ \t]{1,4}"
    r"|[ \t]{0,4}(?:是|为|為|は|는|은|이|คือ)[ \t\u3000]{0,4})(?=[!-~])"
)
_SPACE = re.compile(r"[ \t\u3000]{1,2}(?=[!-~])")
_CODE = re.compile(
    r"(?:验证码|驗證碼|校验码|认证码|인증번호|인증 번호|認証コード|確認コード|暗証番号|код подтверждения|код доступа|vérification"
    r"|verificación|verificação|doğrulama kodu|bestätigungscode)"
    r"[ \t]{0,2}(?:[:=\uff1a]|是|为|為|は|는|es|est|é|ist)?[ \t]{0,2}(?P<code>\d{4,8})(?!\d)"
)
_VALUE = re.compile(r"[!-~]{4,128}")
_LETTERS = re.compile(r"[^\W\d_]")


def _find(text: str, low: str) -> Iterator[Span]:
    escapes = decode_escapes(text)
    if escapes is not None:
        plain_text, to_source = escapes
        low_plain_text = plain_text.lower()
        if len(low_plain_text) == len(plain_text):
            yield from map(to_source, _find_decoded(plain_text, low_plain_text))
    yield from _find_decoded(text, low)


def _find_decoded(text: str, low: str) -> Iterator[Span]:
    if text.isascii() or _OTHER_LETTER.search(text) is None:
        return
    position = 0
    for word in _WORD.finditer(low):
        start, end = word.span()
        if start < position:
            continue
        if end < len(text) and low[end] < "\u2e80" and _LETTERS.match(low, end):
            continue  # part of a longer word, in a script with spaces between words
        assignment = _ASSIGNMENT.match(text, end)
        more_words = _MORE_WORDS.match(text, end) if assignment is None else None
        if more_words is not None:  # "пароль от почты: ..."
            span = bare_word(text, more_words.end())
            if span is not None and looks_like_password(text[slice(*span)]):
                yield Span(*span, "password")
                position = span[1]
                continue
        at = assignment.end() if assignment else end
        if assignment is not None:
            span = quoted_value(text, at) or bare_word(text, at)
            if span is None or is_placeholder(text[slice(*span)]):
                continue
            value = text[slice(*span)]
            is_secret = (
                looks_like_password(value) or any(map(str.isdigit, value)) or assignment["close"]
            )
            position = span[1]
            if is_secret and "://" not in value:
                yield Span(*span, "password")
            continue
        span = value_after_copula(text, end) or _value_after_space(text, end)
        if span is not None:
            yield Span(*span, "password")
    for match in _CODE.finditer(low):
        yield Span(*match.span("code"), "otp")


def _value_after_space(text: str, end: int) -> tuple[int, int] | None:
    """Return start and end of the value that follows the word after a space."""
    gap = _SPACE.match(text, end)
    span = bare_word(text, gap.end()) if gap else None
    if span is None:
        return None
    value = text[slice(*span)]
    return span if looks_like_bare_password(value) and "://" not in value else None


def value_after_copula(text: str, end: int) -> tuple[int, int] | None:
    """Return start and end of the value in "la clave es ...", "das Passwort lautet ..."."""
    copula = _COPULA.match(text, end)
    if copula is None:
        return None
    span = quoted_value(text, copula.end())
    match = None if span else _VALUE.match(text, copula.end())
    if match is not None:
        value = match.group().rstrip(".,;:!?)")
        span = match.start(), match.start() + len(value)
    return span if span is not None and looks_like_password(text[slice(*span)]) else None


FINDERS = (Finder(_find, ("\\", NON_ASCII)),)
"""Find the values after words for password, key or code in other languages."""
