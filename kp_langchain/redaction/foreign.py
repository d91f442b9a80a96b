"""Telling words of many languages, with their own signs: `：`, "es", "ist", "是", "は"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.escapes import read_escapes
from kp_langchain.redaction.extents import bare, quoted
from kp_langchain.redaction.finders import BEYOND_ASCII, Finder
from kp_langchain.redaction.spans import Span, trie
from kp_langchain.redaction.values import fills_the_place, looks_chosen

# Words in ASCII letters alone are found with the other telling names.
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
# A letter of another alphabet, which typographic quotes, dashes and arrows are not.
_OTHER_LETTER = re.compile("[\u00c0-\u1fff\u2e80-\ud7ff]")
_SIGN = re.compile(
    r"(?P<close>\\{0,40}[\"'`*]{1,2})?\]?[ \t\u00a0]{0,4}"
    r"(?P<sign>[:=\uff1a\uff1d]|=>|[\u2014\u2013\u2192-](?= ))[ \t\u3000\u00a0*]{0,8}"
)
_FURTHER = re.compile(r"(?:[ \t][^\W\d_]{1,16}){1,3}[ \t]?[:\uff1a][ \t]{0,4}")
_COPULA = re.compile(
    r"(?:[ \t]{1,4}(?:(?:de|für|pour|para|per|voor|dla|för|для)[ \t][\w@.\-]{1,40}[ \t])?"
    r"(?:es|est|ist|lautet|é|è|to|jest|är|er|on|je|este|là|adalah|είναι|это|является|هي|هو|היא|है)[ \t]{1,4}"
    r"|[ \t]{0,4}(?:是|为|為|は|는|은|이|คือ)[ \t\u3000]{0,4})(?=[!-~])"
)
_BLANK = re.compile(r"[ \t\u3000]{1,2}(?=[!-~])")
_CODE = re.compile(
    r"(?:验证码|驗證碼|校验码|认证码|인증번호|인증 번호|認証コード|確認コード|暗証番号|код подтверждения|код доступа|vérification"
    r"|verificación|verificação|doğrulama kodu|bestätigungscode)"
    r"[ \t]{0,2}(?:[:=\uff1a]|是|为|為|は|는|es|est|é|ist)?[ \t]{0,2}(?P<code>\d{4,8})(?!\d)"
)
_VALUE = re.compile(r"[!-~]{4,128}")
_LETTERS = re.compile(r"[^\W\d_]")


def _find(text: str, low: str) -> Iterator[Span]:
    escaped = read_escapes(text)
    if escaped is not None:
        read, mapped = escaped
        low_read = read.lower()
        if len(low_read) == len(read):
            yield from map(mapped, _found(read, low_read))
    yield from _found(text, low)


def _found(text: str, low: str) -> Iterator[Span]:
    if text.isascii() or _OTHER_LETTER.search(text) is None:
        return
    done = 0
    for word in _WORD.finditer(low):
        start, end = word.span()
        if start < done:
            continue
        if end < len(text) and low[end] < "\u2e80" and _LETTERS.match(low, end):
            continue  # a longer word, in a script that writes words apart
        sign = _SIGN.match(text, end)
        further = _FURTHER.match(text, end) if sign is None else None
        if further is not None:  # "пароль от почты: ..."
            span = bare(text, further.end())
            if span is not None and looks_chosen(text[slice(*span)]):
                yield Span(*span, "password")
                done = span[1]
                continue
        at = sign.end() if sign else end
        if sign is not None:
            span = quoted(text, at) or bare(text, at)
            if span is None or fills_the_place(text[slice(*span)]):
                continue
            value = text[slice(*span)]
            chosen = looks_chosen(value) or any(map(str.isdigit, value)) or sign["close"]
            done = span[1]
            if chosen and "://" not in value:
                yield Span(*span, "password")
            continue
        span = after_copula(text, end) or _beside(text, end)
        if span is not None:
            yield Span(*span, "password")
    for match in _CODE.finditer(low):
        yield Span(*match.span("code"), "otp")


def _beside(text: str, end: int) -> tuple[int, int] | None:
    """Return the value that follows the word with nothing but a blank between."""
    gap = _BLANK.match(text, end)
    span = bare(text, gap.end()) if gap else None
    if span is None:
        return None
    value = text[slice(*span)]
    drawn = len(value) >= 6 and looks_chosen(value) and any(map(str.isdigit, value))
    return span if drawn and "://" not in value else None


def after_copula(text: str, end: int) -> tuple[int, int] | None:
    """Return the value in "la clave es ...", "das Passwort lautet ...", "密码是..."."""
    copula = _COPULA.match(text, end)
    if copula is None:
        return None
    span = quoted(text, copula.end())
    found = None if span else _VALUE.match(text, copula.end())
    if found is not None:
        value = found.group().rstrip(".,;:!?)")
        span = found.start(), found.start() + len(value)
    return span if span is not None and looks_chosen(text[slice(*span)]) else None


FINDERS = (Finder(_find, ("\\", BEYOND_ASCII)),)
"""For values that words for password, key or code in other languages announce."""
