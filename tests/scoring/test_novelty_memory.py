"""A scorer works with any memory that satisfies the protocol, as it does with its own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, Scorer, VectorCache
from kp_langchain.errors import ConfigError, VectorError
from kp_langchain.scoring import Nearest
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.scoring.novelty_memory import Match, MemoryEntry, NoveltyMemory


class Letters:
    """Counts letters; a text without one has no direction, and fails."""

    def embed(self, texts):
        return np.array([[text.count(letter) for letter in "abcd"] for text in texts], float)


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

    def compare_then_add(self, entries, *, ignore=frozenset()):
        matches = []
        for entry in entries:
            matches.append(self.compare(entry, ignore=ignore))
            self.add(entry)
        return matches

    def add(self, entry):
        self.entries.append(entry)


def trace_of(objective: str) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": True},
            "task": {"objective": objective},
            "steps": [{"step_id": 0, "type": "thought", "content": "b"}],
            "outcome": {"result_summary": "done", "confidence": 0.5},
        }
    )


@pytest.mark.parametrize("memory", [PlainMemory(), InProcessMemory()])
def test_both_satisfy_the_protocol(memory):
    assert isinstance(memory, NoveltyMemory)
    assert Scorer(cache=memory).max_remembered == memory.max_elements


def test_a_vector_cache_is_no_memory_by_itself():
    assert not isinstance(VectorCache(), NoveltyMemory)
    with pytest.raises(ConfigError, match="cache is a list; expected a VectorCache"):
        Scorer(cache=[])


@pytest.mark.parametrize("embedder", [None, Letters()])
@given(texts=st.lists(st.text("abcd", min_size=1, max_size=3), max_size=12))
def test_a_plain_list_gives_the_same_scores(embedder, texts):
    traces = [trace_of(text) for text in texts]
    own = Scorer(embedder=embedder, max_remembered=5)
    plain = Scorer(embedder=embedder, cache=PlainMemory())
    many = Scorer(embedder=embedder, cache=PlainMemory())
    together = list(many.evaluate_many(traces, batch_size=4))
    for trace, batched in zip(traces, together, strict=True):
        scored, one, other = own.score(trace), own.evaluate(trace), plain.evaluate(trace)
        assert other.novelty_source == one.novelty_source == batched.novelty_source
        assert other.total == pytest.approx(one.total, abs=1e-5)
        assert batched.total == pytest.approx(one.total, abs=1e-5)
        assert scored.total == one.total


def test_remembering_adds_the_vector_and_the_fingerprint():
    memory = PlainMemory()
    Scorer(embedder=Letters(), cache=memory, baseline=0.25).remember(trace_of("a"))
    (entry,) = memory.entries
    assert entry.vector.tolist() == [1, 1, 0, 0]
    assert entry.identity.baseline == 0.25
    assert len(entry.fingerprint) == 32


def test_a_vector_that_comes_late_is_added_alone():
    go, added = threading.Event(), threading.Event()

    class Loading(Letters):
        @property
        def ready(self):
            return go.is_set()

        def embed(self, texts):
            assert go.wait(60)
            return super().embed(texts)

    class Waiting(PlainMemory):
        def add(self, entry):
            super().add(entry)
            if entry.vector is not None:
                added.set()

    memory = Waiting()
    scorer = Scorer(embedder=Loading(), cache=memory, latency_budget_ms=1)
    trace = trace_of("a")
    assert scorer.evaluate(trace).novelty_source == "embedding model still loading"
    go.set()
    assert added.wait(60)
    first, second = memory.entries
    assert first.vector is None
    assert first.fingerprint is not None
    assert second.vector is not None
    assert second.fingerprint is None
    assert second.trace_id == trace.id


class Refusing(PlainMemory):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def compare(self, entry, *, ignore=frozenset()):
        self._refuse(entry)
        return super().compare(entry, ignore=ignore)

    def add(self, entry):
        self._refuse(entry)
        super().add(entry)

    def _refuse(self, entry):
        if entry.vector is not None:
            raise self.error


USES = {
    "score": lambda scorer, trace: scorer.score(trace),
    "evaluate": lambda scorer, trace: scorer.evaluate(trace),
    "remember": lambda scorer, trace: scorer.remember(trace),
    "evaluate_many": lambda scorer, trace: next(scorer.evaluate_many([trace])),
}


@pytest.mark.parametrize("use", USES)
def test_a_memory_that_does_not_fit_the_embedder_is_the_caller_s_to_mend(use):
    scorer = Scorer(embedder=Letters(), cache=Refusing(VectorError("another length")))
    with pytest.raises(VectorError, match="another length"):
        USES[use](scorer, trace_of("a"))


@pytest.mark.parametrize("use", USES)
def test_after_another_error_the_fingerprint_alone_is_compared_and_kept(use):
    memory = Refusing(RuntimeError("no room for vectors"))
    scorer = Scorer(embedder=Letters(), cache=memory)
    breakdown = USES[use](scorer, trace_of("a"))
    if breakdown is not None:
        assert breakdown.novelty.value == 0.5
        assert breakdown.novelty_source == "embedder failed: RuntimeError"
    assert [entry.vector for entry in memory.entries] == [None] * (use != "score")
    scorer.remember(trace_of("b"))
    assert scorer.score(trace_of("b")).novelty_source == "exact repeat"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("embedder", [None, Letters()], ids=["no embedder", "an embedder"])
def test_a_memory_that_is_away_costs_novelty_alone(use, embedder):
    class Away(PlainMemory):
        def compare(self, entry, *, ignore=frozenset()):
            raise ConnectionError

        compare_then_add = add = compare

    breakdown = USES[use](Scorer(embedder=embedder, cache=Away()), trace_of("a"))
    if breakdown is not None:
        assert breakdown.novelty.value == 0.5
        assert breakdown.novelty_source == "memory failed: ConnectionError"


class CountingLetters(Letters):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts):
        self.texts += texts
        return super().embed(texts)


@pytest.mark.parametrize("use", ["score", "evaluate"])
def test_an_entry_is_what_the_memory_gets_and_embeds_nothing_twice(use):
    embedder, memory = CountingLetters(), PlainMemory()
    scorer, trace = Scorer(embedder=embedder, cache=memory), trace_of("abba")
    USES[use](scorer, trace)
    entry = scorer.entry(trace)
    assert len(embedder.texts) == 1
    scorer.remember(trace)
    kept = memory.entries[-1]
    np.testing.assert_array_equal(entry.vector, kept.vector)
    assert entry._replace(vector=None) == kept._replace(vector=None)
    assert entry.trace_id == trace.id
    assert len(memory.entries) == (2 if use == "evaluate" else 1)


def test_an_entry_of_another_trace_or_thread_is_embedded_anew():
    embedder = CountingLetters()
    scorer, one, other = Scorer(embedder=embedder), trace_of("ab"), trace_of("ba")
    scorer.evaluate(one)
    np.testing.assert_array_equal(scorer.entry(other).vector, scorer.entry(one).vector)
    assert len(embedder.texts) == 2
    threads = [threading.Thread(target=scorer.entry, args=(one,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(embedder.texts) == 4


def test_without_a_vector_an_entry_has_the_hash_of_the_text():
    class Broken:
        def embed(self, texts):
            raise RuntimeError

    one, other = trace_of("a"), trace_of("a")
    for scorer in (Scorer(embedder=None), Scorer(embedder=Broken())):
        first, second = scorer.entry(one), scorer.entry(other.model_dump())
        assert first.vector is None
        assert first.fingerprint == second.fingerprint
        assert (first.trace_id, second.trace_id) == (one.id, other.id)
