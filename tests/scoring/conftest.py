"""Small embedders."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from kp_langchain.embedding.auto_embedder import _default_embedder


class Words:
    """Counts words by their first letter: texts that share words are similar."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed(self, texts):
        self.calls.append(list(texts))
        rows = np.zeros((len(texts), 26), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[(ord(word[0]) - ord("a")) % 26] += 1
        return rows


class Returning:
    """Returns, or raises, one thing after the other; the last one for ever."""

    def __init__(self, *results) -> None:
        self.results = list(results)

    def embed(self, texts):
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, BaseException):
            raise result
        return result


class Slow:
    """A model that is loaded, or fails to load, once the test says so."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.go, self.asked = threading.Event(), threading.Event()
        self.failure = failure
        self.ready = False
        self.by: list[str] = []  # the threads that embedded

    def embed(self, texts):
        self.by.append(threading.current_thread().name)
        if not self.ready:
            self.asked.set()
            assert self.go.wait(60)
            if self.failure is not None:
                raise self.failure
            self.ready = True
        return np.array([[len(text), 1.0] for text in texts])

    def load_once_asked(self) -> None:
        """Let it load as soon as somebody waits for it."""
        threading.Thread(target=lambda: (self.asked.wait(60), self.go.set())).start()


@pytest.fixture
def no_models(monkeypatch):
    """The default scorer is still to be made, and nothing that runs models is installed."""
    _default_embedder.cache_clear()
    monkeypatch.setattr("kp_langchain.scoring.process_scorer._default_scorer", None)
    for package in ("sentence_transformers", "fastembed"):
        monkeypatch.setitem(sys.modules, package, None)
    yield
    _default_embedder.cache_clear()
