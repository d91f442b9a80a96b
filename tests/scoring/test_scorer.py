from __future__ import annotations

import json
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.errors import ConfigError, VectorError, WeightsError
from kp_langchain.scoring import Scorer, ScoringWeights, VectorCache

EQUAL = {"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}


class Words:
    """Counts words by their first letter: texts that share words are similar."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, texts):
        self.calls += 1
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


def test_score_changes_nothing(make_trace):
    cache = VectorCache(dimensions=26)
    scorer = Scorer(embedder=Words(), cache=cache)
    trace = make_trace()
    before = trace.model_dump_json()
    assert scorer.score(trace).novelty_source == "empty cache"
    assert scorer.score(trace).novelty_source == "empty cache"
    assert cache.size == 0
    assert trace.model_dump_json() == before


def test_remember_then_score(make_trace):
    scorer = Scorer(embedder=Words())
    trace, other = make_trace(), make_trace(objective="zebra zoo", content="zig")
    scorer.remember(trace)
    breakdown = scorer.score(make_trace())
    assert breakdown.novelty.value == pytest.approx(0.0, abs=1e-6)
    assert breakdown.novelty_source == "nearest remembered trace"
    assert breakdown.nearest.trace_id == trace.id
    assert breakdown.nearest.similarity == pytest.approx(1.0, abs=1e-6)
    assert scorer.score(other).novelty.value == pytest.approx(1.0, abs=1e-6)


def test_evaluate_does_both_and_embeds_once(make_trace):
    embedder = Words()
    scorer = Scorer(embedder=embedder)
    assert scorer.evaluate(make_trace()).novelty.value == 0.5
    assert embedder.calls == 1
    assert scorer.evaluate(make_trace()).novelty.value == pytest.approx(0.0, abs=1e-6)
    assert embedder.calls == 2


def test_ignored_traces_are_no_precedents(make_trace):
    scorer = Scorer(embedder=Words())
    first, second = make_trace(), make_trace(objective="another one", content="thing")
    scorer.remember(first)
    assert scorer.score(first, ignore={first.id}).novelty_source == "empty cache"
    scorer.remember(second)
    breakdown = scorer.evaluate(first, ignore={first.id})
    assert breakdown.nearest.trace_id == second.id


def test_a_vector_without_a_key(make_trace):
    cache = VectorCache(dimensions=26)
    cache.add(np.ones(26))
    breakdown = Scorer(embedder=Words(), cache=cache).score(make_trace())
    assert breakdown.nearest.trace_id is None
    assert "a vector without a key" in breakdown.text()
    json.dumps(breakdown.to_dict(), allow_nan=False)


def test_ttl_makes_a_topic_new_again(make_trace):
    now = [0.0]
    scorer = Scorer(
        embedder=Words(), cache=VectorCache(dimensions=26, ttl_ms=1000, clock=lambda: now[0])
    )
    scorer.evaluate(make_trace())
    now[0] = 0.5
    assert scorer.score(make_trace()).novelty.value == pytest.approx(0.0, abs=1e-6)
    now[0] = 2.0
    assert scorer.score(make_trace()).novelty_source == "empty cache"


@pytest.mark.parametrize("domain", ["default", "finance", "code", "medical", "customer_service"])
def test_profile_by_domain(make_trace, domain):
    assert Scorer(embedder=None).score(make_trace(domain=domain)).profile == domain


@pytest.mark.parametrize("domain", ["Finance", "finance ", "legal", "custom", "ümläut"])
def test_unknown_domain_takes_the_default(make_trace, domain):
    assert Scorer(embedder=None).score(make_trace(domain=domain)).profile == "default"


def test_own_profiles(make_trace):
    own = ScoringWeights(0.7, 0.1, 0.1, 0.1)
    scorer = Scorer(embedder=None, profiles={"legal": own, "finance": EQUAL, "default": own})
    assert scorer.score(make_trace(domain="legal")).complexity.weight == 0.7
    assert scorer.score(make_trace(domain="finance")).complexity.weight == 0.25
    assert scorer.score(make_trace(domain="code")).complexity.weight == 0.2
    assert scorer.score(make_trace(domain="unheard of")).complexity.weight == 0.7
    assert Scorer(embedder=None).score(make_trace(domain="finance")).complexity.weight == 0.2


def test_a_wrong_profile_is_named():
    with pytest.raises(WeightsError, match=r"profile 'legal'.*1\.25"):
        Scorer(embedder=None, profiles={"legal": {**EQUAL, "novelty": 0.5}})


def test_weights_for_one_call(make_trace):
    scorer = Scorer(embedder=None)
    trace = make_trace(domain="finance")
    breakdown = scorer.score(trace, weights=ScoringWeights(0, 0, 0, 1))
    assert breakdown.profile == "custom"
    assert breakdown.total == pytest.approx(0.8, abs=1e-12)
    assert scorer.evaluate(trace, weights=EQUAL).novelty.weight == 0.25
    assert scorer.score(trace).profile == "finance"
    with pytest.raises(WeightsError):
        scorer.score(trace, weights={"novelty": 1.0})


def test_weights_that_exceed_1_by_their_tolerance_do_not_lift_the_score_above_it(make_trace):
    trace = make_trace("tool_call:a", "tool_call:b", confidence=1.0)
    weights = ScoringWeights(0.0, 0.0, 5e-10, 1.0)
    breakdown = Scorer(embedder=None).score(trace, weights=weights)
    assert breakdown.weighted_sum > 1.0
    assert breakdown.total == 1.0


def test_step_cap(make_trace):
    trace = make_trace(*["thought"] * 40)
    # C .125+40/20*.2=.525, with the cap .125+.2=.325
    assert Scorer(embedder=None).score(trace).complexity.value == pytest.approx(0.525, abs=1e-12)
    capped = Scorer(embedder=None, step_cap=20).score(trace)
    assert capped.complexity.value == pytest.approx(0.325, abs=1e-12)


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "20", math.inf])
def test_step_cap_is_checked(bad):
    with pytest.raises(ConfigError, match="step_cap"):
        Scorer(embedder=None, step_cap=bad)


def test_cache_is_checked():
    with pytest.raises(ConfigError, match="a list"):
        Scorer(embedder=None, cache=[])


def test_wire_form(make_trace):
    trace = make_trace(domain="code")
    scorer = Scorer(embedder=Words())
    wire = json.loads(trace.model_dump_json())
    assert scorer.evaluate(wire).total == scorer.evaluate(trace, ignore={trace.id}).total
    scorer.remember(wire)


@pytest.mark.parametrize("bad", [None, 1, "trace", [], {}, {"steps": []}, object()])
def test_what_is_no_trace_is_refused(bad):
    scorer = Scorer(embedder=None)
    for call in (scorer.score, scorer.evaluate, scorer.remember):
        with pytest.raises(ValidationError):
            call(bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5, 1.5])
def test_confidence_that_escaped_validation_is_refused(make_trace, bad):
    trace = make_trace()
    outcome = trace.outcome.model_copy(update={"confidence": bad})
    with pytest.raises(ValueError, match=r"outcome\.confidence"):
        Scorer(embedder=None).score(trace.model_copy(update={"outcome": outcome}))


class FirstError(RuntimeError):
    """Error types of this module's own, because each kind is logged once per process."""


class SecondError(RuntimeError):
    pass


def test_an_embedder_that_raises(make_trace, caplog):
    scorer = Scorer(embedder=Returning(FirstError("the secret text of the trace")))
    with caplog.at_level(logging.DEBUG, logger="kp_langchain"):
        breakdowns = [scorer.evaluate(make_trace(objective=f"task {n}")) for n in range(3)]
        scorer.remember(make_trace())
    for breakdown in breakdowns:
        assert breakdown.novelty.value == 0.5
        assert breakdown.novelty_source == "embedder failed: FirstError"
        assert breakdown.nearest is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "FirstError" in caplog.text
    assert "secret" not in caplog.text


def test_an_embedder_that_recovers(make_trace):
    good = [[1.0, 0.0]]
    scorer = Scorer(embedder=Returning(good, SecondError(), good))
    traces = [make_trace(objective=f"task {n}") for n in range(3)]
    sources = [scorer.evaluate(trace).novelty_source for trace in traces]
    assert sources == ["empty cache", "embedder failed: SecondError", "nearest remembered trace"]


@pytest.mark.parametrize(
    "garbage",
    [None, [], [1.0, 2.0], [[math.nan, 0.0]], [[1.0], [2.0]], "text", [["a", "b"]], [[1e300]]],
    ids=repr,
)
def test_an_embedder_that_returns_garbage(make_trace, garbage):
    cache = VectorCache(dimensions=2)
    breakdown = Scorer(embedder=Returning(garbage), cache=cache).evaluate(make_trace())
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == "embedder failed: BadEmbeddingError"
    assert cache.size == 0


def test_an_embedder_that_changes_its_length(make_trace):
    scorer = Scorer(embedder=Returning([[1.0, 0.0]], [[1.0, 0.0, 0.0]], [[1.0, 0.0]]))
    traces = [make_trace(objective=f"task {n}") for n in range(3)]
    sources = [scorer.evaluate(trace).novelty_source for trace in traces]
    assert sources == [
        "empty cache",
        "embedder failed: BadEmbeddingError",
        "nearest remembered trace",
    ]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_interrupts_pass(make_trace, interrupt):
    scorer = Scorer(embedder=Returning(interrupt))
    with pytest.raises(type(interrupt)):
        scorer.evaluate(make_trace())


def test_a_given_cache_of_another_length(make_trace):
    scorer = Scorer(embedder=Words(), cache=VectorCache(dimensions=384))
    for call in (scorer.score, scorer.remember, scorer.evaluate):
        with pytest.raises(VectorError, match=r"26.*384"):
            call(make_trace())


def test_embedder_none_says_so_and_logs_nothing(make_trace, caplog):
    with caplog.at_level(logging.DEBUG, logger="kp_langchain"):
        assert Scorer(embedder=None).evaluate(make_trace()).novelty_source == "no embedder"
    assert caplog.records == []


def test_lone_surrogates_and_megabytes(make_trace):
    scorer = Scorer(embedder=Words())
    trace = make_trace(content="x" * 2_000_000)
    # Validation refuses lone surrogates; a trace built or changed without it may hold them.
    task = trace.task.model_copy(update={"objective": "a\ud800 \udfff"})
    wild = trace.model_copy(update={"task": task})
    assert scorer.evaluate(wild).novelty_source == "empty cache"
    assert scorer.evaluate(wild).novelty.value == pytest.approx(0.0, abs=1e-6)


steps = st.lists(
    st.fixed_dictionaries(
        {
            "step_id": st.integers(0, 99),
            "type": st.sampled_from(["thought", "tool_call", "observation", "error_recovery"]),
        },
        optional={
            "content": st.text(max_size=20),
            "tool": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=3)}),
        },
    ),
    min_size=1,
    max_size=12,
)
traces = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "task_domain": st.sampled_from(["finance", "code"]) | st.text(min_size=1),
                "success": st.booleans(),
            }
        ),
        "task": st.fixed_dictionaries({"objective": st.text(min_size=1)}),
        "steps": steps,
        "outcome": st.fixed_dictionaries(
            {"result_summary": st.text(), "confidence": st.floats(0, 1)}
        ),
    }
)
embeddings = st.lists(st.floats(width=32), min_size=2, max_size=4).map(lambda row: [row])


