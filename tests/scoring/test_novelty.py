"""What a scorer remembers and compares: repeats, domains, baselines, and memories of any make."""

from __future__ import annotations

import json
import logging
import math
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from kp_langchain import Scorer, VectorCache
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.errors import ConfigError, VectorError
from kp_langchain.gate import threshold_of
from kp_langchain.scoring import (
    FastembedEmbedder,
    Nearest,
    NoveltyMemory,
    ScoreBreakdown,
)
from tests.agents import handler, searching
from tests.scoring.conftest import PlainMemory, Returning, Slow, Words

LINES = Path(__file__).parents[1] / "embedding" / "languages.jsonl"
TASK = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
TEXTS = {code: text[0] for code, text in TASK.items() if code != "topic"}
LOADING, REPEAT, NEAREST = (
    "embedding model still loading", "exact repeat", "nearest remembered trace",
)  # fmt: skip


@pytest.fixture(scope="session")
def trace_of(make_trace):
    """A trace whose embedded text is a text, and ` b`; also one that validation would refuse."""

    def make(text: str, domain: str = "finance"):
        trace = make_trace("thought", content="b", domain=domain)
        task = trace.task.model_copy(update={"objective": text})
        return trace.model_copy(update={"task": task})

    return make


def travelled(value):
    """What arrives in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


class Letters:
    """Counts letters."""

    def embed(self, texts):
        return np.array([[text.count(letter) for letter in "abcd"] for text in texts], float)


# ------------------------------------------------------------------ repeats


@pytest.mark.parametrize(
    "embedder", [Words(), Returning(RuntimeError()), None], ids=["model", "failing", "none"]
)
def test_a_repeat_is_one_in_every_language(embedder, trace_of):
    scorer = Scorer(embedder=embedder, max_remembered=1)
    for text in TEXTS.values():
        first, again = trace_of(text), trace_of(text)
        assert scorer.evaluate(first).novelty.value > 0
        for breakdown in (scorer.score(again), scorer.evaluate(first)):
            assert breakdown.novelty.value == 0.0
            is_read = isinstance(embedder, Words)
            assert breakdown.novelty_source == (NEAREST if is_read else REPEAT)
            assert breakdown.nearest == Nearest(first.id, 1.0)
            assert f"{breakdown.novelty_source}, {first.id}" in breakdown.text()
            if not is_read:
                assert breakdown.novelty.why == "exact repeat of a remembered trace"


@pytest.mark.parametrize(
    ("text", "other", "is_repeat"),
    [
        # The same to a reader.
        ("caf\u00e9", "cafe\u0301", True),
        ("\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165", True),
        ("two  words\n", "two words", True),
        ("two\u3000words", "two\u00a0words", True),
        ("\ufefftwo wo\u00adrds\u200b", "two words", True),
        ("\u200f\u05e9\u05dc\u05d5\u05dd\u202c", "\u05e9\u05dc\u05d5\u05dd", True),
        ("\u200e\u202a\u202ba\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069", "a", True),
        # What may mean something else.
        ("Foo", "foo", False),
        ("2\u2075", "25", False),
        ("two words", "twowords", False),
        ("", "x", False),
        ("\ud800", "?", False),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627", "\u0645\u06cc\u062e\u0648\u0627", False),
        (f"{'word ' * 50_000} one {'word ' * 50_000}", f"{'word ' * 100_000}", False),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_the_same_text(text, other, is_repeat, trace_of):
    scorer = Scorer(embedder=None)
    scorer.remember(trace_of(text))
    assert scorer.score(trace_of(text)).novelty.value == 0
    assert (scorer.score(trace_of(other)).novelty.value == 0) is is_repeat


def test_a_repeat_while_the_model_loads(make_trace):
    model = Slow()
    scorer = Scorer(embedder=model, latency_budget_ms=1)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    assert scorer.evaluate(make_trace()).novelty_source == REPEAT
    model.go.set()


@pytest.mark.parametrize("embedder", [None, Letters()])
def test_scoring_changes_nothing_and_remembering_is_enough(embedder, trace_of):
    scorer = Scorer(embedder=embedder)
    trace = trace_of("a")
    before = trace.model_dump_json()
    for _ in range(2):
        assert scorer.score(trace).nearest is None
    assert trace.model_dump_json() == before
    scorer.remember(first := trace_of("a"))
    assert scorer.score(trace).nearest == Nearest(first.id, 1.0)
    assert scorer.score(trace, ignore={first.id}).novelty.value == 0.5
    scorer.remember(second := trace_of("a"))
    assert scorer.score(trace).nearest.trace_id == second.id
    assert scorer.score(trace, ignore={second.id}).nearest.trace_id == first.id


@pytest.mark.parametrize("embedder", [None, Letters()])
def test_the_oldest_leaves_first_and_age_makes_a_text_new_again(embedder, trace_of):
    now_s = [0.0]
    cache = VectorCache(3, 4, 10_000, clock=lambda: now_s[0])
    scorer = Scorer(embedder=embedder, cache=cache)
    assert scorer.max_remembered == 3
    for text in ("ac", "ad", "abc", "bd"):
        scorer.remember(trace_of(text))
    texts = ("ac", "ad", "abc", "bd")
    assert [scorer.score(trace_of(one)).novelty.value == 0 for one in texts] == [False] + [True] * 3
    now_s[0] = 9.99
    assert scorer.score(trace_of("ad")).novelty.value == 0
    now_s[0] = 10.0
    assert scorer.score(trace_of("ad")).novelty.value == 0.5
    scorer.remember(trace_of("ad"))
    cache.clear()
    assert scorer.score(trace_of("ad")).novelty.value == 0.5


def test_a_cache_that_two_scorers_share_knows_the_repeats_of_both_and_stays_in_its_process(
    make_trace,
):
    one, other = (Scorer(embedder=None, cache=cache) for cache in [VectorCache(2)] * 2)
    one.remember(make_trace())
    assert other.score(make_trace()).novelty_source == REPEAT
    arrived = travelled(other)
    assert arrived.score(make_trace()).novelty.value == 0.5
    assert arrived.max_remembered == 2


@pytest.mark.parametrize("embedder", [None, Words()])
def test_of_many_at_the_same_time_one_is_new(embedder, make_trace):
    for number in range(20):
        scorer = Scorer(embedder=embedder)
        barrier = threading.Barrier(8)

        def evaluate(trace, scorer: Scorer = scorer, barrier: threading.Barrier = barrier) -> float:
            barrier.wait(60)
            return scorer.evaluate(trace).novelty.value

        with ThreadPoolExecutor(8) as pool:
            values = list(pool.map(evaluate, [make_trace(objective=f"{number}")] * 8))
        assert sorted(values) == [0.0] * 7 + [0.5]


def test_a_trace_that_was_shown_to_the_run_does_not_count(trace_of):
    scorer, shown, run = Scorer(embedder=Letters()), trace_of("a"), trace_of("c")
    assert scorer.evaluate(shown).novelty_source == "empty cache"
    for breakdown in (
        scorer.score(run, ignore={shown.id}),
        scorer.evaluate(run, ignore={shown.id, run.id}),
    ):
        assert breakdown.novelty_source == "remembered traces left out"
        assert breakdown.novelty.value == 0.5
        assert "neutral, all that is remembered was shown to the run" in breakdown.text()
    fresh = Scorer(embedder=Letters())
    assert fresh.score(run, ignore={shown.id}).novelty_source == "empty cache"
    fresh.remember(run)
    assert fresh.score(run, ignore={run.id}).novelty_source == "empty cache"


# ------------------------------------------------------------------ memories of any make


def test_a_memory_has_a_protocol_and_a_vector_cache_is_none_by_itself():
    assert isinstance(PlainMemory(), NoveltyMemory)
    assert Scorer(cache=PlainMemory()).max_remembered == 5
    assert not isinstance(VectorCache(), NoveltyMemory)
    with pytest.raises(ConfigError, match="cache is a list; expected a VectorCache"):
        Scorer(cache=[])


@pytest.mark.parametrize("embedder", [None, Letters()])
@given(texts=st.lists(st.text("abcd", min_size=1, max_size=3), max_size=12))
def test_a_plain_list_gives_the_same_scores(embedder, texts, trace_of):
    traces = [trace_of(text) for text in texts]
    own = Scorer(embedder=embedder, max_remembered=5)
    plain = Scorer(embedder=embedder, cache=PlainMemory())
    for trace in traces:
        scored, one, other = own.score(trace), own.evaluate(trace), plain.evaluate(trace)
        assert other.novelty_source == one.novelty_source
        assert other.total == pytest.approx(one.total, abs=1e-5)
        assert scored.total == one.total


def test_remembering_adds_the_vector_and_the_fingerprint(trace_of):
    memory = PlainMemory()
    Scorer(embedder=Letters(), cache=memory, baseline=0.25).remember(trace_of("a"))
    (entry,) = memory.entries
    assert entry.vector.tolist() == [1, 1, 0, 0]
    assert entry.identity.baseline == 0.25
    assert (len(entry.fingerprint), entry.domain) == (32, "finance")


class Failing(PlainMemory):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def compare(self, entry, *, ignore=frozenset()):
        raise self.error

    compare_then_add = add = compare


USES = {
    "score": lambda scorer, trace: scorer.score(trace),
    "evaluate": lambda scorer, trace: scorer.evaluate(trace),
    "remember": lambda scorer, trace: scorer.remember(trace),
}


@pytest.mark.parametrize("use", USES)
def test_a_memory_that_fails_costs_novelty_alone(use, trace_of):
    fitting = Scorer(embedder=Letters(), cache=Failing(VectorError("another length")))
    with pytest.raises(VectorError, match="another length"):  # the caller's to mend
        USES[use](fitting, trace_of("a"))
    for embedder in (Letters(), None):
        scorer = Scorer(embedder=embedder, cache=Failing(ConnectionError()))
        breakdown = USES[use](scorer, trace_of("a"))
        if breakdown is not None:
            assert breakdown.novelty.value == 0.5
            assert breakdown.novelty_source == "memory failed: ConnectionError"


@pytest.mark.parametrize("use", ["score", "evaluate"])
def test_an_entry_is_what_the_memory_gets_and_embeds_nothing_twice(use, trace_of):
    embedder, memory = Words(), PlainMemory()
    scorer, trace = Scorer(embedder=embedder, cache=memory), trace_of("abba")
    USES[use](scorer, trace)
    entry = scorer.entry(trace)
    assert len(embedder.calls) == 1
    scorer.remember(trace)
    kept = memory.entries[-1]
    np.testing.assert_array_equal(entry.vector, kept.vector)
    assert entry._replace(vector=None) == kept._replace(vector=None)
    assert entry.trace_id == trace.id
    assert len(memory.entries) == (2 if use == "evaluate" else 1)
    calls = len(embedder.calls)
    scorer.entry(trace_of("another"))
    assert len(embedder.calls) == calls + 1


def test_without_a_vector_an_entry_has_the_hash_of_the_text(trace_of):
    one, other = trace_of("a"), trace_of("a")
    for scorer in (Scorer(embedder=None), Scorer(embedder=Returning(RuntimeError()))):
        first, second = scorer.entry(one), scorer.entry(other.model_dump())
        assert first.vector is None
        assert first.fingerprint == second.fingerprint
        assert (first.trace_id, second.trace_id) == (one.id, other.id)


# ------------------------------------------------------------------ texts that cannot be read


class English(FastembedEmbedder):
    """A model that reads ASCII alone."""

    ready = True

    def unreadable_share(self, text):
        return sum(not one.isascii() for one in text) / len(text)

    def embed(self, texts):
        return Words().embed(texts)


CHINESE = TEXTS["zh"] * 8
MULTILINGUAL = "KP_EMBEDDING_MODEL=sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"


def test_an_unreadable_run_is_neutral_and_forgotten(caplog, trace_of):
    scorer = Scorer(embedder=English(), cache=(cache := VectorCache(dimensions=26)))
    assert scorer.evaluate(trace_of("read")).unreadable_share == 0
    with caplog.at_level(logging.WARNING, logger="kp_langchain"):
        for one in (scorer.score(trace_of(CHINESE)), scorer.evaluate(trace_of(CHINESE))):
            assert one.novelty_source == "unreadable"
            assert (one.novelty.value, one.nearest) == (0.5, None)
            assert one.unreadable_share > 0.4
            share = f"unreadable, {one.unreadable_share:.0%} of the tokens say nothing to the model"
            assert share in one.text()
            assert "(finance profile; novelty: unreadable)" in one.line()
            assert ScoreBreakdown.from_dict(one.to_dict()) == one
        scorer.remember(trace_of(CHINESE))
        again = scorer.score(trace_of(CHINESE))
    assert (again.novelty.value, again.novelty_source) == (0, REPEAT)
    assert again.unreadable_share == one.unreadable_share
    assert cache.size == 1
    (record,) = caplog.records
    assert MULTILINGUAL in record.getMessage()
    assert "384" in record.getMessage()
    assert CHINESE[:4] not in record.getMessage()
    believed = Scorer(embedder=Letters()).score(trace_of(CHINESE))  # it does not report a share
    assert (believed.novelty_source, believed.unreadable_share) == ("empty cache", None)


def test_the_gate_stands_where_it_stands_without_novelty_and_the_log_has_the_share(
    caplog, trace_of
):
    scorer = Scorer(embedder=English())
    scorer.remember(trace_of("read"))
    watching = handler("finance", scorer=scorer)
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        for text, is_measured in (("read it", True), (CHINESE * 9, False)):
            searching().invoke({"messages": [("user", text)]}, {"callbacks": [watching]})
            scored = watching.last(60)
            assert scored.threshold == threshold_of("finance", None)[0 if is_measured else 1]
    *_, record = (one for one in caplog.records if one.levelno == logging.INFO)
    assert record.unreadable_share > 0.4
    assert record.novelty_source == "unreadable"


# ------------------------------------------------------------------ baselines


class Cone:
    """Embeds a text as a vector that has a cosine of 0.8 or more with that of any other."""

    baseline: object = 0.8

    def embed(self, texts):
        vectors = [[2.0, float("a" in text), float("z" in text), 0.0] for text in texts]
        return np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)


class LangChainCone(Embeddings):
    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)

    def embed_documents(self, texts):
        return Cone().embed(texts).tolist()

    def embed_query(self, text):
        raise AssertionError("documents are embedded, not queries")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scorer(embedder=Cone()),
        lambda: Scorer(embedder=LangChainCone(baseline=0.8)),
        lambda: Scorer(embedder=LangChainCone(), baseline=0.8),
        lambda: Scorer(embedder=LangChainCone(baseline=0.1), baseline=0.8),
        lambda: travelled(Scorer(embedder=Cone(), baseline=0.8)),
        lambda: Scorer(embedder=LangChainCone(baseline=np.float32(0.8))),
        lambda: Scorer(embedder=LangChainCone(baseline=Fraction(4, 5))),
    ],
)
def test_novelty_is_counted_from_the_baseline(make, trace_of):
    def after_a(text):
        scorer = make()
        scorer.remember(trace_of("a"))
        return scorer.score(trace_of(text))

    breakdown = after_a("z")
    assert breakdown.nearest.similarity == pytest.approx(0.8)  # as it is
    assert breakdown.novelty.value == pytest.approx(1.0, abs=1e-6)
    assert "counted from the embedder's baseline 0.8" in breakdown.text()
    between = after_a("az")
    assert 0.8 < between.nearest.similarity < 1
    expected = (1 - between.nearest.similarity) / 0.2
    assert between.novelty.value == pytest.approx(expected, abs=1e-6)
    assert after_a("a").novelty.value == pytest.approx(0, abs=1e-6)


SIMILARITIES = st.floats(-1, 1) | st.sampled_from([-1.0, 0.0, 1.0])


@given(
    similarity=SIMILARITIES,
    baseline=st.none() | st.sampled_from([0, 0.0]) | st.floats(0, 1, exclude_max=True),
)
def test_the_more_alike_the_less_novel(similarity, baseline, trace_of):
    vectors = [[[1.0, 0.0]], [[similarity, math.sqrt(1 - similarity**2)]]]
    scorer = Scorer(embedder=Returning(*vectors), baseline=baseline)
    scorer.remember(trace_of("a"))
    breakdown = scorer.score(trace_of("z"))
    similarity = breakdown.nearest.similarity
    expected = (1 - similarity) / (1 - (baseline or 0))
    assert breakdown.novelty.value == pytest.approx(min(1, max(0, expected)), abs=1e-9)
    if not baseline:
        assert breakdown.novelty.value == min(1, 1 - similarity)  # to the last bit
        assert "counted" not in breakdown.text()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        1,
        1.0,
        1.5,
        -0.1,
        True,
        "0.8",
        b"0.8",
        [0.8],
        object(),
        10**400,
    ],
    ids=lambda value: repr(value)[:7],
)
def test_what_is_no_baseline_is_refused(value):
    for make in (
        lambda: Scorer(embedder=LangChainCone(baseline=value)),
        lambda: Scorer(embedder=Cone(), baseline=value),
        lambda: FastembedEmbedder(baseline=value),
    ):
        with pytest.raises(ConfigError, match=r"baseline of \w.* from 0 to below 1"):
            make()
    with pytest.raises(ConfigError, match="baseline of this scorer"):
        Scorer(embedder=None, baseline=value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"baseline": 0.8}, {"baseline": 0.7}),
        ({"baseline": 0.8}, {}),
        ({"model": "e5-small"}, {"model": "e5-large"}),
        ({"model_name": "e5", "revision": "1"}, {"model_name": "e5", "revision": "2"}),
    ],
)
def test_embeddings_of_two_models_are_never_compared(one, other, trace_of):
    cache = VectorCache(dimensions=4)
    first, again = (Scorer(embedder=LangChainCone(**one), cache=cache) for _ in range(2))
    second = Scorer(embedder=LangChainCone(**other), cache=cache)
    first.evaluate(trace_of("a"))
    for use in USES.values():
        with pytest.raises(VectorError, match="another model, revision or baseline"):
            use(second, trace_of("z"))
    with pytest.raises(VectorError):
        Scorer(embedder=LangChainCone(**one), baseline=0.5, cache=cache).score(trace_of("a"))
    assert cache.size == 1
    assert again.score(trace_of("z")).nearest is not None
    cache.clear()
    assert second.evaluate(trace_of("z")).novelty_source == "empty cache"


def test_vectors_that_the_caller_added_are_compared(trace_of):
    cache = VectorCache(dimensions=4)
    cache.add([2.0, 1.0, 0.0, 0.0], key="own")
    breakdown = Scorer(embedder=Cone(), cache=cache).score(trace_of("a"))
    assert breakdown.nearest.trace_id == "own"


def test_another_model_begins_with_an_empty_memory(trace_of):
    """What the settings name may change while a process runs; a child loads it again."""

    class Changing(FastembedEmbedder):
        ready = True
        identity = EmbedderIdentity("one", "1", 0.0)

        def embed(self, texts):
            return Cone().embed(texts).astype(np.float32)

    model = Changing()
    scorer = Scorer(embedder=model)
    scorer.evaluate(trace_of("a"))
    assert scorer.score(trace_of("a")).novelty.value == pytest.approx(0, abs=1e-6)
    model.identity = EmbedderIdentity("other", "1", 0.5)
    assert scorer.evaluate(trace_of("z")).novelty_source == "empty cache"
    assert scorer.score(trace_of("az")).nearest is not None
    assert scorer.score(trace_of("a")).novelty_source == REPEAT  # whatever the model
