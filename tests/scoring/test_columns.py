"""`Scorer.evaluate_many` gives in columns what `evaluate` gives one by one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain import ReasoningTrace, Scorer, ScoringWeights, VectorCache
from kp_langchain.errors import VectorError, WeightsError
from kp_langchain.scoring import Nearest, TraceColumns
from tests.scoring.conftest import PlainMemory, Slow, Words
from tests.scoring.test_breakdown import PARITY, parity_lines

OUTCOME = ScoringWeights(0.1, 0.1, 0.1, 0.7)


class SomeUnreadable(Words):
    """Cannot read texts that begin with a z."""

    baseline = 0.25

    def unreadable_share(self, text):
        return float(text.startswith("z"))


# An adapter that cleans texts would hide the share, as it does for every foreign embedder.
class Reading(SomeUnreadable, Slow):
    def __init__(self) -> None:
        Slow.__init__(self)
        SomeUnreadable.__init__(self)
        self.go.set()


EMBEDDERS = {"none": lambda: None, "words": Words, "some unreadable": Reading}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["thought", "tool_call", "observation", "error_recovery"]),
        st.none() | st.sampled_from(["", "a b", "c"]),
        st.none() | st.sampled_from(["search", "read"]),
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def traces(draw) -> ReasoningTrace:
    metadata = {
        "task_domain": draw(st.sampled_from(["default", "finance", "code", "unheard of"])),
        "success": draw(st.booleans()),
    }
    steps = [
        {"step_id": at, "type": kind, "content": content, "tool": tool and {"name": tool}}
        for at, (kind, content, tool) in enumerate(draw(STEPS))
    ]
    return ReasoningTrace.model_validate(
        {
            "metadata": metadata,
            "task": {"objective": draw(st.text("abz ", min_size=1, max_size=4))},
            "steps": steps,
            "outcome": {"result_summary": "", "confidence": draw(st.floats(0, 1))},
        }
    )


def assert_equal(columns, breakdowns):
    """Every figure of every row is that of the breakdown, in the columns and in the row's own."""
    table = {name: column.tolist() for name, column in columns.to_dict().items()}
    assert len(columns) == len(breakdowns)
    for row, breakdown in enumerate(breakdowns):
        own = columns.breakdown(row)
        expected = breakdown.to_row()
        for name in table.keys() - {"trace_id", "elapsed_ms"}:
            value = None if table[name][row] != table[name][row] else table[name][row]  # NaN
            if isinstance(expected[name], float):
                assert value == pytest.approx(expected[name], abs=1e-6), name
                assert own.to_row()[name] == pytest.approx(value, abs=1e-12), name
            else:
                assert value == own.to_row()[name] == expected[name], name
        assert [rule.name for rule in own.rules] == [rule.name for rule in breakdown.rules]
        assert own.unreadable_share == breakdown.unreadable_share
        assert own.text().splitlines()[1:5] == breakdown.text().splitlines()[1:5]


@pytest.mark.parametrize("embedder", EMBEDDERS)
@given(
    given_traces=st.lists(traces(), max_size=12),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    most=st.integers(1, 5),
    step_cap=st.sampled_from([None, 3]),
    weights=st.sampled_from([None, OUTCOME]),
)
def test_many_are_one_by_one(embedder, given_traces, cuts, most, step_cap, weights):
    """In any mixture of the two."""
    one, many = (
        Scorer(
            embedder=EMBEDDERS[embedder](),
            max_remembered=most,
            step_cap=step_cap,
            profiles={"code": OUTCOME},
        )
        for _ in range(2)
    )
    first, last = sorted(cuts)
    for part in (given_traces[:first], given_traces[last:]):
        expected = [one.evaluate(trace, weights=weights) for trace in part]
        assert_equal(many.evaluate_many(part, weights=weights), expected)
        for trace in given_traces[first:last]:
            assert many.evaluate(trace).nearest == one.evaluate(trace).nearest


class Stored:
    """Returns vectors that were made before, in turn."""

    def __init__(self, vectors) -> None:
        self.vectors, self.at, self.calls = vectors, 0, 0

    def embed(self, texts):
        first, self.at, self.calls = self.at, self.at + len(texts), self.calls + 1
        return self.vectors[first : self.at]


def test_several_batches(make_trace):
    traces = [make_trace(objective=str(number % 1500)) for number in range(2100)]
    drawn = np.random.default_rng(0)
    vectors = drawn.standard_normal((2100, 8), dtype=np.float32)
    vectors[1900:] = vectors[1700]
    one, many = (Scorer(embedder=Stored(vectors), max_remembered=1000) for _ in range(2))
    columns = many.evaluate_many(traces)
    assert_equal(columns, [one.evaluate(trace) for trace in traces])
    assert many._embedder._foreign.calls == 3
    assert columns.nearest_id[1950] == traces[1949].id
    assert set(columns.novelty_source) == {"empty cache", "nearest remembered trace"}


def test_parity():
    lines = parity_lines("sequence.jsonl")
    scorer = Scorer(embedder=Stored(np.load(PARITY / "sequence_embeddings.npy")))
    columns = scorer.evaluate_many(json.dumps(line["trace"]) for line in lines)
    np.testing.assert_allclose(columns.total, [line["score"] for line in lines], atol=1e-9)
    lines = parity_lines("no_embedder.jsonl")
    columns = Scorer(embedder=None).evaluate_many([line["trace"] for line in lines])
    np.testing.assert_allclose(columns.total, [line["score"] for line in lines], atol=1e-9)