@given(st.lists(st.tuples(traces, embeddings), min_size=1, max_size=5), st.none() | st.just(20))
def test_scores_are_finite_and_add_up(sequence, step_cap):
    scorer = Scorer(embedder=Returning(*(row for _, row in sequence)), step_cap=step_cap)
    for wire, _ in sequence:
        breakdown = scorer.evaluate(wire)
        parts = [
            breakdown.complexity,
            breakdown.novelty,
            breakdown.tool_diversity,
            breakdown.outcome_confidence,
        ]
        assert 0.0 <= breakdown.total <= 1.0
        assert all(0.0 <= part.value <= 1.0 for part in parts)
        assert breakdown.weighted_sum == pytest.approx(
            sum(part.value * part.weight for part in parts), abs=1e-9
        )
        last = breakdown.rules[-1].after if breakdown.rules else breakdown.weighted_sum
        assert breakdown.total == pytest.approx(last, abs=1e-9)
        json.dumps(breakdown.to_dict(), allow_nan=False)


def test_same_text_at_the_same_time_is_new_once(make_trace):
    class Meeting(VectorCache):
        """Holds a search back until another one has been made too, or for a moment."""

        meeting = threading.Barrier(2)

        def nearest(self, query, *, ignore=frozenset()):
            found = super().nearest(query, ignore=ignore)
            with suppress(threading.BrokenBarrierError):
                self.meeting.wait(timeout=0.1)
            return found

    scorer = Scorer(embedder=Words(), cache=Meeting(dimensions=26))
    with ThreadPoolExecutor(2) as pool:
        breakdowns = pool.map(scorer.evaluate, [make_trace(), make_trace()])
        sources = {breakdown.novelty_source for breakdown in breakdowns}
    assert sources == {"empty cache", "nearest remembered trace"}


