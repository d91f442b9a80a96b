"""Finds signals in the texts of a run, and decides whether a tool call failed.

The words are in `wording.toml`. No other module decides whether a tool call failed. A recorded
error is a failure. Many tools return their errors as plain text instead; such a text
begins with a word for an error, or has a line that begins with the name of an exception. The same
words elsewhere describe things ("does not exist in Asia", "3 failed logins", a line of a log), and
an empty output is what many commands return when all went well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

_FILE = resources.files("kp_langchain.calibration").joinpath("wording.toml")
_TABLE = tomllib.loads(_FILE.read_text(encoding="utf-8"))

BEGINNING_CHARS = 300
"""Of a tool's output only so many characters count: later ones are what the tool read."""

# Scripts written without spaces are split into single characters.
_WORD = re.compile(r"[぀-ヿ㐀-鿿가-힣]|[^\W_]+(?:['’][^\W_]+)?")
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")  # the same, but faster
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_NAME = re.compile(r"\b[A-Z][a-z]+")


class Text:
    """The beginning of a text, and its words.

    Args:
        raw: The text.
        max_chars: How many characters of it to use.

    Attributes:
        raw: The beginning of the text.
        is_ascii: Whether it holds ASCII characters only.
        lower: The text in lower case.
        words: Its words in lower case, in order.
        vocabulary: Its different words.
    """

    __slots__ = ("is_ascii", "lower", "raw", "vocabulary", "words")

    def __init__(self, raw: str | None, max_chars: int) -> None:
        self.raw = (raw or "")[:max_chars]
        self.is_ascii = self.raw.isascii()
        self.lower = self.raw.lower()
        self.words: list[str] = (_ASCII_WORD if self.is_ascii else _WORD).findall(self.lower)
        self.vocabulary = frozenset(self.words)

    def numbers(self) -> list[str]:
        """Return the numbers in it."""
        return _NUMBER.findall(self.raw)

    def names(self) -> list[str]:
        """Return its capitalised words."""
        return _NAME.findall(self.raw)


@dataclass(frozen=True, slots=True)
class Signal:
    """A meaning that texts express by certain words or phrases.

    Attributes:
        words: Single words.
        phrases: Phrases and parts of words, in ASCII.
        foreign: The same with other characters; ASCII texts are not searched for them.
    """

    words: frozenset[str]
    phrases: tuple[str, ...]
    foreign: tuple[str, ...]

    def count(self, text: Text) -> int:
        """Return how many of the words occur in `text`, plus how often the phrases do."""
        number = len(self.words & text.vocabulary) + sum(map(text.lower.count, self.phrases))
        return number if text.is_ascii else number + sum(map(text.lower.count, self.foreign))


def _signal(name: str) -> Signal:
    words, phrases = _TABLE["signals"][name]["words"], _TABLE["signals"][name]["phrases"]
    plain = tuple(phrase for phrase in phrases if phrase.isascii())
    return Signal(frozenset(words), plain, tuple(set(phrases) - set(plain)))


UNABLE = _signal("unable")
UNSURE = _signal("unsure")
DONE = _signal("done")
NEGATED = _signal("negated")
REASONED = _signal("reasoned")
QUESTION = _signal("question")
EXCLAMATION = _signal("exclamation")
SENTENCE_END = _signal("sentence_end")


# ------------------------------------------------------------------ outputs of tools

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
    (?: (?:{_alternatives(_TABLE["failures"]["phrases"])})
      | status["']\s*:\s*["']error["']
      | [^\n]{{1,80}}:\ command\ not\ found\s*$
      | failed\ to\ (?!(?-i:[A-Z][a-z]))                      # not the title of a film
      | error\ (?!(?:check|correct|handl|logg|messag|monitor|report|track)ing)\w+ing\s
      | (?!failed\W{{0,4}}\d+\s*(?:[,;.}}\])|/]|of\b|$))      # `failed: 3` counts what did
        (?:{_alternatives(_TABLE["failures"]["words"])})
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
