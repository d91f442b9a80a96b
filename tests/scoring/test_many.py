"""Many traces at once: the same answers and the same memory as one by one, and no more held."""

from __future__ import annotations

import itertools
import math
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.errors import ConfigError, VectorError, WeightsError
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import Scorer, ScoringWeights, VectorCache
from tests.scoring.test_parity import PARITY, _lines, needs_parity

DIMENSIONS = 8
PROBES = [f"vector {number} end" for number in range(40)]


class Drawn:
    """Gives each text a random vector of its own; some texts are more than it can take."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def embed(self, texts):
        self.batches.append(len(texts))
        return [self.vector(text) for text in texts]

    def vector(self, text):
        _, number, behaviour, *_ = text.split()
        if behaviour == "raise":
            raise RuntimeError(text)
        if behaviour == "wide":
            return np.ones(DIMENSIONS + 1)
        if behaviour == "nan":
            return np.full(DIMENSIONS, math.nan)
        if behaviour == "zero":
            return np.zeros(DIMENSIONS)
        return np.random.default_rng(int(number)).normal(size=DIMENSIONS)


def wire(number: int, behaviour: str = "end", *, steps: int = 1, confidence: float = 0.8) -> dict:
    return {
        "id": f"kp:trace:{next(ids):08x}-0000-4000-8000-000000000000",
        "metadata": {"task_domain": "code", "success": True},
        "task": {"objective": f"vector {number} {behaviour}"},
        "steps": [{"step_id": n, "type": "thought", "content": "x"} for n in range(steps)],
        "outcome": {"result_summary": "done", "confidence": confidence},
    }


ids = itertools.count()


def results(calls) -> list:
    """What each call returns, or the type of what it raises."""
    out = []
    for call in calls:
        try:
            out.append(call())
        except StopIteration:
            break
        except Exception as error:
            out.append(type(error))
    return out


def assert_same(found, expected) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, type):
            assert one is other
            continue
        assert one.total == pytest.approx(other.total, abs=1e-6)
        assert one.novelty.value == pytest.approx(other.novelty.value, abs=1e-6)
        assert one.novelty_source == other.novelty_source
        assert (one.nearest and one.nearest.trace_id) == (other.nearest and other.nearest.trace_id)
        assert (one.profile, one.rules) == (other.profile, other.rules)
        assert one.complexity == other.complexity
        assert one.elapsed_ms > 0.0


behaviours = st.sampled_from(["end"] * 12 + ["zero", "raise", "nan", "wide", "bad", "wild"])


@given(
    st.lists(st.tuples(st.integers(0, 12), behaviours, st.integers(1, 4)), max_size=60),
    st.sampled_from([None, 1, 2, 3, 7, 1000]),
    st.integers(1, 70),
    st.sets(st.integers(0, 60), max_size=3),
    st.booleans(),
)
def test_equals_one_by_one(drawn, max_elements, batch_size, ignored, given_cache):
    traces = []
    for number, behaviour, steps in drawn:
        trace = wire(number, behaviour, steps=steps)
        if behaviour == "bad":
            trace["outcome"]["confidence"] = 7
        if behaviour == "wild":  # past validation
            trace = ReasoningTrace.model_validate(trace)
            outcome = trace.outcome.model_copy(update={"confidence": math.nan})
            trace = trace.model_copy(update={"outcome": outcome})
        traces.append(trace)
    ignore = {traces[at]["id"] for at in ignored if at < len(traces) and drawn[at][1] != "wild"}

    def scorer():
        if max_elements is None:
            return Scorer(embedder=Drawn())
        dimensions = DIMENSIONS + 1 if given_cache and max_elements == 7 else DIMENSIONS
        return Scorer(embedder=Drawn(), cache=VectorCache(max_elements, dimensions))

    single, many = scorer(), scorer()
    expected = results(lambda t=trace: single.evaluate(t, ignore=ignore) for trace in traces)
    iterator = many.evaluate_many(iter(traces), ignore=ignore, batch_size=batch_size)
    found = results(iterator.__next__ for _ in itertools.count())
    assert_same(found, expected)
    probes = [wire(number) for number in range(13)]
    left = [results(lambda t=t, s=s: s.score(t) for t in probes) for s in (many, single)]
    assert_same(*left)


@needs_parity
def test_recorded_sequence_with_its_embeddings():
    lines = _lines("sequence.jsonl")
    rows = iter(np.load(PARITY / "sequence_embeddings.npy"))

    class Recorded:
        def embed(self, texts):
            return np.stack([next(rows) for _ in texts])

    traces = (line["trace"] for line in lines)
    found = list(Scorer(embedder=Recorded()).evaluate_many(traces, batch_size=17))
    assert [one.total for one in found] == pytest.approx(
        [line["score"] for line in lines], abs=1e-6
    )


def test_embeds_in_batches():
    embedder = Drawn()
    list(Scorer(embedder=embedder).evaluate_many([wire(n) for n in range(600)]))
    assert embedder.batches == [256, 256, 88]


def test_a_batch_that_fails_is_embedded_one_by_one():
    embedder = Drawn()
    scorer = Scorer(embedder=embedder)
    traces = [wire(1), wire(2, "raise"), wire(1)]
    sources = [one.novelty_source for one in scorer.evaluate_many(traces)]
    assert sources == ["empty cache", "embedder failed: RuntimeError", "nearest remembered trace"]
    assert embedder.batches == [3, 1, 1, 1]


@pytest.mark.parametrize("embedder", [None, Drawn()])
def test_weights_for_all(embedder):
    weights = ScoringWeights(0, 0, 0, 1)
    found = list(Scorer(embedder=embedder).evaluate_many([wire(1), wire(2)], weights=weights))
    assert [(one.profile, one.outcome_confidence.weight) for one in found] == [("custom", 1.0)] * 2


def test_faulty_arguments_are_refused_at_once():
    scorer = Scorer(embedder=None)
    with pytest.raises(WeightsError):
        scorer.evaluate_many([], weights={"novelty": 1})
    for bad in (0, -1, 2.5, True, "3", None):
        with pytest.raises(ConfigError, match="batch_size"):
            scorer.evaluate_many([], batch_size=bad)
    with pytest.raises(TypeError):
        scorer.evaluate_many(5)
    assert list(scorer.evaluate_many([])) == []


def test_what_comes_after_a_bad_trace_waits():
    cache = VectorCache(dimensions=DIMENSIONS)
    iterator = Scorer(embedder=Drawn(), cache=cache).evaluate_many([wire(1), {}, wire(2)])
    assert next(iterator).novelty_source == "empty cache"
    with pytest.raises(ValidationError):
        next(iterator)
    assert cache.size == 1
    assert next(iterator).nearest is not None
    with pytest.raises(StopIteration):
        next(iterator)
    assert cache.size == 2


def test_a_given_cache_of_another_length():
    scorer = Scorer(embedder=Drawn(), cache=VectorCache(dimensions=384))
    with pytest.raises(VectorError, match=r"8.*384"):
        list(scorer.evaluate_many([wire(1), wire(2)]))


def test_what_the_iterator_of_traces_raises_comes_after_the_traces_before_it():
    def traces():
        yield wire(1)
        yield wire(2)
        raise OSError("the disk is gone")

    iterator = Scorer(embedder=Drawn()).evaluate_many(traces())
    assert next(iterator).nearest is None
    assert next(iterator).nearest is not None
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(interrupt):
    class Interrupted:
        def embed(self, texts):
            raise interrupt

    with pytest.raises(interrupt):
        list(Scorer(embedder=Interrupted()).evaluate_many([wire(1)]))


class Mark:
    """Something that lives as long as the trace that carries it."""


def test_an_endless_source_is_taken_a_batch_at_a_time():
    alive: weakref.WeakSet[Mark] = weakref.WeakSet()
    pulled = 0

    def endless():
        nonlocal pulled
        while True:
            trace = {**wire(pulled % 50), "mark": Mark()}
            alive.add(trace["mark"])
            pulled += 1
            yield trace

    iterator = Scorer(embedder=Drawn()).evaluate_many(endless(), batch_size=10)
    for number, _ in enumerate(itertools.islice(iterator, 300), 1):
        assert pulled - number < 10
        assert len(alive) <= 20