def test_many_threads_on_one_scorer(make_trace):
    cache = VectorCache(max_elements=100, dimensions=26)
    scorer = Scorer(embedder=Words(), cache=cache)

    def work(number: int) -> None:
        for turn in range(50):
            trace = make_trace(objective=f"task {number} turn {turn}")
            assert 0.0 <= scorer.evaluate(trace).total <= 1.0
            scorer.remember(trace)
            assert scorer.score(trace).nearest is not None

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [None] * 8
    assert cache.size == 100


def test_default_scorer_without_the_extra(run_python, make_trace):
    done = run_python(
        f"""
import asyncio, logging, sys, threading
from collections.abc import Mapping
sys.modules["sentence_transformers"] = sys.modules["fastembed"] = None
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
from kp_langchain.scoring import aevaluate_value, default_scorer, evaluate_value
from kp_langchain.schema import ReasoningTrace

trace = ReasoningTrace.model_validate_json({make_trace().model_dump_json()!r})

class Watched(Mapping):
    readers = set()
    def __init__(self, data): self.data = data
    def __iter__(self): self.readers.add(threading.current_thread()); return iter(self.data)
    def __len__(self): return len(self.data)
    def __getitem__(self, key): return self.data[key]

async def both():
    watched = Watched(trace.model_dump())
    value = await aevaluate_value(watched)
    assert Watched.readers and threading.current_thread() not in Watched.readers
    return value

values = [evaluate_value(trace), evaluate_value(trace.model_dump()), asyncio.run(both())]
assert default_scorer() is default_scorer()
print(*values, default_scorer().score(trace, ignore={{trace.id}}).novelty_source, sep="|")
"""
    )
    first, second, third, source = done.stdout.strip().split("|")
    assert 0.0 < float(second) < float(first) < 1.0
    assert second == third  # a repeat is no news, also without a model
    assert source == "embeddings extra not installed"
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("WARNING kp_langchain ")
    assert "pip install 'kp-langchain[embeddings]'" in line
