"""An exact repeat has novelty 0 in every language, with a model and without."""

from __future__ import annotations

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.novelty_sources import NEAREST, REPEAT
from kp_langchain.scoring import Scorer, VectorCache
from kp_langchain.scoring.repeats import RepeatMemory, fingerprint

LINES = Path(__file__).parents[1] / "benchmarks" / "languages.jsonl"
TASK = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
TEXTS = {code: text[0] for code, text in TASK.items() if code != "topic"}


class Letters:
    """Counts some letters."""

    def embed(self, texts):
        return [[1.0, *(text.lower().count(c) for c in "etaoin")] for text in texts]


class Failing:
    def embed(self, texts):
        raise RuntimeError


class Loading:
    ready = False

    def __init__(self):
        self.loaded = threading.Event()

    def embed(self, texts):
        self.loaded.wait(60)
        return [[1.0, 0.0] for _ in texts]


@pytest.mark.parametrize("make", [Letters, Failing, lambda: None], ids=["model", "failing", "none"])
@pytest.mark.parametrize("language", TEXTS)
def test_a_repeat_is_one_in_every_language(make, language, make_trace):
    scorer = Scorer(embedder=make())
    first, again = (make_trace(objective=TEXTS[language]) for _ in range(2))
    assert scorer.evaluate(first).novelty.value == 0.5
    for found in (scorer.score(again), scorer.evaluate(again)):
        assert found.novelty.value == 0.0
        read = make is Letters
        assert found.novelty_source == (NEAREST if read else REPEAT)
        assert (found.nearest.trace_id, found.nearest.similarity) == (first.id, 1.0)
        assert f"{found.novelty_source}, {first.id}" in found.text()
        if not read:
            assert found.novelty.why == "exact repeat of a remembered trace"


def test_a_repeat_while_the_model_loads(make_trace):
    model = Loading()
    scorer = Scorer(embedder=model, latency_budget_ms=1)
    assert scorer.evaluate(make_trace()).novelty_source == "embedding model still loading"
    assert scorer.evaluate(make_trace()).novelty_source == "exact repeat"
    model.loaded.set()


@pytest.mark.parametrize("embedder", [None, Letters()])
def test_scoring_changes_nothing_and_remembering_is_enough(embedder, make_trace):
    scorer = Scorer(embedder=embedder)
    for _ in range(2):
        assert scorer.score(make_trace()).nearest is None
    scorer.remember(first := make_trace())
    assert scorer.score(make_trace()).nearest.trace_id == first.id
    assert scorer.score(make_trace(), ignore={first.id}).novelty.value == 0.5
    scorer.remember(second := make_trace())
    assert scorer.score(make_trace()).nearest.trace_id == second.id
    assert scorer.score(make_trace(), ignore={second.id}).nearest.trace_id == first.id


@pytest.mark.parametrize("embedder", [None, Letters(), Failing()])
def test_many_at_once_are_as_one_by_one(embedder, make_trace):
    objectives = [text for n in range(3) for text in [*TEXTS.values(), f"task {n}"]]
    traces = [make_trace(objective=objective) for objective in objectives]
    one, many = Scorer(embedder=embedder), Scorer(embedder=embedder)
    single = [one.evaluate(trace) for trace in traces]
    together = list(many.evaluate_many(traces, batch_size=4))
    for left, right in zip(single, together, strict=True):
        assert (left.novelty_source, left.nearest) == (right.novelty_source, right.nearest)
    again = [one for at, one in enumerate(together) if objectives[at] in objectives[:at]]
    assert [one.novelty.value for one in again] == [0] * 2 * len(TEXTS)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165"),
        ("two  words\n", "two words"),
        ("two\u3000words", "two\u00a0words"),
        ("\ufefftwo wo\u00adrds\u200b", "two words"),
        ("\u200f\u05e9\u05dc\u05d5\u05dd\u202c", "\u05e9\u05dc\u05d5\u05dd"),
    ],
)
def test_the_same_to_a_reader_is_the_same(text, other):
    assert fingerprint(text) == fingerprint(other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Foo", "foo"),
        ("2\u2075", "25"),
        ("two words", "twowords"),
        ("", "x"),
        ("\ud800", "?"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u062e\u0648\u0627\u0647\u0645",
        ),
    ],
)
def test_what_may_mean_something_else_is_another_text(text, other):
    assert fingerprint(text) != fingerprint(other)


