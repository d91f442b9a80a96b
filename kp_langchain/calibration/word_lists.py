"""Words by which agents show success, doubt or refusal: English, some of four more languages.

A word list judges nothing by itself. It gives counts, and the model learns from a domain's verdicts
what they mean there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def _signal(words: str, *phrases: str) -> Signal:
    plain = tuple(phrase for phrase in phrases if phrase.isascii())
    return Signal(frozenset(words.split()), plain, tuple(set(phrases) - set(plain)))


UNABLE = _signal(
    "sorry apologize apologise apologies unfortunately unable cannot can't couldn't lamentablemente",
    "could not", "not able", "not possible", "don't have", "do not have", "lo siento", "no puedo",
    "no pude", "抱歉", "无法", "不能", "申し訳", "できません", "残念", "죄송", "할 수 없", "유감",
)  # fmt: skip
UNSURE = _signal(
    "may might maybe perhaps possibly probably likely seem seems appear appears assume assuming "
    "assumed guess unclear uncertain approximately quizás quizá probablemente parece",
    "not sure", "could be", "tal vez", "可能", "也许", "大概", "かもしれ", "おそらく", "たぶん", "아마", "것 같",
)  # fmt: skip
DONE = _signal(
    "successfully success done complete completed finished created updated sent booked scheduled "
    "added canceled cancelled changed confirmed listo completado completada hecho",
    "成功", "完成", "已经", "完了", "しました", "완료", "했습니다",
)  # fmt: skip
NEGATED = _signal(
    "no not none never nothing without cannot ningún ninguno ninguna nunca sin",
    "n't", "不", "没", "無", "ない", "ません", "없", "않",
)  # fmt: skip
REASONED = _signal(
    "because since so therefore thus hence but however although instead porque así aunque pero",
    "因为", "所以", "因此", "但是", "だから", "しかし", "ので", "왜냐하면", "그래서", "그러나", "하지만",
)  # fmt: skip
QUESTION = _signal("", "?", "？")
EXCLAMATION = _signal("", "!", "！")
SENTENCE_END = _signal("", ".", "!", "?", "。", "！", "？")
