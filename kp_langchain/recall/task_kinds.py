"""What the tasks of a pattern have in common, in words that several tasks share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kp_langchain.recall.deciding_calls import NAME, VALUE
from kp_langchain.recall.prompt_text import clean_line
from kp_langchain.recall.run_paths import RunPath
from kp_langchain.recall.shared_text import FEWEST_TASKS, MOST, Shared
from kp_langchain.redaction.spans import PLACEHOLDER

GAP = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for what differs between tasks."""

_FEWEST_WORDS = 3  # of a text that several tasks share
_MOST_CHARS = 300
_LIFT = 3  # how much more of the pattern's tasks than of the domain's others have a telling word
_MOST_WORDS = 6
_LONG = 4  # letters; shorter words are shown only where there is no other
_WORD = re.compile(r"[^\W\d_]{3,}")


class TaskWords:
    """The words of the tasks of a domain.

    Args:
        runs: Its runs.
    """

    def __init__(self, runs: Iterable[RunPath]) -> None:
        self._words = {task: set(_words(text)) for task, text in _texts(runs).items()}
        self._counts = Counter(word for words in self._words.values() for word in words)

    def kinds(self, members: Sequence[RunPath]) -> tuple[str, ...]:
        """Return what the tasks of runs have in common; nothing if that says nothing.

        A text whose parts most of the tasks have, with an ellipsis for what differs; or else the
        words that more of them have than other tasks of the domain.

        Args:
            members: The runs.
        """
        texts = _texts(members)
        text = _common_text(texts)
        if text:
            return (text,)
        counts = Counter(word for task in texts for word in self._words[task])
        telling = [
            (len(word) < _LONG, -count * lift, word)
            for word, count in counts.items()
            if count >= max(FEWEST_TASKS, len(texts) / 2)
            and (lift := count / len(texts) / self._usual(word, count, len(texts))) >= _LIFT
        ]
        telling.sort()
        words = [word for is_short, _, word in telling if is_short == telling[0][0]][:_MOST_WORDS]
        return (", ".join(words),) if words else ()

    def _usual(self, word: str, count: int, tasks: int) -> float:
        """Return the share of the other tasks that have a word; never 0, as half a task has it."""
        return (self._counts[word] - count + 0.5) / (len(self._words) - tasks + 1)


def _texts(runs: Iterable[RunPath]) -> dict[str, str]:
    """Return the first text of each task, in the order of the alphabet."""
    texts: dict[str, str] = {}
    for run in runs:
        texts[run.task] = min(texts.get(run.task, run.objective), run.objective)
    return dict(sorted(texts.items()))


def _words(text: str) -> list[str]:
    text = NAME.sub(" ", VALUE.sub(" ", PLACEHOLDER.sub(" ", text)))
    return [word.casefold() for word in _WORD.findall(text)]


def _common_text(texts: dict[str, str]) -> str:
    shared = Shared.of([(text, task) for task, text in texts.items()])
    if shared.kept_words < max(_FEWEST_WORDS, MOST * shared.words):
        return ""
    parts = [piece if isinstance(piece, str) else piece.frame(GAP) for piece in shared.pieces]
    line = clean_line("".join(parts), 2 * _MOST_CHARS).replace("`", "'")
    return line.rstrip(" .!?") if len(line) <= _MOST_CHARS else ""