def test_texts_that_differ_in_the_middle_alone_are_no_repeats(make_trace):
    scorer = Scorer(embedder=None)
    long = "word " * 50_000
    scorer.evaluate(make_trace(content=f"{long} one {long}"))
    assert scorer.evaluate(make_trace(content=f"{long} other {long}")).novelty.value == 0.5
    assert scorer.evaluate(make_trace(content=f"{long} one {long}")).novelty.value == 0.0


@pytest.mark.parametrize("embedder", [None, Letters()])
def test_the_oldest_leaves_first(embedder, make_trace):
    scorer = Scorer(embedder=embedder, cache=VectorCache(3, 7))
    assert scorer.max_remembered == 3
    for objective in "abcd":
        scorer.remember(make_trace(objective=objective))
    values = [scorer.score(make_trace(objective=each)).novelty.value for each in "abcd"]
    assert values[0] > 0
    assert values[1:] == [0, 0, 0]


@pytest.mark.parametrize("embedder", [None, Letters()])
def test_what_is_forgotten_with_the_vectors_is_no_repeat(embedder, make_trace):
    now_s = [0.0]
    cache = VectorCache(1000, 7, 10_000, clock=lambda: now_s[0])
    scorer = Scorer(embedder=embedder, cache=cache)
    scorer.remember(make_trace())
    now_s[0] = 9.99
    assert scorer.score(make_trace()).novelty.value == 0
    now_s[0] = 10.1
    assert scorer.score(make_trace()).novelty.value == 0.5
    scorer.remember(make_trace())
    cache.clear()
    assert scorer.score(make_trace()).novelty.value == 0.5


def test_a_cache_that_two_scorers_share_knows_the_repeats_of_both(make_trace):
    one, other = (Scorer(embedder=None, cache=cache) for cache in [VectorCache()] * 2)
    one.remember(make_trace())
    assert other.score(make_trace()).novelty_source == "exact repeat"


def test_to_another_process_it_travels_without_its_memory(make_trace):
    scorer = Scorer(embedder=None, cache=VectorCache(2))
    scorer.remember(make_trace())
    arrived = pickle.loads(pickle.dumps(scorer))  # noqa: S301
    assert arrived.score(make_trace()).novelty.value == 0.5
    assert arrived.max_remembered == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_knows_what_the_parent_knew(run_python, make_trace):
    script = f"""
import os, threading
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import Scorer
trace = ReasoningTrace.model_validate_json({make_trace().model_dump_json()!r})
scorer, stop = Scorer(embedder=None), threading.Event()
scorer.evaluate(trace)
def busy():
    while not stop.is_set(): scorer.evaluate(trace)
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if scorer.evaluate(trace).novelty.value == 0 else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
print(set(codes))
"""
    assert run_python(script).stdout.strip() == "{0}"


@pytest.mark.parametrize("embedder", [None, Letters()])
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


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.floats(0, 3))),
    st.integers(1, 5),
    st.none() | st.floats(0.5, 5),
    st.sets(st.sampled_from("xyz")),
)
def test_it_finds_what_a_plain_list_would(entries, most, ttl_s, ignore):
    now_s = [0.0]
    memory = RepeatMemory(most, None if ttl_s is None else ttl_s * 1000, clock=lambda: now_s[0])
    plain: list[tuple[str, str, float]] = []
    for text, key, later_s in entries:
        now_s[0] += later_s
        alive = [
            one
            for one in plain[-most:]
            if ttl_s is None or (now_s[0] - one[2]) * 1000 < ttl_s * 1000
        ]
        expected = [one[1] for one in alive if one[0] == text and one[1] not in ignore]
        found = memory.find_then_add(text.encode(), key, ignore=ignore)
        assert (found and found.trace_id) == (expected[-1] if expected else None)
        plain.append((text, key, now_s[0]))
