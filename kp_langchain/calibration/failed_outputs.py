"""Whether a tool call failed, by what its trace says: the one reading of it in this package.

A recorded error says so by itself. Many tools return their errors as plain text instead; such a
text begins with a word for an error, or has a line that begins with the name of an exception. The
same words elsewhere describe things ("does not exist in Asia", "3 failed logins", a line of a log),
and an empty output is what many commands return when all went well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

BEGINNING_CHARS = 300
"""Only so many characters count: later ones are what the tool read."""

# Words that say it alone: they end the line, or punctuation or a code follows.
_WORDS = (
    "error", "exception", "failed", "failure", "fatal", "fatal error", "syntax error",
    "runtime error", "internal error", "server error", "internal server error", "error code",
    "tool error", "http error",
    "invalid input", "invalid request", "invalid action", "invalid argument", "invalid arguments",
    "permission denied", "access denied",
    "error fatal", "error interno", "excepción", "fallo", "falló",  # Spanish
    "fehler", "ausnahme", "fehlgeschlagen", "erreur", "échec", "erro", "falha", "errore",
    "ошибка", "сбой",
    "错误", "失败", "错误代码", "系统错误", "異常", "异常", "エラー", "失敗", "例外",
    "오류", "에러", "실패", "예외",
)  # fmt: skip
# Beginnings of sentences that say it, whatever follows.
_PHRASES = (
    "an error occurred", "an error has occurred", "an unexpected error", "an exception occurred",
    "error occurred",
    "error while ", "error when ", "error during ", "error in ", "error at ", "error from ",
    "error response ", "uncaught ", "unhandled exception", "unhandled error", "unhandled rejection",
    "unhandled promise rejection",
    "exception in ", "exception while ", "exception occurred", "exception during ",
    "failed with ", "failed because ", "failed due to ", "failure to connect",
    "error al ", "error en ", "se produjo un error", "ha ocurrido un error", "no se pudo ",
    "fehler beim ", "fehler bei ", "ein fehler ist ", "es ist ein fehler ", "erreur lors ",
    "une erreur ", "échec de ", "erro ao ", "ocorreu um erro", "falha ao ", "ошибка при ",
    "произошла ошибка",
    "发生错误", "出错", "操作失败", "请求失败", "执行失败", "エラーが発生", "エラーです", "失敗しました",
    "例外が発生",
    "오류가 발생", "오류입니다", "에러가 발생", "실패했", "실패하였",
)  # fmt: skip
# Values that say there was none, in `error: null`, or that measure one, in `error: 0.05`.
_NO_ERROR = (
    r"""["']?(?:null|none(?:\ found)?|nil|nothing|false|no|n/a|ningun[ao]|aucune?|nessun[ao]|keine?|нет"""
    r"""|无|なし|없음|-|""|''|\[\]|\{\}|0+)["']?\s*(?:[,;.}\])|/]|$) | \d+\.\d | ±"""
)


def _alternatives(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


_NAMES_EXCEPTION = re.compile(
    r"""
    ^[^\w\n]*
    (?: (?:\w+\.)*\w+(?:Error|Exception) (?=\s*:|\()     # KeyError: 'x'
      | (?:\w+\.)+\w+(?:Error|Exception) \s*$            # java.lang.NullPointerException
      | Traceback\ \(most\ recent\ call\ last\)
    )
    """,
    re.MULTILINE | re.VERBOSE,
)
_BEGINS_LIKE_ERROR = re.compile(
    rf"""
    \W*                                           # quotes, brackets, a list's dash, an emoji
    (?: (?:{_alternatives(_PHRASES)})
      | status["']\s*:\s*["']error["']
      | [^\n]{{1,80}}:\ command\ not\ found\s*$
      | failed\ to\ (?!(?-i:[A-Z][a-z]))                      # not the title of a film
      | error\ (?!(?:check|correct|handl|logg|messag|monitor|report|track)ing)\w+ing\s
      | (?!failed\W{{0,4}}\d+\s*(?:[,;.}}\])|/]|of\b|$))      # `failed: 3` counts what did
        (?:{_alternatives(_WORDS)})
        (?: ["'`*\])]*[^\S\n]*
            (?: [:：] (?!\s*(?:{_NO_ERROR}))
              | [!.。！…]
              | $ (?!\s*\n(?:\d|[^\w\n])+$)                 # not the head of a column of numbers
              | [\-–—]\s (?!(?-i:[A-Z][a-z])\w*\s*$)         # not "Error - Wikipedia"
              | [(\[] (?!(?:\d{{4}}\s)?[^\W\d]+\)(?!:))       # not "Error (song)"
            )
          | \] | \s+\d{{3,5}}\b | \s+[A-Z]{{1,4}}\d{{3,5}}:
        )
    )
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def reads_like_failure(output: str | None) -> bool:
    """Return whether a tool's output begins like an error, or soon names an exception."""
    beginning = (output or "").lstrip()[:BEGINNING_CHARS]
    return bool(_BEGINS_LIKE_ERROR.match(beginning) or _NAMES_EXCEPTION.search(beginning))


def output_failed(kind: str, tool: object, output: str | None) -> bool | None:
    """Return whether a step says that a tool call failed; None if it is not the end of one.

    Args:
        kind: The step's type.
        tool: The step's tool; None if it has none.
        output: The step's content.
    """
    if kind == "error_recovery" and tool is not None:
        return True
    return reads_like_failure(output) if kind == "observation" else None