def test_objects_mappings_json_and_columns_are_the_same(make_trace):
    traces = [make_trace(objective=text) for text in ("a", "b c", "a")]
    texts = [trace.model_dump_json() for trace in traces]
    forms = [
        traces,
        iter(traces),
        [json.loads(text) for text in texts],
        texts,
        [text.encode() for text in texts],
        TraceColumns.of(traces),
    ]
    expected = [Scorer(embedder=Words()).evaluate_many(traces).breakdown(row) for row in range(3)]
    for form in forms:
        assert_equal(Scorer(embedder=Words()).evaluate_many(form), expected)


@pytest.mark.parametrize("embedder", [None, Words()])
def test_of_equal_texts_the_newest_is_nearest(embedder, make_trace):
    scorer, traces = Scorer(embedder=embedder), [make_trace() for _ in range(5)]
    ids = [
        *scorer.evaluate_many(traces[:3]).nearest_id,
        *scorer.evaluate_many(traces[3:]).nearest_id,
    ]
    assert ids == [None, *(trace.id for trace in traces[:4])]


def test_no_traces():
    columns = Scorer(embedder=Words()).evaluate_many([])
    assert len(columns) == 0
    assert {len(column) for column in columns.to_dict().values()} == {0}


# ------------------------------------------------------------------ what cannot be done at once


class FailsOn(Words):
    """Fails whenever a certain text is among those it gets."""

    def embed(self, texts):
        if any(text.startswith("bad") for text in texts):
            raise LookupError
        return super().embed(texts)


def test_an_embedder_that_fails_costs_one_trace_its_novelty(make_trace):
    traces = [make_trace(objective=text) for text in ("a", "bad", "c d", "bad", "a e")]
    one, many = (Scorer(embedder=FailsOn()) for _ in range(2))
    columns = many.evaluate_many(traces)
    assert_equal(columns, [one.evaluate(trace) for trace in traces])
    failed, repeat, nearest = (
        "embedder failed: LookupError", "exact repeat", "nearest remembered trace",
    )  # fmt: skip
    assert columns.novelty_source.tolist() == ["empty cache", failed, nearest, repeat, nearest]
    assert columns.breakdown(3).nearest == Nearest(traces[1].id, 1.0)


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"cache": PlainMemory()},
        lambda: {"latency_budget_ms": 50.0},
        lambda: {"cache": VectorCache(5, 26, ttl_ms=0)},
        lambda: {"cache": VectorCache(5, 26, ttl_ms=1e6)},
        lambda: {"cache": VectorCache(2, 26)},
    ],
    ids=["memory of one's own", "budget", "no time", "time", "cache"],
)
def test_any_memory(options, make_trace):
    traces = [make_trace(objective=text) for text in ("a", "b", "c d", "a", "b e")]
    one, many = (Scorer(embedder=Words(), **options()) for _ in range(2))
    columns = many.evaluate_many(traces)
    assert_equal(columns, [one.evaluate(trace) for trace in traces])
    assert columns.breakdown(0).latency_budget_ms == options().get("latency_budget_ms")


def test_a_budget_holds_for_each_trace(make_trace):
    model = Slow()  # is loaded once the test says so
    columns = Scorer(embedder=model, latency_budget_ms=1).evaluate_many([make_trace()] * 2)
    assert columns.novelty_source.tolist() == ["embedding model still loading", "exact repeat"]
    model.go.set()


def test_a_cache_that_does_not_fit_is_the_caller_s_to_mend(make_trace):
    cache = VectorCache(5, dimensions=3)
    with pytest.raises(VectorError, match="26 values, this cache takes 3"):
        Scorer(embedder=Words(), cache=cache).evaluate_many([make_trace()])
    assert cache.size == 0


# ------------------------------------------------------------------ the caller's mistakes


@pytest.mark.parametrize("bad", [{}, {"steps": []}, None, 1, "", "{}", b"[]", "confidence"])
def test_nothing_is_remembered_if_one_trace_is_refused(bad, make_trace):
    trace = make_trace()
    if bad == "confidence":
        outcome = trace.outcome.model_copy(update={"confidence": 2.0})
        bad = trace.model_copy(update={"outcome": outcome})
    scorer = Scorer(embedder=(embedder := Words()))
    with pytest.raises((ValidationError, ValueError)) as refused:
        scorer.evaluate_many([trace, bad])
    if not isinstance(bad, str | bytes):
        with pytest.raises(type(refused.value)) as alone:
            scorer.evaluate(bad)
        assert str(alone.value) == str(refused.value)
    with pytest.raises(WeightsError):
        scorer.evaluate_many([trace], weights={"novelty": 1.0})
    assert embedder.calls == []
    assert scorer.score(trace).novelty_source == "empty cache"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"confidence": np.array([0.5, math.nan])}, "outcome.confidence is nan"),
        ({"domains": ["code"]}, "the columns have different lengths: .*'domains': 1"),
    ],
)
def test_columns_are_checked(column, message, make_trace):
    columns = TraceColumns.of([make_trace(), make_trace()])
    parts = {name: getattr(columns, name) for name in TraceColumns.__slots__}
    with pytest.raises(ValueError, match=message):
        TraceColumns(**parts | column)
