"""Small embedders."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kp_langchain.embedding.local_models import LocalModel, _default_embedder
from kp_langchain.scoring import Match, MemoryEntry, Nearest


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


class PlainMemory:
    """The smallest memory there is: a list."""

    max_elements = 5

    def __init__(self) -> None:
        self.entries: list[MemoryEntry] = []

    def compare(self, entry, *, ignore=frozenset()):
        known = [one for one in self.entries[-self.max_elements :] if one.trace_id not in ignore]
        repeats = [one for one in known if one.fingerprint == entry.fingerprint]
        nearest = None
        if entry.vector is not None:
            for one in known:
                if one.vector is None:
                    continue
                lengths = np.linalg.norm(one.vector) * np.linalg.norm(entry.vector)
                similarity = float(one.vector @ entry.vector / (lengths or np.inf))
                if nearest is None or similarity >= nearest.similarity - 1e-6:
                    nearest = Nearest(one.trace_id, similarity)
        return Match(nearest, Nearest(repeats[-1].trace_id, 1.0) if repeats else None)

    def compare_then_add(self, entry, *, ignore=frozenset()):
        match = self.compare(entry, ignore=ignore)
        self.add(entry)
        return match

    def add(self, entry):
        self.entries.append(entry)


class Slow(LocalModel):
    """A local model that is loaded, or fails to load, once the test says so."""

    name, backend, folder = "slow", "nothing", Path("snapshots/1")
    has_ended = False

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("slow")
        self.go, self.asked = threading.Event(), threading.Event()
        self.failure = failure
        self.is_loaded = False
        self.waits: list[float] = []

    def _start(self):
        self.asked.set()
        return self  # it is its own process

    def wait(self, timeout_s):
        self.waits.append(timeout_s)
        self.go.wait(timeout_s)

    def read_load(self):
        if self.go.is_set():
            if self.failure is not None:
                raise self.failure
            self.is_loaded = True

    def encode(self, texts):
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
